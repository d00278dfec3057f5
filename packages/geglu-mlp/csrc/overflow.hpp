// SPDX-License-Identifier: Apache-2.0
//
// Overflow: the attribute that says what becomes of an h that float16 does not hold.
#pragma once

#include "gate.h"

namespace kiln::package {

// For Gating::greatest. An op without the attribute leaves infinities.
template <class Arguments>
unsigned greatest_of(const Arguments& call) {
  if constexpr (requires { call.overflow; }) {
    if (call.overflow == Arguments::Overflow::kSaturate) return geglu_mlp::kLargestFloat16s;
  }
  return geglu_mlp::kInfiniteFloat16s;
}

}  // namespace kiln::package
