/* SPDX-License-Identifier: Apache-2.0
 *
 * A package whose op has kernels to choose from: y = scale x. Its own takes its time; "quick" does
 * not, and shows itself by one ulp; the others are what a tuner must not fall for.
 */
#include <kiln/abi.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#ifndef BUILD
#define BUILD "sample-build"
#endif

static int32_t fail(kiln_error* error, int32_t status, const char* text) {
  error->status = status;
  snprintf(error->text, sizeof error->text, "sample@1 forward: %s", text);
  return status;
}

static void spend(double microseconds) {
  const clock_t begin = clock();
  while ((double)(clock() - begin) < microseconds * CLOCKS_PER_SEC / 1e6) continue;
}

static const char* word_of(const kiln_call* call, uint32_t at, const char* fallback) {
  const int given =
      at < call->attribute_count && call->attributes[at].kind == KILN_ATTRIBUTE_STRING;
  return given ? call->attributes[at].value.as_string : fallback;
}

/* "quick" wants more of it than the others: enough for both is what a caller must reserve. */
static int32_t workspace_bytes(const kiln_call* call, size_t* bytes, kiln_error* error) {
  (void)error;
  *bytes = strcmp(word_of(call, 1, "plan"), "quick") == 0 ? 512 : 64;
  return KILN_OK;
}

static int32_t forward(const kiln_call* call, kiln_error* error) {
  if (call->tensor_count != 3) return fail(error, KILN_INVALID_ARGUMENT, "expected 3 tensors");
  if (!call->tensors || (call->attribute_count > 0 && !call->attributes)) {
    return fail(error, KILN_INVALID_ARGUMENT, "a list is NULL");
  }
  const DLTensor* x = call->tensors[0];
  if (!x->shape) return fail(error, KILN_INVALID_ARGUMENT, "x's shape is NULL");
  const DLTensor* y = call->tensors[2];
  const char* kernel = word_of(call, 1, "plan");
  double scale = 2;
  if (call->attribute_count > 0 && call->attributes[0].kind == KILN_ATTRIBUTE_FLOAT) {
    scale = call->attributes[0].value.as_float;
  }
  const int quick = strcmp(kernel, "quick") == 0;
  if (quick && (uintptr_t)x->data % 64 != 0) {
    return fail(error, KILN_UNSUPPORTED, "quick needs x at a multiple of 64 bytes");
  }
  if (call->workspace_bytes < (quick ? 512u : 64u)) {
    return fail(error, KILN_INVALID_ARGUMENT, "the workspace is too small");
  }
  if (strcmp(kernel, "picky") == 0 && x->shape[0] < 8) {
    return fail(error, KILN_UNSUPPORTED, "picky needs 8 rows");
  }
  if (strcmp(kernel, "wrong") == 0) return KILN_OK; /* and nothing was written */
  if (strcmp(kernel, "plan") == 0) spend(200);
  if (strcmp(kernel, "slow") == 0) spend(500);
  if (strcmp(kernel, "picky") == 0) spend(100);
  const float* in = x->data;
  float* out = y->data;
  for (int64_t i = 0; i < x->shape[0] * x->shape[1]; ++i) {
    out[i] = (float)scale * in[i];
    if (quick) out[i] = nextafterf(out[i], INFINITY);
  }
  return KILN_OK;
}

/* The same with its optional tensor first. */
static int32_t biased(const kiln_call* call, kiln_error* error) {
  if (call->tensor_count != 3) return fail(error, KILN_INVALID_ARGUMENT, "expected 3 tensors");
  const DLTensor* tensors[] = {call->tensors[1], call->tensors[0], call->tensors[2]};
  kiln_call moved = *call;
  moved.tensors = tensors;
  return forward(&moved, error);
}

/* The same without one. */
static int32_t bare(const kiln_call* call, kiln_error* error) {
  if (call->tensor_count != 2) return fail(error, KILN_INVALID_ARGUMENT, "expected 2 tensors");
  const DLTensor* tensors[] = {call->tensors[0], NULL, call->tensors[1]};
  kiln_call moved = *call;
  moved.tensors = tensors;
  moved.tensor_count = 3;
  return forward(&moved, error);
}

static int32_t prepare(DLDevice device, kiln_error* error) {
  (void)device;
  (void)error;
  return KILN_OK;
}

#define X(dtype, shape) "{\"name\":\"x\",\"dtype\":\"" dtype "\",\"shape\":" shape "},"
#define Y(dtype, shape) \
  "{\"name\":\"y\",\"dtype\":\"" dtype "\",\"shape\":" shape ",\"output\":true}"
#define BIAS                                                                  \
  "{\"name\":\"bias\",\"dtype\":[\"float32\",\"float64\"],\"shape\":[\"N\"]," \
  "\"optional\":true},"
#define MATRIX "[\"M\",\"N\"]"
#define ATTRIBUTES                                                            \
  "\"attributes\":["                                                          \
  "{\"name\":\"scale\",\"type\":\"float\",\"default\":2.0},"                  \
  "{\"name\":\"kernel\",\"type\":\"string\",\"default\":\"plan\",\"values\":" \
  "[\"plan\",\"quick\",\"slow\",\"wrong\",\"picky\"]},"                       \
  "{\"name\":\"exact\",\"type\":\"string\",\"default\":\"no\",\"values\":[\"no\",\"yes\"]}]"
#define OP(name, tensors, run)                                                                    \
  {                                                                                               \
    sizeof(kiln_op), 0, name, "{\"name\":\"" name "\",\"tensors\":[" tensors "]," ATTRIBUTES "}", \
        workspace_bytes, run, 0                                                                   \
  }

const kiln_package* kiln_package_v1(void);
const kiln_package* kiln_package_v1(void) {
  static const kiln_op ops[] = {
      OP("forward", X("float32", MATRIX) BIAS Y("x", MATRIX), forward),
      OP("biased", BIAS X("float32", MATRIX) Y("x", MATRIX), biased),
      OP("fixed", X("float32", "[4,64]") Y("x", "[4,64]"), bare),
      OP("counted", X("float32", MATRIX) Y("int32", MATRIX), bare),
      OP("coarse", X("float8_e4m3fn", MATRIX) Y("float32", MATRIX), bare),
  };
  static const kiln_package package = {
      sizeof(kiln_package), KILN_ABI_MAJOR, KILN_ABI_MINOR, "sample", BUILD, 1, 5, ops,
      sizeof(kiln_op),      kDLCPU,         prepare};
  return &package;
}
