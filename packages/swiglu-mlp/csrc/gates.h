// SPDX-License-Identifier: Apache-2.0
//
// Gates: those that the GPU kernels of gated-mlp have in this package.
#pragma once

#include "gate.h"

namespace gated_mlp {

using PackageGates = Gates<Gate::kSilu, Gate::kRelu, Gate::kSigmoid, Gate::kSiluClamped>;

}  // namespace gated_mlp
