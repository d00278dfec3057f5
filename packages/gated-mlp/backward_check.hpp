// SPDX-License-Identifier: Apache-2.0
//
// Backward_check: what no schema says of a call of backward. It has all that training_forward
// keeps, or nothing of it; and a gradient is written or added, not both.
#pragma once

#include <kiln/sdk/types.hpp>

namespace kiln::package {

template <class Arguments>
int32_t check_backward(const Arguments& call, kiln_error* error) {
  if (call.gate_out.present != call.up_out.present) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "backward: %s is missing; expected gate_out and up_out, or neither",
                     call.gate_out.present ? "up_out" : "gate_out");
  }
  const struct {
    const char* name;
    bool written;
    bool added;
  } gradients[] = {
      {"gate", call.grad_gate.present, call.main_grad_gate.present},
      {"up", call.grad_up.present, call.main_grad_up.present},
      {"down", call.grad_down.present, call.main_grad_down.present},
      {"gate_bias", call.grad_gate_bias.present, call.main_grad_gate_bias.present},
      {"up_bias", call.grad_up_bias.present, call.main_grad_up_bias.present},
      {"down_bias", call.grad_down_bias.present, call.main_grad_down_bias.present},
  };
  for (const auto& each : gradients) {
    if (!each.written || !each.added) continue;
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "backward: grad_%s and main_grad_%s are given; expected one of them",
                     each.name, each.name);
  }
  return KILN_OK;
}

}  // namespace kiln::package
