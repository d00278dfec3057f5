// SPDX-License-Identifier: Apache-2.0
//
// Gates: those that the GPU kernels of this package have.
#pragma once

#include "gate.h"

namespace gated_mlp {

using PackageGates = Gates<Gate::kSilu, Gate::kGelu, Gate::kGeluTanh, Gate::kRelu, Gate::kSigmoid,
                           Gate::kSiluClamped>;

}  // namespace gated_mlp
