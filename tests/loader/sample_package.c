/* SPDX-License-Identifier: Apache-2.0
 *
 * A tiny package written by hand against the C ABI: what the loader's tests load. The SAMPLE_*
 * macros make its broken siblings.
 */
#include <kiln/abi.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#ifndef SAMPLE_NAME
#define SAMPLE_NAME "sample"
#endif
#ifndef SAMPLE_VERSION
#define SAMPLE_VERSION 1
#endif
#ifndef SAMPLE_BUILD_ID
#define SAMPLE_BUILD_ID "sample-build"
#endif
#ifndef SAMPLE_STRUCT_SIZE
#define SAMPLE_STRUCT_SIZE sizeof(kiln_package)
#endif
#ifndef SAMPLE_OP_STRIDE
#define SAMPLE_OP_STRIDE sizeof(kiln_op)
#endif
#ifndef SAMPLE_ABI_MAJOR
#define SAMPLE_ABI_MAJOR KILN_ABI_MAJOR
#endif
#ifndef SAMPLE_DEVICE
#define SAMPLE_DEVICE kDLCPU
#endif
#ifndef SAMPLE_TABLE
#define SAMPLE_TABLE &package
#endif
#ifndef SAMPLE_OP_SIZE
#define SAMPLE_OP_SIZE sizeof(kiln_op)
#endif
#ifndef SAMPLE_SIGNATURE
#define SAMPLE_SIGNATURE 0
#endif
#ifndef SAMPLE_ADDEND
#define SAMPLE_ADDEND 1.0
#endif
#ifndef SAMPLE_OPS
#define SAMPLE_OPS ops
#endif

#ifndef SAMPLE_PROBE
#define SAMPLE_PROBE probe_run
#endif

#ifdef SAMPLE_UNDEFINED
int a_function_that_nobody_defines(void);
#endif

static int prepares = 0;

static int32_t fail(kiln_error* error, int32_t status, const char* text) {
  error->status = status;
  snprintf(error->text, sizeof(error->text), "%s", text);
  return status;
}

static int32_t add_workspace_bytes(const kiln_call* call, size_t* bytes, kiln_error* error) {
  if (call->tensor_count != 2) {
    return fail(error, KILN_INVALID_ARGUMENT, SAMPLE_NAME "@1 add: expected 2 tensors");
  }
  *bytes = 64;
  return KILN_OK;
}

/* y = x + addend; the addend is attribute 0, 1.0 by default. */
static int32_t add_run(const kiln_call* call, kiln_error* error) {
  if (call->tensor_count != 2 || call->tensors[0] == NULL || call->tensors[1] == NULL) {
    return fail(error, KILN_INVALID_ARGUMENT, SAMPLE_NAME "@1 add: expected x and y");
  }
  if (call->workspace == NULL || call->workspace_bytes < 64 ||
      (uintptr_t)call->workspace % 256 != 0) {
    return fail(error, KILN_INVALID_ARGUMENT, SAMPLE_NAME "@1 add: workspace too small");
  }
  double addend = SAMPLE_ADDEND;
  if (call->attribute_count > 0) {
    const kiln_attribute* attribute = &call->attributes[0];
    if (attribute->kind == KILN_ATTRIBUTE_FLOAT) addend = attribute->value.as_float;
    if (attribute->kind == KILN_ATTRIBUTE_INT) addend = (double)attribute->value.as_int;
    if (attribute->kind == KILN_ATTRIBUTE_STRING) {
      return fail(error, KILN_DEVICE_ERROR, attribute->value.as_string);
    }
  }
#ifdef SAMPLE_STALLS
  static int calls = 0;
  const clock_t begin = clock();
  while (calls == 0 && clock() - begin < CLOCKS_PER_SEC / 3) continue;
  ++calls;
#endif
  const DLTensor* x = call->tensors[0];
  const DLTensor* y = call->tensors[1];
  const float* in = (const float*)((const char*)x->data + x->byte_offset);
  float* out = (float*)((char*)y->data + y->byte_offset);
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    for (int64_t j = 0; j < x->shape[1]; ++j) {
      out[i * y->strides[0] + j * y->strides[1]] =
          in[i * x->strides[0] + j * x->strides[1]] + (float)addend;
    }
  }
  return KILN_OK;
}

/* workspace_bytes: how often prepare was called. run: which tensors are there, one bit each, and
 * behind '/' the bound on threads, if there is one. */
static int32_t probe_workspace_bytes(const kiln_call* call, size_t* bytes, kiln_error* error) {
  (void)call;
  (void)error;
  pthread_testcancel();
  *bytes = (size_t)__atomic_load_n(&prepares, __ATOMIC_SEQ_CST);
  return KILN_OK;
}

static int32_t probe_run(const kiln_call* call, kiln_error* error) {
  pthread_testcancel(); /* as a call of a driver may */
  char* at = error->text;
  for (uint32_t i = 0; i < call->tensor_count; ++i) *at++ = call->tensors[i] != NULL ? '1' : '0';
  *at = '\0';
  if (call->threads != 0) sprintf(at, "/%u", (unsigned)call->threads);
  error->status = KILN_UNSUPPORTED;
  return KILN_UNSUPPORTED;
}

static int32_t prepare(DLDevice device, kiln_error* error) {
  (void)device;
  __atomic_add_fetch(&prepares, 1, __ATOMIC_SEQ_CST);
#ifdef SAMPLE_FAIL_PREPARE
  return fail(error, KILN_DEVICE_ERROR, "cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU");
#else
  (void)error;
#ifdef SAMPLE_UNDEFINED
  return a_function_that_nobody_defines();
#endif
  return KILN_OK;
#endif
}

#ifdef SAMPLE_NO_SYMBOL
#define kiln_package_v1 another_symbol
#endif

const kiln_package* kiln_package_v1(void);
const kiln_package* kiln_package_v1(void) {
  static const kiln_op ops[] = {
      {SAMPLE_OP_SIZE, 0, "add",
       "{\"name\":\"add\",\"tensors\":[{\"name\":\"x\",\"dtype\":[\"float32\"],\"shape\":[\"M\","
       "\"N\"],"
       "\"layout\":\"rows\",\"optional\":false},{\"name\":\"y\",\"dtype\":\"x\",\"shape\":[\"M\","
       "\"N\"],"
       "\"layout\":\"rows\",\"output\":true}],\"attributes\":[{\"name\":\"amount\",\"type\":"
       "\"float\","
       "\"default\":1.0},{\"name\":\"times\",\"type\":\"int\",\"default\":1}]}",
       add_workspace_bytes, add_run, SAMPLE_SIGNATURE},
      {sizeof(kiln_op), 0, "probe", "{\"name\":\"probe\"}", probe_workspace_bytes, SAMPLE_PROBE, 0},
  };
  static const kiln_package package = {
      (uint32_t)SAMPLE_STRUCT_SIZE,
      SAMPLE_ABI_MAJOR,
      KILN_ABI_MINOR,
      SAMPLE_NAME,
      SAMPLE_BUILD_ID,
      SAMPLE_VERSION,
      sizeof(ops) / sizeof(ops[0]),
      SAMPLE_OPS,
      (uint32_t)SAMPLE_OP_STRIDE,
      SAMPLE_DEVICE,
      prepare,
  };
  (void)ops;
  (void)probe_run;
  (void)package;
  return SAMPLE_TABLE;
}
