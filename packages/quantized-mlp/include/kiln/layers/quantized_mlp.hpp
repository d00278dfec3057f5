// SPDX-License-Identifier: Apache-2.0
//
// QuantizedMlp: the layer over the forward of quantized-mlp, whose ops kiln/ops/quantized_mlp.hpp
// has. Its weights are what the ops pack and pack_zeros wrote. They are views: their memory is the
// caller's and must outlive the layer.
//
// Threads: const members may be called from several threads at once. The one that uses the layer's
// own workspace is not const: a thread that wants it takes a copy of the layer.
#pragma once

#include <cstddef>

#include "kiln/kernel.hpp"
#include "kiln/ops/quantized_mlp.hpp"

namespace kiln::layers {

/// y[M,D] = (a(x gate^T + gate_bias) * f(x up^T + up_bias)) down^T + down_bias + residual, with
/// weights of 4 or 8 bits. x and y are bfloat16 or float16. With a norm_weight the products are of
/// x / sqrt(mean(x^2) + eps) * (offset + norm_weight), whose numbers are attributes.
class QuantizedMlp {
 public:
  using Attributes = ops::quantized_mlp::ForwardAttributes;
  using Activation = Attributes::Activation;
  static constexpr int kVersion = ops::quantized_mlp::kVersion;

  /// One packed matrix [N,K]: codes [N/16, K/64, 512 of 4 bits or 1024 of 8], scales [N/16, groups,
  /// 16], rounded up, and zeros like scales, or none.
  struct Matrix {
    RequiredTensor codes;
    RequiredTensor scales;
    Tensor zeros = {};
  };

  struct Weights {
    Matrix gate;            ///< of [H,D]
    Matrix up;              ///< of [H,D], with the bits and the number of groups of gate
    Matrix down;            ///< of [D,H]; bits and groups may be others
    Tensor gate_bias = {};  ///< [H/16, 16], zeros beyond H; or none
    Tensor up_bias = {};    ///< likewise
    Tensor down_bias = {};  ///< [D], or none
    Attributes attributes = {};
    Tensor norm_weight = {};  ///< [D], or none: x is not normed
  };

  /// What a forward reads: forward(x, y), or forward({x, residual}, y).
  struct Input {
    Tensor x;              ///< [M,D], M may be 0
    Tensor residual = {};  ///< [M,D], or none; y may stand in its place, or in that of x

    Input(const Tensor& a_x, const Tensor& a_residual = {})  // NOLINT(google-explicit-constructor)
        : x(a_x), residual(a_residual) {}
  };

  /// Throws what Kernel::op() throws where the kernel is another one.
  QuantizedMlp(const Kernel& kernel, Weights weights)
      : forward_(kernel.op<ops::quantized_mlp::Forward>()),
        weights_(weights),
        owned_(kernel.device()) {}

  /// Scratch memory that forward() needs for this x.
  std::size_t workspace_bytes(const Tensor& x) const {
    return forward_.workspace_bytes(arguments(x, x));
  }

  /// y: [M,D]. Enqueues on `stream` and returns; the CPU has finished. Allocates nothing, can be
  /// captured in a CUDA graph. Throws kInvalidCall, with the tensor that does not fit, or kDevice.
  void forward(const Input& input, const Tensor& y, Workspace workspace, Stream stream = {}) const {
    forward_.run(arguments(input, y), workspace, stream);
  }

  /// The same with the layer's own workspace, which grows to the largest x seen (growing
  /// synchronises the device). One stream and one thread at a time.
  void forward(const Input& input, const Tensor& y, Stream stream = {}) {
    forward(input, y, owned_.reserve(workspace_bytes(input.x)), stream);
  }

 private:
  ops::quantized_mlp::Forward arguments(const Input& input, const Tensor& y) const {
    return {.x = input.x,
            .gate = weights_.gate.codes,
            .gate_scales = weights_.gate.scales,
            .gate_zeros = weights_.gate.zeros,
            .up = weights_.up.codes,
            .up_scales = weights_.up.scales,
            .up_zeros = weights_.up.zeros,
            .down = weights_.down.codes,
            .down_scales = weights_.down.scales,
            .down_zeros = weights_.down.zeros,
            .gate_bias = weights_.gate_bias,
            .up_bias = weights_.up_bias,
            .down_bias = weights_.down_bias,
            .residual = input.residual,
            .norm_weight = weights_.norm_weight,
            .y = y,
            .attributes = weights_.attributes};
  }

  TypedOp<ops::quantized_mlp::Forward> forward_;
  Weights weights_;
  OwnedWorkspace owned_;
};

}  // namespace kiln::layers
