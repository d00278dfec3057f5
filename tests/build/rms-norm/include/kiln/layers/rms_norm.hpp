// SPDX-License-Identifier: Apache-2.0
//
// RmsNorm: the typed layer of the rms-norm package. It puts arguments into the order of
// package.json; the package checks them. The weight is a view and must outlive the layer. Threads:
// all members are const.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include "kiln/kernel.hpp"

namespace kiln::layers {

/// y = h / sqrt(mean(h^2) + eps) * (offset + weight), over the rows of h = x + residual. bfloat16,
/// float16 or float32, one dtype for all; computed in float32. Rows may lie apart.
class RmsNorm {
 public:
  static constexpr std::string_view kPackage = "rms-norm";
  static constexpr LayerOp kOps[] = {
      {"forward", "x, weight, residual?, y, h_out?; eps, offset"},
      {"backward", "grad_y, h, weight, grad_h, grad_weight?; eps, offset"}};

  struct Weights {
    Tensor weight;  ///< [D]
    double eps = 1e-6;
    double offset = 0;  ///< 1: Gemma's, whose weight is stored without its one
  };

  RmsNorm(const Kernel& kernel, Weights weights)
      : forward_(kernel.op("forward")),
        backward_(kernel.op("backward")),
        weights_(std::move(weights)) {}

  /// x, y: [M,D]. y may be x. On a GPU asynchronous on `stream`.
  void forward(const Tensor& x, const Tensor& y, void* stream = nullptr) const {
    forward(x, {}, y, {}, stream);
  }

  /// With a residual: h_out, unless it is empty, gets x + residual. y or h_out may be x or
  /// residual.
  void forward(const Tensor& x, const Tensor& residual, const Tensor& y, const Tensor& h_out,
               void* stream = nullptr) const {
    const Tensor tensors[] = {x, weights_.weight, residual, y, h_out};
    const Attribute attributes[] = {Attribute(weights_.eps), Attribute(weights_.offset)};
    forward_.run(tensors, attributes, {}, stream);
  }

  /// How much scratch memory backward takes for these.
  std::size_t backward_workspace_bytes(const Tensor& grad_y, const Tensor& h, const Tensor& grad_h,
                                       const Tensor& grad_weight) const {
    const Tensor tensors[] = {grad_y, h, weights_.weight, grad_h, grad_weight};
    return backward_.workspace_bytes(tensors);
  }

  /// The gradients of h, which are those of x and of residual, and of weight unless it is empty.
  void backward(const Tensor& grad_y, const Tensor& h, const Tensor& grad_h,
                const Tensor& grad_weight, Workspace workspace, void* stream = nullptr) const {
    const Tensor tensors[] = {grad_y, h, weights_.weight, grad_h, grad_weight};
    const Attribute attributes[] = {Attribute(weights_.eps), Attribute(weights_.offset)};
    backward_.run(tensors, attributes, workspace, stream);
  }

 private:
  Op forward_;
  Op backward_;
  Weights weights_;
};

}  // namespace kiln::layers
