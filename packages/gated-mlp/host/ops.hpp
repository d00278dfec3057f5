// SPDX-License-Identifier: Apache-2.0
//
// Ops: checked calls of a package's glue as launches of the GPU kernels. For every package whose
// ops have these tensors; which gate, its attributes say. Before it: gpu_package.cpp. After it:
// gpu_gemm.hpp and cublaslt_plan.h.
#pragma once

#include <kiln/sdk/device.hpp>
#include <kiln/sdk/types.hpp>

#include "attributes.hpp"
#include "gate.h"

namespace kiln::package {

struct MlpCall : sdk::Placement {
  const char* op;  // for errors
  sdk::Tensor x, gate, up, down, gate_bias, up_bias, down_bias, residual, y;
  sdk::Tensor gate_out, up_out;  // training_forward only
  int64_t M, D, H;
  gated_mlp::Gating gating;
  bool invariant;       // a row's bits must not depend on M
  const char* kernels;  // pins.h
};

size_t mlp_workspace_bytes(const MlpCall& call);
int32_t mlp(const MlpCall& call, kiln_error* error);

// The gradients that are not present are not computed. Those of float32 are weights' main ones:
// they are added to.
struct MlpBackwardCall : sdk::Placement {
  sdk::Tensor grad_y, x, gate, up, down, gate_bias, up_bias, gate_out, up_out;
  sdk::Tensor grad_x, grad_gate, grad_up, grad_down, grad_gate_bias, grad_up_bias, grad_down_bias;
  int64_t M, D, H;
  gated_mlp::Gating gating;
  bool invariant;       // as forward's, of grad_x
  const char* kernels;  // pins.h
};

inline bool adds(const sdk::Tensor& gradient) {
  return gradient.present && gradient.dtype == sdk::DType::kFloat32;
}

size_t mlp_backward_workspace_bytes(const MlpBackwardCall& call);
int32_t mlp_backward(const MlpBackwardCall& call, kiln_error* error);

struct PointwiseCall : sdk::Placement {
  const char* op;        // for errors
  sdk::Tensor grad_out;  // not present: forward
  sdk::Tensor gate, up;
  sdk::Tensor out;      // backward: gate's gradient
  sdk::Tensor grad_up;  // backward only
  int64_t rows, columns;
  gated_mlp::Gating gating;
};

int32_t pointwise(const PointwiseCall& call, kiln_error* error);

// From the arguments that the build generates.
template <class Arguments>
MlpCall mlp_call(const Arguments& op, gated_mlp::Gating gating) {
  return {op,           "forward",  op.x,         op.gate,     op.up,  op.down,
          op.gate_bias, op.up_bias, op.down_bias, op.residual, op.y,   {},
          {},           op.M,       op.D,         op.H,        gating, is_invariant(op),
          op.kernels};
}

template <class Arguments>
MlpCall training_call(const Arguments& op, gated_mlp::Gating gating) {
  MlpCall call = mlp_call(op, gating);
  call.op = "training_forward";
  call.gate_out = op.gate_out;
  call.up_out = op.up_out;
  return call;
}

template <class Arguments>
MlpBackwardCall mlp_backward_call(const Arguments& op, gated_mlp::Gating gating) {
  const auto either = [](const sdk::Tensor& written, const sdk::Tensor& added) {
    return added.present ? added : written;
  };
  return {op,
          op.grad_y,
          op.x,
          op.gate,
          op.up,
          op.down,
          op.gate_bias,
          op.up_bias,
          op.gate_out,
          op.up_out,
          op.grad_x,
          either(op.grad_gate, op.main_grad_gate),
          either(op.grad_up, op.main_grad_up),
          either(op.grad_down, op.main_grad_down),
          either(op.grad_gate_bias, op.main_grad_gate_bias),
          either(op.grad_up_bias, op.main_grad_up_bias),
          either(op.grad_down_bias, op.main_grad_down_bias),
          op.M,
          op.D,
          op.H,
          gating,
          is_invariant(op),
          op.kernels};
}

template <class Arguments>
PointwiseCall pointwise_call(const char* name, const Arguments& op, gated_mlp::Gating gating) {
  return {op, name, {}, op.gate, op.up, op.out, {}, op.M, op.H, gating};
}

template <class Arguments>
PointwiseCall pointwise_backward_call(const char* name, const Arguments& op,
                                      gated_mlp::Gating gating) {
  return {op, name, op.grad_out, op.gate, op.up, op.grad_gate, op.grad_up, op.M, op.H, gating};
}

}  // namespace kiln::package
