// SPDX-License-Identifier: Apache-2.0
// clang-format off
// Made by kiln build from package.json of sampling@1: change that.
//
//   kiln::get_kernel("sampling", {.version = 1})
//       .op<kiln::ops::sampling::Sample>().run({…}, workspace, stream);
#pragma once

#include "kiln/op.hpp"

namespace kiln::ops::sampling {

inline constexpr std::string_view kPackage = "sampling";
inline constexpr int kVersion = 1;

/// A token of each row of logits: of those that top-k, then top-p, then min-p leave, by their
/// probability at the temperature. -1 of a row that has none.
struct Sample {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "sample",
      "sampling.sample(logits: bfloat16|float16|float32 [M,V] rows, temperature: "
      "float32 [M], top_k: int32 [M], top_p: float32 [M], min_p: float32 [M], seeds: "
      "int64 [M], positions: int64 [M], tokens!: int64|int32 [M])"};

  kiln::RequiredTensor logits;  ///< [M, V], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor temperature;  ///< [M], float32
  kiln::RequiredTensor top_k;  ///< [M], int32
  kiln::RequiredTensor top_p;  ///< [M], float32
  kiln::RequiredTensor min_p;  ///< [M], float32
  kiln::RequiredTensor seeds;  ///< [M], int64
  kiln::RequiredTensor positions;  ///< [M], int64
  kiln::RequiredTensor tokens;  ///< [M], int64, int32; output

  friend std::array<const kiln::Tensor*, 8> tensors_of(const Sample& a) {
    return {&a.logits, &a.temperature, &a.top_k, &a.top_p, &a.min_p, &a.seeds, &a.positions,
            &a.tokens};
  }
};

}  // namespace kiln::ops::sampling
