// SPDX-License-Identifier: Apache-2.0
//
// In place: what package.json cannot say of an output's place, for the CPU and the GPU variants.
#pragma once

#include "package.gen.hpp"

namespace kiln::package {

/// The gradient of weight reads h and grad_y after that of h is written: grad_h then needs memory
/// of its own. The schema has seen that it overlaps them nowhere else.
inline int32_t check_in_place(const BackwardArguments& call, kiln_error* error) {
  if (!call.grad_weight.present || call.M == 0 || call.D == 0) return KILN_OK;
  const bool is_h = call.grad_h.data == call.h.data;
  if (!is_h && call.grad_h.data != call.grad_y.data) return KILN_OK;
  return sdk::fail(error, KILN_INVALID_ARGUMENT,
                   "backward: grad_h overlaps %s; expected memory of its own beside grad_weight",
                   is_h ? "h" : "grad_y");
}

}  // namespace kiln::package
