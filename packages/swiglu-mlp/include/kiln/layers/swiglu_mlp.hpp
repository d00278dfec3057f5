// SPDX-License-Identifier: Apache-2.0
//
// SwigluMlp, Swiglu: the typed layers of the swiglu-mlp package. gated_mlp.hpp has the members of
// SwigluMlp; what it says of checks, memory and threads holds for both.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "kiln/kernel.hpp"
#include "kiln/layers/gated_mlp.hpp"

namespace kiln::layers {

/// What a(gate) * f(up) is; f(u) = u unless said otherwise, s(z) = 1 / (1 + exp(-z)).
inline constexpr const char* kSilu = "silu";        ///< a(g) = g s(g): SwiGLU
inline constexpr const char* kRelu = "relu";        ///< a(g) = max(g, 0): ReGLU
inline constexpr const char* kSigmoid = "sigmoid";  ///< a(g) = s(g): GLU
/// a(g) = c s(1.702 c) with c = min(g, limit), f(u) = min(max(u, -limit), limit) + 1: that of
/// gpt-oss, whose limit is 7. Where an input is clamped its gradient is 0.
inline constexpr const char* kSiluClamped = "silu_clamped";

struct SwigluMlpWeights {
  Tensor gate;            ///< [H,D], row-major as nn.Linear holds it
  Tensor up;              ///< [H,D]
  Tensor down;            ///< [D,H]
  Tensor gate_bias = {};  ///< [H], or none
  Tensor up_bias = {};    ///< [H], or none
  Tensor down_bias = {};  ///< [D], or none
  std::string activation = kSilu;
  double limit = 7.0;                        ///< of kSiluClamped; above 0
  std::string overflow = kOverflowInfinity;  ///< or kOverflowSaturate
  bool batch_invariant = false;              ///< see gated_mlp.hpp

  std::array<Attribute, 4> attributes() const {
    return {Attribute(activation.c_str()), Attribute(limit), Attribute(overflow.c_str()),
            Attribute(batch_invariant ? "yes" : "no")};
  }
};

/// y[M,D] = (a(x gate^T + gate_bias) * f(x up^T + up_bias)) down^T + down_bias + residual: see
/// gated_mlp.hpp.
/// Each op throws kInvalidCall also for a limit that is not above 0.
class SwigluMlp : public GatedMlp<SwigluMlpWeights> {
 public:
  static constexpr std::string_view kPackage = "swiglu-mlp";
  static constexpr LayerOp kOps[] = {
      {"forward",
       "x, gate, up, down, gate_bias?, up_bias?, down_bias?, residual?, y; activation, limit, "
       "overflow, batch_invariant"},
      {"training_forward",
       "x, gate, up, down, gate_bias?, up_bias?, down_bias?, residual?, y, gate_out, up_out; "
       "activation, limit, overflow, batch_invariant"},
      {"backward",
       "grad_y, x, gate, up, down, gate_bias?, up_bias?, gate_out?, up_out?, grad_x?, grad_gate?, "
       "grad_up?, grad_down?, grad_gate_bias?, grad_up_bias?, grad_down_bias?, "
       "main_grad_gate?, main_grad_up?, main_grad_down?, main_grad_gate_bias?, "
       "main_grad_up_bias?, main_grad_down_bias?; activation, limit, overflow, batch_invariant"}};

  using GatedMlp::GatedMlp;
};

/// Elementwise out = a(gate) * f(up) on [M,H] tensors, each of which may be a column slice (any row
/// stride). float32, bfloat16 or float16; computed in float32. Needs no workspace.
class Swiglu {
 public:
  static constexpr std::string_view kPackage = "swiglu-mlp";
  static constexpr LayerOp kOps[] = {
      {"swiglu", "gate, up, out; activation, limit"},
      {"swiglu_backward", "grad_out, gate, up, grad_gate, grad_up; activation, limit"}};

  struct Weights {  ///< none: the options of the layer
    std::string activation = kSilu;
    double limit = 7.0;  ///< of kSiluClamped; above 0
  };

  Swiglu(const Kernel& kernel, Weights weights)
      : forward_(kernel.op("swiglu")),
        backward_(kernel.op("swiglu_backward")),
        weights_(std::move(weights)) {}

  void forward(const Tensor& gate, const Tensor& up, const Tensor& out,
               void* stream = nullptr) const {
    const Tensor tensors[] = {gate, up, out};
    forward_.run(tensors, attributes(), {}, stream);
  }

  /// grad_gate = grad_out * f(up) * a'(gate), grad_up = grad_out * a(gate) * f'(up). Writes the two
  /// gradients only.
  void backward(const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                const Tensor& grad_gate, const Tensor& grad_up, void* stream = nullptr) const {
    const Tensor tensors[] = {grad_out, gate, up, grad_gate, grad_up};
    backward_.run(tensors, attributes(), {}, stream);
  }

 private:
  std::array<Attribute, 2> attributes() const {
    return {Attribute(weights_.activation.c_str()), Attribute(weights_.limit)};
  }

  Op forward_;
  Op backward_;
  Weights weights_;
};

}  // namespace kiln::layers
