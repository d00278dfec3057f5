// SPDX-License-Identifier: Apache-2.0
//
// Gates: those that this package's GPU kernels have. A package that shares the kernels has a
// gates.h of its own, hence #include <gates.h> there: its csrc folder comes first.
#pragma once

#include "gate.h"

namespace geglu_mlp {

using PackageGates = Gates<Gate::kGelu, Gate::kGeluTanh>;

}  // namespace geglu_mlp
