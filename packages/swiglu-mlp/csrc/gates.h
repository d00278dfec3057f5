// SPDX-License-Identifier: Apache-2.0
//
// Gates: those that the GPU kernels of geglu-mlp have in this package. Found before geglu-mlp's
// own, since a package's csrc folder comes before those that it shares.
#pragma once

#include "gate.h"

namespace geglu_mlp {

using PackageGates = Gates<Gate::kSilu, Gate::kRelu, Gate::kSigmoid, Gate::kSiluClamped>;

}  // namespace geglu_mlp
