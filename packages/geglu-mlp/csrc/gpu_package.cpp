// SPDX-License-Identifier: Apache-2.0
//
// Package: the GPU ops of geglu-mlp. The glue has checked the call against the schema; gating.hpp
// says which gelu it means.
#include "backward_check.hpp"
#include "gating.hpp"
#include "host/ops.hpp"
#include "package.gen.hpp"

namespace kiln::package {

size_t forward_workspace_bytes(const ForwardArguments& call) {
  return mlp_workspace_bytes(mlp_call(call, gating_of(call)));
}

int32_t forward(const ForwardArguments& call, kiln_error* error) {
  return mlp(mlp_call(call, gating_of(call)), error);
}

size_t training_forward_workspace_bytes(const TrainingForwardArguments& call) {
  return mlp_workspace_bytes(training_call(call, gating_of(call)));
}

int32_t training_forward(const TrainingForwardArguments& call, kiln_error* error) {
  return mlp(training_call(call, gating_of(call)), error);
}

size_t backward_workspace_bytes(const BackwardArguments& call) {
  return mlp_backward_workspace_bytes(mlp_backward_call(call, gating_of(call)));
}

int32_t backward(const BackwardArguments& call, kiln_error* error) {
  const int32_t status = check_backward(call, error);
  return status == KILN_OK ? mlp_backward(mlp_backward_call(call, gating_of(call)), error) : status;
}

size_t geglu_workspace_bytes(const GegluArguments&) {
  return 0;
}

int32_t geglu(const GegluArguments& call, kiln_error* error) {
  return pointwise(pointwise_call("geglu", call, gating_of(call)), error);
}

size_t geglu_backward_workspace_bytes(const GegluBackwardArguments&) {
  return 0;
}

int32_t geglu_backward(const GegluBackwardArguments& call, kiln_error* error) {
  return pointwise(pointwise_backward_call("geglu_backward", call, gating_of(call)), error);
}

}  // namespace kiln::package
