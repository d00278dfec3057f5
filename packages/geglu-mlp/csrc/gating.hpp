// SPDX-License-Identifier: Apache-2.0
//
// Gating: which gate a call of geglu-mlp means.
#pragma once

#include "attributes.hpp"
#include "gate.h"

namespace kiln::package {

template <class Arguments>
geglu_mlp::Gating gating_of(const Arguments& call) {
  const bool exact = call.approximate == Arguments::Approximate::kNone;
  return {exact ? geglu_mlp::Gate::kGelu : geglu_mlp::Gate::kGeluTanh, 0.0f, greatest_of(call)};
}

}  // namespace kiln::package
