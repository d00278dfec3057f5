// SPDX-License-Identifier: Apache-2.0
// clang-format off
// Made by kiln build from package.json of cross-entropy@1: change that.
//
//   kiln::get_kernel("cross-entropy", {.version = 1})
//       .op<kiln::ops::cross_entropy::Forward>().run({…}, workspace, stream);
#pragma once

#include "kiln/op.hpp"

namespace kiln::ops::cross_entropy {

inline constexpr std::string_view kPackage = "cross-entropy";
inline constexpr int kVersion = 1;

/// The attributes of forward, backward, forward_backward.
struct ForwardAttributes {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0.0;
  double z_loss = 0.0;

  friend std::array<kiln::Attribute, 3> attributes_of(const ForwardAttributes& a) {
    return {{a.ignore_index, a.label_smoothing, a.z_loss}};
  }
};

/// lse = log(sum(exp(z))) of each row z; loss = lse - z[target], smoothed, plus z_loss lse^2; 0
/// where the target is ignore_index.
struct Forward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "forward",
      "cross-entropy.forward(logits: bfloat16|float16|float32 [M,V] rows, targets: "
      "int64|int32 [M], loss!: float32 [M], lse!: float32 [M]; ignore_index: int = "
      "-100, label_smoothing: float = 0.0, z_loss: float = 0.0)"};

  kiln::RequiredTensor logits;  ///< [M, V], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor targets;  ///< [M], int64, int32
  kiln::RequiredTensor loss;  ///< [M], float32; output
  kiln::RequiredTensor lse;  ///< [M], float32; output
  ForwardAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 4> tensors_of(const Forward& a) {
    return {&a.logits, &a.targets, &a.loss, &a.lse};
  }
};

/// The gradient of forward's logits, from its lse and from grad_loss, the gradient of each row's
/// loss.
struct Backward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "backward",
      "cross-entropy.backward(logits: bfloat16|float16|float32 [M,V] rows, targets: "
      "int64|int32 [M], lse: float32 [M], grad_loss: float32 [M], grad_logits!: logits "
      "[M,V] rows; ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: "
      "float = 0.0)"};

  kiln::RequiredTensor logits;  ///< [M, V], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor targets;  ///< [M], int64, int32
  kiln::RequiredTensor lse;  ///< [M], float32
  kiln::RequiredTensor grad_loss;  ///< [M], float32
  kiln::RequiredTensor grad_logits;  ///< [M, V], as logits; rows may lie apart; output
  ForwardAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 5> tensors_of(const Backward& a) {
    return {&a.logits, &a.targets, &a.lse, &a.grad_loss, &a.grad_logits};
  }
};

/// forward's loss and backward's gradient at once, where grad_loss is known before: 1 / rows of a
/// mean.
struct ForwardBackward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "forward_backward",
      "cross-entropy.forward_backward(logits: bfloat16|float16|float32 [M,V] rows, "
      "targets: int64|int32 [M], grad_loss: float32 [M], loss!: float32 [M], "
      "grad_logits!: logits [M,V] rows; ignore_index: int = -100, label_smoothing: "
      "float = 0.0, z_loss: float = 0.0)"};

  kiln::RequiredTensor logits;  ///< [M, V], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor targets;  ///< [M], int64, int32
  kiln::RequiredTensor grad_loss;  ///< [M], float32
  kiln::RequiredTensor loss;  ///< [M], float32; output
  kiln::RequiredTensor grad_logits;  ///< [M, V], as logits; rows may lie apart; output
  ForwardAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 5> tensors_of(const ForwardBackward& a) {
    return {&a.logits, &a.targets, &a.grad_loss, &a.loss, &a.grad_logits};
  }
};

}  // namespace kiln::ops::cross_entropy
