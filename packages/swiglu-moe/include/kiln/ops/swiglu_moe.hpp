// SPDX-License-Identifier: Apache-2.0
// clang-format off
// Made by kiln build from package.json of swiglu-moe@1: change that.
//
//   kiln::get_kernel("swiglu-moe", {.version = 1})
//       .op<kiln::ops::swiglu_moe::Forward>().run({…}, workspace, stream);
#pragma once

#include "kiln/op.hpp"

namespace kiln::ops::swiglu_moe {

inline constexpr std::string_view kPackage = "swiglu-moe";
inline constexpr int kVersion = 1;

/// y = the sum, over the K experts e of a token and in their order, of weights (silu(x gate^T) * (x
/// up^T)) down^T, where gate_up[e] has the rows of gate and then those of up: W is 2 H. An expert
/// outside 0 to E - 1 adds nothing; K may be 0. Sums are fp32; a GPU rounds the product that down
/// multiplies, and what each expert gives, to the dtype of x.
struct Forward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "forward",
      "swiglu-moe.forward(x: bfloat16|float16 [M,D] rows, experts: int32|int64 [M,K], "
      "weights: float32 [M,K], gate_up: x [E,W,D], down: x [E,D,H], y!: x [M,D] rows)"};

  kiln::RequiredTensor x;  ///< [M, D], bfloat16, float16; rows may lie apart
  kiln::RequiredTensor experts;  ///< [M, K], int32, int64
  kiln::RequiredTensor weights;  ///< [M, K], float32
  kiln::RequiredTensor gate_up;  ///< [E, W, D], as x
  kiln::RequiredTensor down;  ///< [E, D, H], as x
  kiln::RequiredTensor y;  ///< [M, D], as x; rows may lie apart; output

  friend std::array<const kiln::Tensor*, 6> tensors_of(const Forward& a) {
    return {&a.x, &a.experts, &a.weights, &a.gate_up, &a.down, &a.y};
  }
};

/// y = the sum, over the K experts e of a token and in their order, of weights (silu(x gate^T) * (x
/// up^T)) down^T, where gate_up[e] has the rows of gate and then those of up: W is 2 H. An expert
/// outside 0 to E - 1 adds nothing; K may be 0. Sums are fp32; x, and what down multiplies, become
/// float8_e4m3fn: each 128 columns of a row are divided by the least power of two, at least 2^-100,
/// that brings their largest magnitude to 448 or below. A weight is its code times the scale of its
/// block of 128 x 128; the blocks of gate come before those of up: WB is 2 ceil(H / 128), DB ceil(D
/// / 128), HB ceil(H / 128). A GPU adds products of 128 columns with about 14 bits, and those sums
/// in fp32.
struct ForwardFloat8 {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "forward_float8",
      "swiglu-moe.forward_float8(x: bfloat16 [M,D] rows, experts: int32|int64 [M,K], "
      "weights: float32 [M,K], gate_up: float8_e4m3fn [E,W,D], gate_up_scales: float32 "
      "[E,WB,DB], down: float8_e4m3fn [E,D,H], down_scales: float32 [E,DB,HB], y!: x "
      "[M,D] rows)"};

  kiln::RequiredTensor x;  ///< [M, D], bfloat16; rows may lie apart
  kiln::RequiredTensor experts;  ///< [M, K], int32, int64
  kiln::RequiredTensor weights;  ///< [M, K], float32
  kiln::RequiredTensor gate_up;  ///< [E, W, D], float8_e4m3fn
  kiln::RequiredTensor gate_up_scales;  ///< [E, WB, DB], float32
  kiln::RequiredTensor down;  ///< [E, D, H], float8_e4m3fn
  kiln::RequiredTensor down_scales;  ///< [E, DB, HB], float32
  kiln::RequiredTensor y;  ///< [M, D], as x; rows may lie apart; output

  friend std::array<const kiln::Tensor*, 8> tensors_of(const ForwardFloat8& a) {
    return {&a.x, &a.experts, &a.weights, &a.gate_up, &a.gate_up_scales, &a.down,
            &a.down_scales, &a.y};
  }
};

}  // namespace kiln::ops::swiglu_moe
