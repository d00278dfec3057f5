// SPDX-License-Identifier: Apache-2.0
// clang-format off
// Made by kiln build from package.json of layer-norm@1: change that.
//
//   kiln::get_kernel("layer-norm", {.version = 1})
//       .op<kiln::ops::layer_norm::Forward>().run({…}, workspace, stream);
#pragma once

#include "kiln/op.hpp"

namespace kiln::ops::layer_norm {

inline constexpr std::string_view kPackage = "layer-norm";
inline constexpr int kVersion = 1;

/// The attributes of forward, forward_residual, backward.
struct ForwardAttributes {
  double eps = 1e-05;

  friend std::array<kiln::Attribute, 1> attributes_of(const ForwardAttributes& a) {
    return {{a.eps}};
  }
};

/// y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, row by row, in fp32.
struct Forward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "forward",
      "layer-norm.forward(x: bfloat16|float16|float32 [M,D] rows, weight: x [D], "
      "bias?: x [D], y!: x [M,D] rows; eps: float = 1e-05)"};

  kiln::RequiredTensor x;  ///< [M, D], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor weight;  ///< [D], as x
  kiln::Tensor bias = {};  ///< [D], as x; or none
  kiln::RequiredTensor y;  ///< [M, D], as x; rows may lie apart; output
  ForwardAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 4> tensors_of(const Forward& a) {
    return {&a.x, &a.weight, &a.bias, &a.y};
  }
};

/// h = x + residual, rounded, and forward of h.
struct ForwardResidual {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "forward_residual",
      "layer-norm.forward_residual(x: bfloat16|float16|float32 [M,D] rows, residual: x "
      "[M,D] rows, weight: x [D], bias?: x [D], y!: x [M,D] rows, h!: x [M,D] rows; "
      "eps: float = 1e-05)"};

  kiln::RequiredTensor x;  ///< [M, D], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor residual;  ///< [M, D], as x; rows may lie apart
  kiln::RequiredTensor weight;  ///< [D], as x
  kiln::Tensor bias = {};  ///< [D], as x; or none
  kiln::RequiredTensor y;  ///< [M, D], as x; rows may lie apart; output
  kiln::RequiredTensor h;  ///< [M, D], as x; rows may lie apart; output
  ForwardAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 6> tensors_of(const ForwardResidual& a) {
    return {&a.x, &a.residual, &a.weight, &a.bias, &a.y, &a.h};
  }
};

/// The gradients of h, which is forward's x, of weight and of bias. grad_h_more, what h has from
/// elsewhere, is added.
struct Backward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "backward",
      "layer-norm.backward(grad_y: bfloat16|float16|float32 [M,D] rows, h: grad_y "
      "[M,D] rows, weight: grad_y [D], grad_h_more?: grad_y [M,D] rows, grad_h!: "
      "grad_y [M,D] rows, grad_weight?!: grad_y [D], grad_bias?!: grad_y [D]; eps: "
      "float = 1e-05)"};

  kiln::RequiredTensor grad_y;  ///< [M, D], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor h;  ///< [M, D], as grad_y; rows may lie apart
  kiln::RequiredTensor weight;  ///< [D], as grad_y
  kiln::Tensor grad_h_more = {};  ///< [M, D], as grad_y; rows may lie apart; or none
  kiln::RequiredTensor grad_h;  ///< [M, D], as grad_y; rows may lie apart; output
  kiln::Tensor grad_weight = {};  ///< [D], as grad_y; output; or none
  kiln::Tensor grad_bias = {};  ///< [D], as grad_y; output; or none
  ForwardAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 7> tensors_of(const Backward& a) {
    return {&a.grad_y, &a.h, &a.weight, &a.grad_h_more, &a.grad_h, &a.grad_weight, &a.grad_bias};
  }
};

}  // namespace kiln::ops::layer_norm
