// SPDX-License-Identifier: Apache-2.0
//
// Package: the CPU ops of swiglu-mlp, on the kernels of gated-mlp. The glue has checked the call
// against the schema; gating.hpp says which gate it means.
#include "backward_check.hpp"
#include "cpu/ops.hpp"
#include "gating.hpp"
#include "package.gen.hpp"

namespace kiln::package {
namespace {

namespace cpu = gated_mlp::cpu;

template <class Arguments>
int32_t run_gated(const char* op, const Arguments& call,
                  void (*run)(const Arguments&, gated_mlp::Gating), kiln_error* error) {
  const int32_t status = check_limit(op, call, error);
  if (status == KILN_OK) run(call, gating_of(call));
  return status;
}

}  // namespace

size_t forward_workspace_bytes(const ForwardArguments& call) {
  return cpu::mlp_workspace_bytes(call.M, call.D, call.H);
}

int32_t forward(const ForwardArguments& call, kiln_error* error) {
  const int32_t status = cpu::refuse_pins("forward", call.kernels, error);
  return status == KILN_OK ? run_gated("forward", call, cpu::run_forward<ForwardArguments>, error)
                           : status;
}

size_t training_forward_workspace_bytes(const TrainingForwardArguments& call) {
  return cpu::mlp_workspace_bytes(call.M, call.D, call.H);
}

int32_t training_forward(const TrainingForwardArguments& call, kiln_error* error) {
  const int32_t status = cpu::refuse_pins("training_forward", call.kernels, error);
  return status == KILN_OK ? run_gated("training_forward", call, cpu::run_training_forward, error)
                           : status;
}

size_t backward_workspace_bytes(const BackwardArguments& call) {
  return cpu::mlp_backward_workspace_bytes(call.M, call.D, call.H);
}

int32_t backward(const BackwardArguments& call, kiln_error* error) {
  int32_t status = cpu::refuse_pins("backward", call.kernels, error);
  if (status == KILN_OK) status = check_backward(call, error);
  return status == KILN_OK ? run_gated("backward", call, cpu::run_backward, error) : status;
}

size_t swiglu_workspace_bytes(const SwigluArguments&) {
  return 0;
}

int32_t swiglu(const SwigluArguments& call, kiln_error* error) {
  return run_gated("swiglu", call, cpu::run_pointwise<SwigluArguments>, error);
}

size_t swiglu_backward_workspace_bytes(const SwigluBackwardArguments&) {
  return 0;
}

int32_t swiglu_backward(const SwigluBackwardArguments& call, kiln_error* error) {
  return run_gated("swiglu_backward", call, cpu::run_pointwise_backward<SwigluBackwardArguments>,
                   error);
}

}  // namespace kiln::package
