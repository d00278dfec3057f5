// SPDX-License-Identifier: Apache-2.0
//
// Package: the CPU ops of swiglu-mlp, on the kernels of geglu-mlp. The glue has checked the call
// against the schema; this file says which gate it means, and refuses a limit that is none.
#include "cpu_ops.hpp"
#include "package.gen.hpp"

namespace kiln::package {
namespace {

namespace cpu = geglu_mlp::cpu;
using geglu_mlp::Gate;

template <class Activation>
Gate gate_of(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return Gate::kSilu;
    case Activation::kRelu:
      return Gate::kRelu;
    case Activation::kSigmoid:
      return Gate::kSigmoid;
    case Activation::kSiluClamped:
      return Gate::kSiluClamped;
  }
  return Gate::kSilu;
}

// Calls run(call, gating), unless the limit is not above 0: then no number is within it.
template <class Arguments>
int32_t run_gated(const char* op, const Arguments& call, void (*run)(const Arguments&, cpu::Gating),
                  kiln_error* error) {
  if (!(call.limit > 0)) {  // a NaN, too
    return sdk::fail(error, KILN_INVALID_ARGUMENT, "%s: limit is %g; expected a number above 0", op,
                     call.limit);
  }
  run(call, {gate_of(call.activation), static_cast<float>(call.limit)});
  return KILN_OK;
}

}  // namespace

size_t forward_workspace_bytes(const ForwardArguments& call) {
  return cpu::mlp_workspace_bytes(call.M, call.D, call.H);
}

int32_t forward(const ForwardArguments& call, kiln_error* error) {
  return run_gated("forward", call, cpu::run_forward<ForwardArguments>, error);
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
