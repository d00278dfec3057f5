/* SPDX-License-Identifier: Apache-2.0
 *
 * A check of the sample package, written by hand against the C ABI: y = x + 1 on some lengths,
 * after which the CHECK_* macros make it misbehave.
 */
#include <kiln/check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kMost = 64 };

#ifndef CHECK_NAME
#define CHECK_NAME(count) "y float32"
#endif

static int run_add(const kiln_check_host* host, const float* x, float* y, int64_t count,
                   kiln_error* error) {
  int64_t shape[] = {1, count};
  int64_t strides[] = {count, 1};
  const size_t bytes = (size_t)count * sizeof(float);
  void* in = host->allocate(host->context, bytes);
  void* out = host->allocate(host->context, bytes);
  void* workspace = host->allocate(host->context, 64);
  if (in == NULL || out == NULL || workspace == NULL) return KILN_DEVICE_ERROR;
  host->copy(host->context, in, x, bytes, 1);
  DLTensor a = {in, host->device, 2, {kDLFloat, 32, 1}, shape, strides, 0};
  DLTensor b = a;
  b.data = out;
  const DLTensor* tensors[] = {&a, &b};
  kiln_call call;
  memset(&call, 0, sizeof call);
  call.struct_size = sizeof call;
  call.tensor_count = 2;
  call.tensors = tensors;
  call.workspace = workspace;
  call.workspace_bytes = 64;
  const int32_t status = host->package->ops[0].run(&call, error);
  host->copy(host->context, y, out, bytes, 0);
  host->release(host->context, in);
  host->release(host->context, out);
  host->release(host->context, workspace);
  return status;
}

int32_t kiln_check_v1(const kiln_check_host* host, kiln_error* error);
int32_t kiln_check_v1(const kiln_check_host* host, kiln_error* error) {
  printf("what a check prints is no result\n");
  for (int64_t count = 1; count <= (host->full ? kMost : 4); count *= 2) {
    float x[kMost];
    float y[kMost];
    double expected[kMost];
    for (int i = 0; i < kMost; ++i) {
      x[i] = (float)i / 3;
      expected[i] = (double)x[i] + 1;
    }
    const int32_t status = run_add(host, x, y, count, error);
    if (status != KILN_OK) return status;
    kiln_check_case one;
    memset(&one, 0, sizeof one);
    one.struct_size = sizeof one;
    one.name = CHECK_NAME(count);
    one.bound = 1e-6;
    for (int64_t i = 0; i < count; ++i) one.error = fmax(one.error, fabs(y[i] - expected[i]));
    one.passed = one.error <= one.bound;
#if defined(CHECK_FULL) /* finds what a short run does not */
    one.passed = one.passed && count <= 4;
#endif
    one.text = one.passed ? "" : "error too large";
    one.found = y;
    one.expected = expected;
    one.count = (size_t)count;
    one.dtype.code = kDLFloat;
    one.dtype.bits = 32;
    one.dtype.lanes = 1;
    host->report(host->context, &one);
#if defined(CHECK_HANGS)
    if (getenv("CHECK_MARK") != NULL) fclose(fopen(getenv("CHECK_MARK"), "w"));
    for (;;) sleep(1000);
#elif defined(CHECK_WRITES) /* into the results, which are its parent's to read */
    char line[5000];
    memset(line, 'x', sizeof line);
    for (int each = 3; each < 64; ++each) (void)!write(each, line, sizeof line);
    sleep(1000);
#elif defined(CHECK_CRASHES)
    abort();
#elif defined(CHECK_EXITS)
    _exit(9);
#elif defined(CHECK_EXITS_ONCE)
    const char* mark = getenv("CHECK_MARK");
    if (mark != NULL && access(mark, F_OK) != 0) {
      fclose(fopen(mark, "w"));
      _exit(9);
    }
#elif defined(CHECK_FAILS)
    snprintf(error->text, sizeof error->text, "the check lost its way");
    return KILN_UNSUPPORTED;
#endif
  }
  return KILN_OK;
}
