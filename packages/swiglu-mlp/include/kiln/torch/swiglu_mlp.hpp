// SPDX-License-Identifier: Apache-2.0
//
// SwigluMlp for LibTorch: see kiln/torch/gated_mlp.hpp.
#pragma once

#include "kiln/layers/swiglu_mlp.hpp"
#include "kiln/torch/gated_mlp.hpp"

namespace kiln::torch {

using SwigluMlpOptions = GatedMlpOptions<layers::SwigluMlp>;

/// (silu(gate) * up) down^T, as Llama has it; .attributes({.activation = …}) has the others.
class SwigluMlpImpl : public GatedMlpImpl<layers::SwigluMlp> {
 public:
  using GatedMlpImpl::GatedMlpImpl;
};
TORCH_MODULE(SwigluMlp);

}  // namespace kiln::torch
