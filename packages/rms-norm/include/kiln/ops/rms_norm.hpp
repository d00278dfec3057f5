// SPDX-License-Identifier: Apache-2.0
// clang-format off
// Made by kiln build from package.json of rms-norm@1: change that.
//
//   kiln::get_kernel("rms-norm", {.version = 1})
//       .op<kiln::ops::rms_norm::Forward>().run({…}, workspace, stream);
#pragma once

#include "kiln/op.hpp"

namespace kiln::ops::rms_norm {

inline constexpr std::string_view kPackage = "rms-norm";
inline constexpr int kVersion = 1;

/// The attributes of forward, backward.
struct ForwardAttributes {
  double eps = 1e-06;
  double offset = 0.0;

  friend std::array<kiln::Attribute, 2> attributes_of(const ForwardAttributes& a) {
    return {{a.eps, a.offset}};
  }
};

/// h = x + residual, rounded; y = h / sqrt(mean(h^2) + eps) * (offset + weight), row by row, in
/// fp32.
struct Forward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "forward",
      "rms-norm.forward(x: bfloat16|float16|float32 [M,D] rows, weight: x [D], "
      "residual?: x [M,D] rows, y!: x [M,D] rows, h_out?!: x [M,D] rows; eps: float = "
      "1e-06, offset: float = 0.0)"};

  kiln::RequiredTensor x;  ///< [M, D], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor weight;  ///< [D], as x
  kiln::Tensor residual = {};  ///< [M, D], as x; rows may lie apart; or none
  kiln::RequiredTensor y;  ///< [M, D], as x; rows may lie apart; output
  kiln::Tensor h_out = {};  ///< [M, D], as x; rows may lie apart; output; or none
  ForwardAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 5> tensors_of(const Forward& a) {
    return {&a.x, &a.weight, &a.residual, &a.y, &a.h_out};
  }
};

/// The gradients of forward's h and weight, from grad_y and h. They do not depend on how the GPU
/// runs.
struct Backward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "backward",
      "rms-norm.backward(grad_y: bfloat16|float16|float32 [M,D] rows, h: grad_y [M,D] "
      "rows, weight: grad_y [D], grad_h!: grad_y [M,D] rows, grad_weight?!: grad_y "
      "[D]; eps: float = 1e-06, offset: float = 0.0)"};

  kiln::RequiredTensor grad_y;  ///< [M, D], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor h;  ///< [M, D], as grad_y; rows may lie apart
  kiln::RequiredTensor weight;  ///< [D], as grad_y
  kiln::RequiredTensor grad_h;  ///< [M, D], as grad_y; rows may lie apart; output
  kiln::Tensor grad_weight = {};  ///< [D], as grad_y; output; or none
  ForwardAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 5> tensors_of(const Backward& a) {
    return {&a.grad_y, &a.h, &a.weight, &a.grad_h, &a.grad_weight};
  }
};

}  // namespace kiln::ops::rms_norm
