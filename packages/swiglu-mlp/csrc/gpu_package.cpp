// SPDX-License-Identifier: Apache-2.0
//
// Package: the GPU ops of swiglu-mlp, on the kernels of gated-mlp. The glue has checked the call
// against the schema; gating.hpp says which gate it means.
#include "backward_check.hpp"
#include "gating.hpp"
#include "host/ops.hpp"
#include "package.gen.hpp"

namespace kiln::package {

size_t forward_workspace_bytes(const ForwardArguments& call) {
  return mlp_workspace_bytes(mlp_call(call, gating_of(call)));
}

int32_t forward(const ForwardArguments& call, kiln_error* error) {
  const int32_t status = check_limit("forward", call, error);
  return status == KILN_OK ? mlp(mlp_call(call, gating_of(call)), error) : status;
}

size_t training_forward_workspace_bytes(const TrainingForwardArguments& call) {
  return mlp_workspace_bytes(training_call(call, gating_of(call)));
}

int32_t training_forward(const TrainingForwardArguments& call, kiln_error* error) {
  const int32_t status = check_limit("training_forward", call, error);
  return status == KILN_OK ? mlp(training_call(call, gating_of(call)), error) : status;
}

size_t backward_workspace_bytes(const BackwardArguments& call) {
  return mlp_backward_workspace_bytes(mlp_backward_call(call, gating_of(call)));
}

int32_t backward(const BackwardArguments& call, kiln_error* error) {
  int32_t status = check_limit("backward", call, error);
  if (status == KILN_OK) status = check_backward(call, error);
  return status == KILN_OK ? mlp_backward(mlp_backward_call(call, gating_of(call)), error) : status;
}

size_t swiglu_workspace_bytes(const SwigluArguments&) {
  return 0;
}

int32_t swiglu(const SwigluArguments& call, kiln_error* error) {
  const int32_t status = check_limit("swiglu", call, error);
  return status == KILN_OK ? pointwise(pointwise_call("swiglu", call, gating_of(call)), error)
                           : status;
}

size_t swiglu_backward_workspace_bytes(const SwigluBackwardArguments&) {
  return 0;
}

int32_t swiglu_backward(const SwigluBackwardArguments& call, kiln_error* error) {
  const int32_t status = check_limit("swiglu_backward", call, error);
  return status == KILN_OK
             ? pointwise(pointwise_backward_call("swiglu_backward", call, gating_of(call)), error)
             : status;
}

}  // namespace kiln::package
