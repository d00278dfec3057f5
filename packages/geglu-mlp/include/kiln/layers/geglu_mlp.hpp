// SPDX-License-Identifier: Apache-2.0
//
// GegluMlp: the layer of the geglu-mlp package. gated_mlp.hpp has its members and what is said of
// checks, memory and threads.
#pragma once

#include "kiln/layers/gated_mlp.hpp"
#include "kiln/ops/geglu_mlp.hpp"

namespace kiln::layers {

/// y[M,D] = (gelu(x gate^T + gate_bias) * (x up^T + up_bias)) down^T + down_bias + residual.
class GegluMlp : public GatedMlp<ops::geglu_mlp::Forward, ops::geglu_mlp::TrainingForward,
                                 ops::geglu_mlp::Backward> {
 public:
  using Approximate = Attributes::Approximate;  ///< gelu's two forms, in PyTorch's words
  static constexpr int kVersion = ops::geglu_mlp::kVersion;
  using GatedMlp::GatedMlp;
};

}  // namespace kiln::layers
