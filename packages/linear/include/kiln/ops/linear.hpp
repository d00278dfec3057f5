// SPDX-License-Identifier: Apache-2.0
// clang-format off
// Made by kiln build from package.json of linear@1: change that.
//
//   kiln::get_kernel("linear", {.version = 1})
//       .op<kiln::ops::linear::Forward>().run({…}, workspace, stream);
#pragma once

#include "kiln/op.hpp"

namespace kiln::ops::linear {

inline constexpr std::string_view kPackage = "linear";
inline constexpr int kVersion = 1;

/// The attributes of forward.
struct ForwardAttributes {
  enum class Tile { kAuto, kRows16, kRows32, kFew, kSmall, kWide, kMiddle, kLarge };
  friend constexpr const char* word_of(Tile value) {
    return kiln::word_at(value, {"auto", "rows16", "rows32", "few", "small", "wide", "middle", "large"});
  }
  Tile tile = Tile::kAuto;

  friend std::array<kiln::Attribute, 1> attributes_of(const ForwardAttributes& a) {
    return {{word_of(a.tile)}};
  }
};

/// y = x weight^T + bias, accumulated in fp32 and rounded once.
struct Forward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "forward",
      "linear.forward(x: bfloat16|float16 [M,K] rows, weight: x [N,K], bias?: x [N], "
      "y!: x [M,N] rows; tile: string auto|rows16|rows32|few|small|wide|middle|large = "
      "\"auto\")"};

  kiln::RequiredTensor x;  ///< [M, K], bfloat16, float16; rows may lie apart
  kiln::RequiredTensor weight;  ///< [N, K], as x
  kiln::Tensor bias = {};  ///< [N], as x; or none
  kiln::RequiredTensor y;  ///< [M, N], as x; rows may lie apart; output
  ForwardAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 4> tensors_of(const Forward& a) {
    return {&a.x, &a.weight, &a.bias, &a.y};
  }
};

}  // namespace kiln::ops::linear
