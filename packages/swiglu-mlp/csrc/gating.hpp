// SPDX-License-Identifier: Apache-2.0
//
// Gating: which gate a call of swiglu-mlp means, and the refusal of a limit that bounds nothing.
#pragma once

#include <kiln/sdk/types.hpp>

#include "attributes.hpp"
#include "gate.h"

namespace kiln::package {

template <class Arguments>
gated_mlp::Gating gating_of(const Arguments& call) {
  using gated_mlp::Gate;
  using Activation = typename Arguments::Activation;
  const float limit = static_cast<float>(call.limit);
  const unsigned greatest = greatest_of(call);
  switch (call.activation) {
    case Activation::kSilu:
      return {Gate::kSilu, limit, greatest};
    case Activation::kRelu:
      return {Gate::kRelu, limit, greatest};
    case Activation::kSigmoid:
      return {Gate::kSigmoid, limit, greatest};
    case Activation::kSiluClamped:
      return {Gate::kSiluClamped, limit, greatest};
  }
  return {Gate::kSilu, limit, greatest};
}

template <class Arguments>
int32_t check_limit(const char* op, const Arguments& call, kiln_error* error) {
  if (call.limit > 0) return KILN_OK;  // a NaN is not
  return sdk::fail(error, KILN_INVALID_ARGUMENT, "%s: limit is %g; expected a number above 0", op,
                   call.limit);
}

}  // namespace kiln::package
