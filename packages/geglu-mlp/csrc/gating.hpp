// SPDX-License-Identifier: Apache-2.0
//
// Gating: which gate a call of geglu-mlp means.
#pragma once

#include "attributes.hpp"
#include "gate.h"

namespace kiln::package {

template <class Arguments>
gated_mlp::Gating gating_of(const Arguments& call) {
  const bool exact = call.approximate == Arguments::Approximate::kNone;
  return {exact ? gated_mlp::Gate::kGelu : gated_mlp::Gate::kGeluTanh, 0.0f, greatest_of(call)};
}

}  // namespace kiln::package
