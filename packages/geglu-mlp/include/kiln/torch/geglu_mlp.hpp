// SPDX-License-Identifier: Apache-2.0
//
// GegluMlp for LibTorch: see kiln/torch/gated_mlp.hpp.
#pragma once

#include "kiln/layers/geglu_mlp.hpp"
#include "kiln/torch/gated_mlp.hpp"

namespace kiln::torch {

using GegluMlpOptions = GatedMlpOptions<layers::GegluMlp>;

/// (gelu(gate) * up) down^T, as Gemma has it, with gelu's tanh form;
/// .attributes({.approximate = layers::GegluMlp::Approximate::kNone}) is the other.
class GegluMlpImpl : public GatedMlpImpl<layers::GegluMlp> {
 public:
  using GatedMlpImpl::GatedMlpImpl;
};
TORCH_MODULE(GegluMlp);

}  // namespace kiln::torch
