// SPDX-License-Identifier: Apache-2.0
//
// Package: the CPU ops of geglu-mlp. The glue has checked the call against the schema; gating.hpp
// says which gelu it means.
#include "backward_check.hpp"
#include "cpu/ops.hpp"
#include "gating.hpp"
#include "package.gen.hpp"

namespace kiln::package {

size_t forward_workspace_bytes(const ForwardArguments& call) {
  return gated_mlp::cpu::mlp_workspace_bytes(call.M, call.D, call.H);
}

int32_t forward(const ForwardArguments& call, kiln_error* error) {
  const int32_t status = gated_mlp::cpu::refuse_pins("forward", call.kernels, error);
  if (status == KILN_OK) gated_mlp::cpu::run_forward(call, gating_of(call));
  return status;
}

size_t training_forward_workspace_bytes(const TrainingForwardArguments& call) {
  return gated_mlp::cpu::mlp_workspace_bytes(call.M, call.D, call.H);
}

int32_t training_forward(const TrainingForwardArguments& call, kiln_error* error) {
  const int32_t status = gated_mlp::cpu::refuse_pins("training_forward", call.kernels, error);
  if (status == KILN_OK) gated_mlp::cpu::run_training_forward(call, gating_of(call));
  return status;
}

size_t backward_workspace_bytes(const BackwardArguments& call) {
  return gated_mlp::cpu::mlp_backward_workspace_bytes(call.M, call.D, call.H);
}

int32_t backward(const BackwardArguments& call, kiln_error* error) {
  int32_t status = gated_mlp::cpu::refuse_pins("backward", call.kernels, error);
  if (status == KILN_OK) status = check_backward(call, error);
  if (status == KILN_OK) gated_mlp::cpu::run_backward(call, gating_of(call));
  return status;
}

size_t geglu_workspace_bytes(const GegluArguments&) {
  return 0;
}

int32_t geglu(const GegluArguments& call, kiln_error*) {
  gated_mlp::cpu::run_pointwise(call, gating_of(call));
  return KILN_OK;
}

size_t geglu_backward_workspace_bytes(const GegluBackwardArguments&) {
  return 0;
}

int32_t geglu_backward(const GegluBackwardArguments& call, kiln_error*) {
  gated_mlp::cpu::run_pointwise_backward(call, gating_of(call));
  return KILN_OK;
}

}  // namespace kiln::package
