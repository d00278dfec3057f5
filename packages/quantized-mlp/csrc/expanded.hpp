// SPDX-License-Identifier: Apache-2.0
//
// Expanded: the host side of calls of so many tokens that weights are made numbers of 16 bits
// first, chunk after chunk. Before it: gpu.cpp, which chooses the road. After it: smxx_expanded.cu,
// sm90_expanded.cu.
#pragma once

#include <kiln/sdk/device.hpp>

#include "plan.h"

namespace kiln::package {

// One product, but for its plan. `normed`: by its kernel.
struct Product {
  bool float16;
  quantized_mlp::Codes codes;
  quantized_mlp::ProductArguments arguments;
  bool normed = false;
  quantized_mlp::NormArguments norm = {};
};

// The gated product, then the other. Their `parts` have room for a chunk of `chunk_bytes`; on SM
// 9.0, where the next one's weights are made meanwhile, for two.
int32_t launch_expanded(const sdk::OnDevice& gpu, const Product (&products)[2],
                        const quantized_mlp::ExpandedPlan& plan, size_t chunk_bytes, void* stream,
                        kiln_error* error);

}  // namespace kiln::package
