// SPDX-License-Identifier: Apache-2.0
//
// SwigluMlp: the layer of the swiglu-mlp package. gated_mlp.hpp has its members and what is said of
// checks, memory and threads.
//
// `activation` says what a(gate) * f(up) is; f(u) = u unless said otherwise, s(z) = 1 / (1 + e^-z):
//   kSilu          a(g) = g s(g): SwiGLU
//   kRelu          a(g) = max(g, 0): ReGLU
//   kSigmoid       a(g) = s(g): GLU
//   kSiluClamped   a(g) = c s(1.702 c) with c = min(g, limit), f(u) = min(max(u, -limit), limit)
//                  + 1: that of gpt-oss, whose limit is 7. Where an input is clamped its gradient
//                  is 0
// An op throws kInvalidCall for a limit that is not above 0.
#pragma once

#include "kiln/layers/gated_mlp.hpp"
#include "kiln/ops/swiglu_mlp.hpp"

namespace kiln::layers {

/// y[M,D] = (a(x gate^T + gate_bias) * f(x up^T + up_bias)) down^T + down_bias + residual.
class SwigluMlp : public GatedMlp<ops::swiglu_mlp::Forward, ops::swiglu_mlp::TrainingForward,
                                  ops::swiglu_mlp::Backward> {
 public:
  using Activation = Attributes::Activation;
  static constexpr int kVersion = ops::swiglu_mlp::kVersion;
  using GatedMlp::GatedMlp;
};

}  // namespace kiln::layers
