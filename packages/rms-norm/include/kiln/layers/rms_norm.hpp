// SPDX-License-Identifier: Apache-2.0
//
// RmsNorm: the layer of the rms-norm package: its ops, with the weight given once. The weight is a
// view and must outlive the layer. Threads: all members are const.
#pragma once

#include <cstddef>
#include <string_view>

#include "kiln/kernel.hpp"
#include "kiln/ops/rms_norm.hpp"

namespace kiln::layers {

/// y = h / sqrt(mean(h^2) + eps) * (offset + weight), over the rows of h = x + residual. bfloat16,
/// float16 or float32, one dtype for all; computed in float32. Rows may lie apart.
class RmsNorm {
 public:
  static constexpr std::string_view kPackage = ops::rms_norm::kPackage;
  using Attributes = ops::rms_norm::ForwardAttributes;

  struct Weights {
    RequiredTensor weight;  ///< [D]
    Attributes attributes = {};
  };

  RmsNorm(const Kernel& kernel, Weights weights)
      : forward_(kernel.op<ops::rms_norm::Forward>()),
        backward_(kernel.op<ops::rms_norm::Backward>()),
        weights_(weights) {}

  /// x, y: [M,D]. y may be x. On a GPU asynchronous on `stream`.
  void forward(const Tensor& x, const Tensor& y, Stream stream = {}) const {
    forward(x, {}, y, {}, stream);
  }

  /// With a residual: h_out, unless it is empty, gets x + residual. y or h_out may be x or
  /// residual.
  void forward(const Tensor& x, const Tensor& residual, const Tensor& y, const Tensor& h_out,
               Stream stream = {}) const {
    forward_.run({.x = x,
                  .weight = weights_.weight,
                  .residual = residual,
                  .y = y,
                  .h_out = h_out,
                  .attributes = weights_.attributes},
                 {}, stream);
  }

  /// How much scratch memory backward takes for these.
  std::size_t backward_workspace_bytes(const Tensor& grad_y, const Tensor& h, const Tensor& grad_h,
                                       const Tensor& grad_weight) const {
    return backward_.workspace_bytes(arguments(grad_y, h, grad_h, grad_weight));
  }

  /// The gradients of h, which are those of x and of residual, and of weight unless it is empty.
  void backward(const Tensor& grad_y, const Tensor& h, const Tensor& grad_h,
                const Tensor& grad_weight, Workspace workspace, Stream stream = {}) const {
    backward_.run(arguments(grad_y, h, grad_h, grad_weight), workspace, stream);
  }

 private:
  ops::rms_norm::Backward arguments(const Tensor& grad_y, const Tensor& h, const Tensor& grad_h,
                                    const Tensor& grad_weight) const {
    return {.grad_y = grad_y,
            .h = h,
            .weight = weights_.weight,
            .grad_h = grad_h,
            .grad_weight = grad_weight,
            .attributes = weights_.attributes};
  }

  TypedOp<ops::rms_norm::Forward> forward_;
  TypedOp<ops::rms_norm::Backward> backward_;
  Weights weights_;
};

}  // namespace kiln::layers
