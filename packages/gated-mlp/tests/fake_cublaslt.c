/* SPDX-License-Identifier: Apache-2.0
 *
 * Fake_cublaslt: a libcublasLt.so.13 without a GPU, for the test of the path through it. It keeps
 * what it is told, computes nothing, and fails on request. */
#include "fake_cublaslt.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"

struct fake_cublaslt fake_cublaslt = {.proposals = 1};

static struct fake_lt_preference asked; /* by the last query */
static int wanted;
static const uint64_t kAlgorithm[8] = {1, 2, 3, 5, 8, 13, 21, 34};

static int outcome(enum fake_lt_call call) {
  ++fake_cublaslt.calls[call];
  return fake_cublaslt.fail_call == call ? fake_cublaslt.fail_result : 0;
}

/* Nothing is made by a call that fails. */
static int make(enum fake_lt_call call, size_t bytes, void** made) {
  const int result = outcome(call);
  if (result != 0) return result;
  *made = calloc(1, bytes);
  ++fake_cublaslt.alive;
  return 0;
}

static int destroy(void* made) {
  free(made);
  --fake_cublaslt.alive;
  return 0;
}

static int kernel_launches(void) {
  struct fake_cuda* driver = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda");
  return driver->calls[FAKE_LAUNCH];
}

const char* cublasLtGetStatusName(int status) {
  return status == 13 ? "CUBLAS_STATUS_EXECUTION_FAILED" : 0;
}

int cublasLtCreate(void** handle) {
  const int result = outcome(FAKE_LT_CREATE);
  static char handles[1024]; /* a handle's address is never another's, as none is destroyed */
  static int made;
  if (result == 0) *handle = fake_cublaslt.handle = &handles[made++ % 1024];
  return result;
}

int cublasLtMatmulDescCreate(void** operation, int compute_type, int scale_type) {
  const int result = make(FAKE_LT_OPERATION_CREATE, sizeof(struct fake_lt_operation), operation);
  if (result != 0) return result;
  struct fake_lt_operation* made = *operation;
  made->compute_type = compute_type;
  made->scale_type = scale_type;
  made->epilogue = 1; /* CUBLASLT_EPILOGUE_DEFAULT */
  return 0;
}

int cublasLtMatmulDescDestroy(void* operation) {
  return destroy(operation);
}

int cublasLtMatmulDescSetAttribute(void* operation, int attribute, const void* value,
                                   size_t bytes) {
  struct fake_lt_operation* op = operation;
  void* const place = attribute == 3   ? (void*)&op->transpose_a
                      : attribute == 7 ? (void*)&op->epilogue
                      : attribute == 8 ? (void*)&op->bias
                                       : 0;
  if (place == 0 || bytes != (attribute == 8 ? sizeof(void*) : 4)) return 7;
  memcpy(place, value, bytes);
  return outcome(FAKE_LT_OPERATION_SET);
}

int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns,
                               int64_t leading_dimension) {
  const int result = make(FAKE_LT_LAYOUT_CREATE, sizeof(struct fake_lt_layout), layout);
  if (result != 0) return result;
  const struct fake_lt_layout made = {type, rows, columns, leading_dimension};
  memcpy(*layout, &made, sizeof(made));
  return 0;
}

int cublasLtMatrixLayoutDestroy(void* layout) {
  return destroy(layout);
}

int cublasLtMatmulPreferenceCreate(void** preference) {
  return make(FAKE_LT_PREFERENCE_CREATE, sizeof(struct fake_lt_preference), preference);
}

int cublasLtMatmulPreferenceDestroy(void* preference) {
  return destroy(preference);
}

int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value,
                                         size_t bytes) {
  struct fake_lt_preference* p = preference;
  void* const place = attribute == 1                     ? (void*)&p->workspace_bytes
                      : attribute == 3                   ? (void*)&p->reductions
                      : attribute >= 5 && attribute <= 8 ? (void*)&p->alignments[attribute - 5]
                                                         : 0;
  if (place == 0 || bytes != (attribute == 1 ? 8 : 4)) return 7;
  memcpy(place, value, bytes);
  return outcome(FAKE_LT_PREFERENCE_SET);
}

/* cublasLtMatmulHeuristicResult_t */
struct proposal {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

int cublasLtMatmulAlgoGetHeuristic(void* handle, void* operation, void* a, void* b, void* c,
                                   void* d, void* preference, int wanted_proposals,
                                   struct proposal* proposals, int* found) {
  (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d;
  asked = *(struct fake_lt_preference*)preference;
  wanted = wanted_proposals;
  *found = fake_cublaslt.proposals;
  memcpy(proposals->algorithm, kAlgorithm, sizeof(kAlgorithm));
  proposals->state = fake_cublaslt.proposal_state;
  return outcome(FAKE_LT_PROPOSE);
}

int cublasLtMatmul(void* handle, void* operation, const void* alpha, const void* a, void* a_layout,
                   const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                   void* d, void* d_layout, const void* algorithm, void* workspace,
                   size_t workspace_bytes, void* stream) {
  struct fake_lt_gemm gemm = {.handle = handle,
                              .operation = *(struct fake_lt_operation*)operation,
                              .preference = asked,
                              .wanted = wanted,
                              .is_proposal = memcmp(algorithm, kAlgorithm, sizeof(kAlgorithm)) == 0,
                              .data = {a, b, c, d},
                              .alpha = *(const float*)alpha,
                              .beta = *(const float*)beta,
                              .workspace = workspace,
                              .workspace_bytes = workspace_bytes,
                              .stream = stream,
                              .launches_before = kernel_launches()};
  const void* const layouts[] = {a_layout, b_layout, c_layout, d_layout};
  for (int i = 0; i < 4; ++i) memcpy(&gemm.layouts[i], layouts[i], sizeof(gemm.layouts[i]));
  fake_cublaslt.gemms[fake_cublaslt.calls[FAKE_LT_MATMUL] % 8] = gemm;
  return outcome(FAKE_LT_MATMUL);
}
