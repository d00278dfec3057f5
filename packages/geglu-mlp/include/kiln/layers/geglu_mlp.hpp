// SPDX-License-Identifier: Apache-2.0
//
// GegluMlp, Geglu: the typed layers of the geglu-mlp package. gated_mlp.hpp has the members of
// GegluMlp; what it says of checks, memory and threads holds for both.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "kiln/kernel.hpp"
#include "kiln/layers/gated_mlp.hpp"

namespace kiln::layers {

/// gelu's two forms, in PyTorch's words.
inline constexpr const char* kGeluTanh = "tanh";
inline constexpr const char* kGeluErf = "none";

struct GegluMlpWeights {
  Tensor gate;                               ///< [H,D], row-major as nn.Linear holds it
  Tensor up;                                 ///< [H,D]
  Tensor down;                               ///< [D,H]
  Tensor gate_bias = {};                     ///< [H], or none
  Tensor up_bias = {};                       ///< [H], or none
  Tensor down_bias = {};                     ///< [D], or none
  std::string approximate = kGeluTanh;       ///< kGeluTanh or kGeluErf
  std::string overflow = kOverflowInfinity;  ///< or kOverflowSaturate
  bool batch_invariant = false;              ///< see gated_mlp.hpp

  std::array<Attribute, 3> attributes() const {
    return {Attribute(approximate.c_str()), Attribute(overflow.c_str()),
            Attribute(batch_invariant ? "yes" : "no")};
  }
};

/// y[M,D] = (gelu(x gate^T + gate_bias) * (x up^T + up_bias)) down^T + down_bias + residual: see
/// gated_mlp.hpp.
class GegluMlp : public GatedMlp<GegluMlpWeights> {
 public:
  static constexpr std::string_view kPackage = "geglu-mlp";
  static constexpr LayerOp kOps[] = {
      {"forward",
       "x, gate, up, down, gate_bias?, up_bias?, down_bias?, residual?, y; approximate, overflow, "
       "batch_invariant"},
      {"training_forward",
       "x, gate, up, down, gate_bias?, up_bias?, down_bias?, residual?, y, gate_out, up_out; "
       "approximate, overflow, batch_invariant"},
      {"backward",
       "grad_y, x, gate, up, down, gate_bias?, up_bias?, gate_out?, up_out?, grad_x?, grad_gate?, "
       "grad_up?, grad_down?, grad_gate_bias?, grad_up_bias?, grad_down_bias?, "
       "main_grad_gate?, main_grad_up?, main_grad_down?, main_grad_gate_bias?, "
       "main_grad_up_bias?, main_grad_down_bias?; approximate, overflow, batch_invariant"}};

  using GatedMlp::GatedMlp;
};

/// Elementwise out = gelu(gate) * up on [M,H] tensors, each of which may be a column slice (any row
/// stride). float32, bfloat16 or float16; computed in float32. Needs no workspace.
class Geglu {
 public:
  static constexpr std::string_view kPackage = "geglu-mlp";
  static constexpr LayerOp kOps[] = {
      {"geglu", "gate, up, out; approximate"},
      {"geglu_backward", "grad_out, gate, up, grad_gate, grad_up; approximate"}};

  struct Weights {                        ///< none: the options of the layer
    std::string approximate = kGeluTanh;  ///< kGeluTanh or kGeluErf
  };

  Geglu(const Kernel& kernel, Weights weights)
      : forward_(kernel.op("geglu")),
        backward_(kernel.op("geglu_backward")),
        weights_(std::move(weights)) {}

  void forward(const Tensor& gate, const Tensor& up, const Tensor& out,
               void* stream = nullptr) const {
    const Tensor tensors[] = {gate, up, out};
    const Attribute attributes[] = {Attribute(weights_.approximate.c_str())};
    forward_.run(tensors, attributes, {}, stream);
  }

  /// grad_gate = grad_out * up * gelu'(gate), grad_up = grad_out * gelu(gate). Writes the two
  /// gradients only.
  void backward(const Tensor& grad_out, const Tensor& gate, const Tensor& up,
                const Tensor& grad_gate, const Tensor& grad_up, void* stream = nullptr) const {
    const Tensor tensors[] = {grad_out, gate, up, grad_gate, grad_up};
    const Attribute attributes[] = {Attribute(weights_.approximate.c_str())};
    backward_.run(tensors, attributes, {}, stream);
  }

 private:
  Op forward_;
  Op backward_;
  Weights weights_;
};

}  // namespace kiln::layers
