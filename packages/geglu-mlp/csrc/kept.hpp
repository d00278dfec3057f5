// SPDX-License-Identifier: Apache-2.0
//
// Kept: whether a call of backward has what training_forward keeps: all of it, or nothing.
#pragma once

#include <kiln/sdk/types.hpp>

namespace kiln::package {

template <class Arguments>
int32_t check_kept(const Arguments& call, kiln_error* error) {
  if (call.gate_out.present == call.up_out.present) return KILN_OK;
  return sdk::fail(error, KILN_INVALID_ARGUMENT,
                   "backward: %s is missing; expected gate_out and up_out, or neither",
                   call.gate_out.present ? "up_out" : "gate_out");
}

}  // namespace kiln::package
