// SPDX-License-Identifier: Apache-2.0
//
// Ways: what is compared, and the guess of how many kernels each should launch. Pure data: said
// before anything runs, held against what a trace saw.
#pragma once

#include <cstdint>
#include <string>

namespace gated_mlp_bench {

struct Shape {
  std::int64_t m, d, h;
};

inline std::string text_of(Shape shape) {
  return std::to_string(shape.m) + "," + std::to_string(shape.d) + "," + std::to_string(shape.h);
}

/// What a way computes: the whole MLP, its first Linear alone, or no result at all.
enum class Result { kNothing, kLinear, kBiasedLinear, kMlp };

struct Way {
  const char* name;
  const char* what;
  int launches;  ///< kernels guessed for one forward
  Result result = Result::kMlp;
  bool needs_cublaslt = false;
  bool needs_nvrtc = false;
};

inline constexpr Way kReadWeights{.name = "read weights",
                                  .what = "one kernel that reads the three weights, no more",
                                  .launches = 1,
                                  .result = Result::kNothing,
                                  .needs_nvrtc = true};
inline constexpr Way kLinear{.name = "linear",
                             .what = "one GEMM, x gate^T",
                             .launches = 1,
                             .result = Result::kLinear,
                             .needs_cublaslt = true};
inline constexpr Way kBiasedLinear{.name = "linear + bias",
                                   .what = "one GEMM: its epilogue adds the bias",
                                   .launches = 1,
                                   .result = Result::kBiasedLinear,
                                   .needs_cublaslt = true};
inline constexpr Way kEager{.name = "eager",
                            .what = "GEMM, gelu, GEMM, multiply, GEMM",
                            .launches = 5,
                            .needs_cublaslt = true,
                            .needs_nvrtc = true};
inline constexpr Way kFusedPointwise{
    .name = "fused pointwise",
    .what = "GEMM, GEMM, geglu, GEMM, as Inductor and Liger have it",
    .launches = 4,
    .needs_cublaslt = true};
inline constexpr Way kConcatenated{.name = "concatenated",
                                   .what = "GEMM of both, geglu, GEMM: weights stored as [2H, D]",
                                   .launches = 3,
                                   .needs_cublaslt = true};
inline constexpr Way kKiln{
    .name = "kiln", .what = "gate and up with the GeGLU, down", .launches = 2};

/// In the order of the report; Kiln is the last.
inline constexpr const Way* kWays[] = {&kReadWeights,    &kLinear,       &kBiasedLinear, &kEager,
                                       &kFusedPointwise, &kConcatenated, &kKiln};

}  // namespace gated_mlp_bench
