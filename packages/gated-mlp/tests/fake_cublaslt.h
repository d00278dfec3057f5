/* SPDX-License-Identifier: Apache-2.0
 *
 * Fake_cublaslt: what the fake cuBLASLt records and what a test may set. */
#ifndef GATED_MLP_TESTS_FAKE_CUBLASLT_H_
#define GATED_MLP_TESTS_FAKE_CUBLASLT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fake_lt_call {
  FAKE_LT_CREATE,
  FAKE_LT_OPERATION_CREATE,
  FAKE_LT_OPERATION_SET,
  FAKE_LT_LAYOUT_CREATE,
  FAKE_LT_PREFERENCE_CREATE,
  FAKE_LT_PREFERENCE_SET,
  FAKE_LT_PROPOSE,
  FAKE_LT_MATMUL,
  FAKE_LT_CALLS
};

struct fake_lt_layout {
  int type;
  uint64_t rows, columns;
  int64_t leading_dimension;
};

struct fake_lt_operation {
  int compute_type, scale_type;
  int32_t transpose_a;
  uint32_t epilogue;
  const void* bias;
};

struct fake_lt_preference {
  uint64_t workspace_bytes;
  uint32_t reductions;
  uint32_t alignments[4];
};

/* One cublasLtMatmul, with what its descriptors said. */
struct fake_lt_gemm {
  void* handle;
  struct fake_lt_operation operation;
  struct fake_lt_preference preference; /* of the query before it */
  int wanted;                           /* proposals, in that query */
  int is_proposal;                      /* the algorithm is the one that the query gave */
  struct fake_lt_layout layouts[4];     /* a, b, c, d */
  const void* data[4];
  float alpha, beta;
  void* workspace;
  size_t workspace_bytes;
  void* stream;
  int launches_before; /* of kernels, as the fake driver counts them */
};

struct fake_cublaslt {
  int calls[FAKE_LT_CALLS];
  enum fake_lt_call fail_call; /* returns fail_result, if that is not 0 */
  int fail_result;
  int proposals;      /* that a query gives */
  int proposal_state; /* of each */
  int alive;          /* descriptors made and not yet destroyed */
  void* handle;       /* the last one made */
  struct fake_lt_gemm gemms[8];
};

#ifdef __cplusplus
}
#endif
#endif /* GATED_MLP_TESTS_FAKE_CUBLASLT_H_ */
