// SPDX-License-Identifier: Apache-2.0
//
// Cublaslt_api: the functions of libcublasLt that cublaslt.cpp calls, and what it hands to them.
// Declared here in a few lines, as the SDK declares the driver's, because no CUDA header is needed
// to build the host code of a package. Each constant has the name that NVIDIA's headers give it
// (cublasLt.h, cublas_api.h, library_types.h of CUDA 12 and 13).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "host/cublaslt.hpp"

namespace kiln::package {

// Opaque handles of cuBLASLt, beside CublasltHandle.
using CublasltOperation = struct CublasltOperationTag*;  // cublasLtMatmulDesc_t
using CublasltLayout = struct CublasltLayoutTag*;        // cublasLtMatrixLayout_t
using CublasltPreference = struct CublasltPreferenceTag*;
using CublasltStatus = int;  // cublasStatus_t

inline constexpr CublasltStatus kCublasltSuccess = 0;  // CUBLAS_STATUS_SUCCESS

inline constexpr int kCudaReal32F = 0;          // CUDA_R_32F
inline constexpr int kCudaReal16F = 2;          // CUDA_R_16F
inline constexpr int kCudaReal16Bf = 14;        // CUDA_R_16BF
inline constexpr int kCublasCompute32F = 68;    // CUBLAS_COMPUTE_32F
inline constexpr int32_t kCublasTranspose = 1;  // CUBLAS_OP_T

inline constexpr int kCublasltOperationTransposeA = 3;  // CUBLASLT_MATMUL_DESC_TRANSA, int32_t
inline constexpr int kCublasltOperationEpilogue = 7;    // CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t
inline constexpr int kCublasltOperationBias = 8;  // CUBLASLT_MATMUL_DESC_BIAS_POINTER, const void*
inline constexpr uint32_t kCublasltEpilogueBias = 4;  // CUBLASLT_EPILOGUE_BIAS

// CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t; the others are uint32_t.
inline constexpr int kCublasltPreferenceWorkspace = 1;
inline constexpr int kCublasltPreferenceReductions =
    3;  // CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
inline constexpr int kCublasltPreferenceAlignmentA =
    5;  // CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES
inline constexpr int kCublasltPreferenceAlignmentB = 6;
inline constexpr int kCublasltPreferenceAlignmentC = 7;
inline constexpr int kCublasltPreferenceAlignmentD = 8;
// CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
inline constexpr uint32_t kCublasltReduceInComputeType = 2;

struct CublasltAlgorithm {  // cublasLtMatmulAlgo_t
  uint64_t data[8];
};
struct CublasltProposal {  // cublasLtMatmulHeuristicResult_t
  CublasltAlgorithm algorithm;
  size_t workspace_bytes;
  CublasltStatus state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(CublasltProposal) == 96);

struct CublasltApi {
  CublasltStatus (*create)(CublasltHandle* handle);
  const char* (*get_status_name)(CublasltStatus status);
  CublasltStatus (*operation_create)(CublasltOperation* operation, int compute_type,
                                     int scale_type);
  CublasltStatus (*operation_destroy)(CublasltOperation operation);
  CublasltStatus (*operation_set)(CublasltOperation operation, int attribute, const void* value,
                                  size_t bytes);
  CublasltStatus (*layout_create)(CublasltLayout* layout, int type, uint64_t rows, uint64_t columns,
                                  int64_t leading_dimension);
  CublasltStatus (*layout_destroy)(CublasltLayout layout);
  CublasltStatus (*preference_create)(CublasltPreference* preference);
  CublasltStatus (*preference_destroy)(CublasltPreference preference);
  CublasltStatus (*preference_set)(CublasltPreference preference, int attribute, const void* value,
                                   size_t bytes);
  CublasltStatus (*propose)(CublasltHandle handle, CublasltOperation operation, CublasltLayout a,
                            CublasltLayout b, CublasltLayout c, CublasltLayout d,
                            CublasltPreference preference, int wanted, CublasltProposal* proposals,
                            int* found);
  CublasltStatus (*matmul)(CublasltHandle handle, CublasltOperation operation, const void* alpha,
                           const void* a, CublasltLayout a_layout, const void* b,
                           CublasltLayout b_layout, const void* beta, const void* c,
                           CublasltLayout c_layout, void* d, CublasltLayout d_layout,
                           const CublasltAlgorithm* algorithm, void* workspace,
                           size_t workspace_bytes, void* stream);
};

}  // namespace kiln::package
