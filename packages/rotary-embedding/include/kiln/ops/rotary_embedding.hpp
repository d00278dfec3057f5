// SPDX-License-Identifier: Apache-2.0
// clang-format off
// Made by kiln build from package.json of rotary-embedding@1: change that.
//
//   kiln::get_kernel("rotary-embedding", {.version = 1})
//       .op<kiln::ops::rotary_embedding::Rotate>().run({…}, workspace, stream);
#pragma once

#include "kiln/op.hpp"

namespace kiln::ops::rotary_embedding {

inline constexpr std::string_view kPackage = "rotary-embedding";
inline constexpr int kVersion = 1;

/// The attributes of rotate.
struct RotateAttributes {
  std::int64_t head_dim = 128;
  bool interleaved = false;
  bool inverse = false;

  friend std::array<kiln::Attribute, 3> attributes_of(const RotateAttributes& a) {
    return {{a.head_dim, a.interleaved ? "yes" : "no", a.inverse ? "yes" : "no"}};
  }
};

/// Turns F pairs of each head of head_dim columns by the angles of its row's position; inverse:
/// back, which is the gradient.
struct Rotate {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "rotate",
      "rotary-embedding.rotate(x: bfloat16|float16|float32 [N,W] rows, positions: "
      "int64|int32 [N], cos: float32 [P,F], sin: float32 [P,F], out!: x [N,W] rows; "
      "head_dim: int = 128, interleaved: string no|yes = \"no\", inverse: string no|yes "
      "= \"no\")"};

  kiln::RequiredTensor x;  ///< [N, W], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor positions;  ///< [N], int64, int32
  kiln::RequiredTensor cos;  ///< [P, F], float32
  kiln::RequiredTensor sin;  ///< [P, F], float32
  kiln::RequiredTensor out;  ///< [N, W], as x; rows may lie apart; output
  RotateAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 5> tensors_of(const Rotate& a) {
    return {&a.x, &a.positions, &a.cos, &a.sin, &a.out};
  }
};

/// The attributes of tables.
struct TablesAttributes {
  double scale = 1.0;

  friend std::array<kiln::Attribute, 1> attributes_of(const TablesAttributes& a) {
    return {{a.scale}};
  }
};

/// cos and sin of position times frequency, for the positions 0 to P - 1, times scale; the angle is
/// fp64.
struct Tables {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "tables",
      "rotary-embedding.tables(frequencies: float64 [F], cos!: float32 [P,F], sin!: "
      "float32 [P,F]; scale: float = 1.0)"};

  kiln::RequiredTensor frequencies;  ///< [F], float64
  kiln::RequiredTensor cos;  ///< [P, F], float32; output
  kiln::RequiredTensor sin;  ///< [P, F], float32; output
  TablesAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 3> tensors_of(const Tables& a) {
    return {&a.frequencies, &a.cos, &a.sin};
  }
};

}  // namespace kiln::ops::rotary_embedding
