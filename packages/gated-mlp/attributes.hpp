// SPDX-License-Identifier: Apache-2.0
//
// Attributes: those that the ops of every package with these kernels have, as the kernels take
// them.
#pragma once

#include "gate.h"

namespace kiln::package {

// What becomes of an h that float16 does not hold, for Gating::greatest. An op without the
// attribute leaves infinities.
template <class Arguments>
unsigned greatest_of(const Arguments& call) {
  if constexpr (requires { call.overflow; }) {
    if (call.overflow == Arguments::Overflow::kSaturate) return gated_mlp::kLargestFloat16s;
  }
  return gated_mlp::kInfiniteFloat16s;
}

// Whether a row's bits must not depend on M.
template <class Arguments>
bool is_invariant(const Arguments& call) {
  return call.batch_invariant == Arguments::BatchInvariant::kYes;
}

}  // namespace kiln::package
