// SPDX-License-Identifier: Apache-2.0
//
// Ops: checked calls of a package's glue as calls of the CPU kernels. For every package whose ops
// have these tensors; which gate, its attributes say. Before it: cpu_package.cpp. After it:
// cpu_gemm, cpu_backward, cpu_pointwise. No state, no heap.
#pragma once

#include <kiln/sdk/types.hpp>

#include "attributes.hpp"
#include "cpu/backward.hpp"
#include "cpu/gemm.hpp"
#include "cpu/pointwise.hpp"
#include "cpu/vector.hpp"

namespace gated_mlp::cpu {

// A CPU has one kernel for each product: none can be named.
inline int32_t refuse_pins(const char* op, const char* kernels, kiln_error* error) {
  if (*kernels == '\0') return KILN_OK;
  return kiln::sdk::fail(error, KILN_INVALID_ARGUMENT,
                         "%s: kernels is \"%.60s\"; expected \"\": a CPU has no others", op,
                         kernels);
}

// Calls function with a null pointer of the element type.
template <class Function>
void with_element(kiln::sdk::DType dtype, const Function& function) {
  switch (dtype) {
    case kiln::sdk::DType::kFloat32:
      function(static_cast<float*>(nullptr));
      return;
    case kiln::sdk::DType::kFloat16:
      function(static_cast<Float16*>(nullptr));
      return;
    case kiln::sdk::DType::kBFloat16:
      function(static_cast<Bfloat16*>(nullptr));
      return;
    default:  // the schema allows no other
      return;
  }
}

template <class T>
T* data(const kiln::sdk::Tensor& tensor) {
  return tensor.present ? static_cast<T*>(tensor.data) : nullptr;
}

template <class T>
Rows<T> rows(const kiln::sdk::Tensor& tensor) {
  return {static_cast<T*>(tensor.data), tensor.stride[0]};
}

// Tensors that are not present are not kept.
template <class Arguments>
void run_forward_keeping(const kiln::sdk::Tensor& gate_out, const kiln::sdk::Tensor& up_out,
                         const Arguments& call, Gating gating) {
  if (call.M == 0 || (call.D == 0 && !gate_out.present)) return;
  with_element(call.x.dtype, [&]<class T>(T*) {
    const Mlp<T> one = {data<const T>(call.x),
                        data<const T>(call.gate),
                        data<const T>(call.up),
                        data<const T>(call.down),
                        data<const T>(call.gate_bias),
                        data<const T>(call.up_bias),
                        data<const T>(call.down_bias),
                        data<const T>(call.residual),
                        data<T>(call.y),
                        data<T>(gate_out),
                        data<T>(up_out),
                        call.M,
                        call.D,
                        call.H,
                        gating,
                        kiln::package::is_invariant(call),
                        call.threads};
    mlp(one, call.workspace);
  });
}

template <class Arguments>
void run_forward(const Arguments& call, Gating gating) {
  run_forward_keeping({}, {}, call, gating);
}

template <class Arguments>
void run_training_forward(const Arguments& call, Gating gating) {
  run_forward_keeping(call.gate_out, call.up_out, call, gating);
}

template <class Arguments>
void run_backward(const Arguments& call, Gating gating) {
  with_element(call.x.dtype, [&]<class T>(T*) {
    const auto gradient = [](const kiln::sdk::Tensor& written, const kiln::sdk::Tensor& added) {
      return Gradient<T>{data<T>(written), data<float>(added)};
    };
    const MlpBackward<T> one = {
        .grad_y = data<const T>(call.grad_y),
        .x = data<const T>(call.x),
        .gate = data<const T>(call.gate),
        .up = data<const T>(call.up),
        .down = data<const T>(call.down),
        .gate_bias = data<const T>(call.gate_bias),
        .up_bias = data<const T>(call.up_bias),
        .gate_out = data<const T>(call.gate_out),
        .up_out = data<const T>(call.up_out),
        .grad_x = data<T>(call.grad_x),
        .grad_gate = gradient(call.grad_gate, call.main_grad_gate),
        .grad_up = gradient(call.grad_up, call.main_grad_up),
        .grad_down = gradient(call.grad_down, call.main_grad_down),
        .grad_gate_bias = gradient(call.grad_gate_bias, call.main_grad_gate_bias),
        .grad_up_bias = gradient(call.grad_up_bias, call.main_grad_up_bias),
        .grad_down_bias = gradient(call.grad_down_bias, call.main_grad_down_bias),
        .m = call.M,
        .d = call.D,
        .h = call.H,
        .gating = gating,
        .threads = call.threads};
    mlp_backward(one, call.workspace);
  });
}

template <class Arguments>
void run_pointwise(const Arguments& call, Gating gating) {
  with_element(call.gate.dtype, [&]<class T>(T*) {
    pointwise(Pointwise<T>{rows<const T>(call.gate), rows<const T>(call.up), rows<T>(call.out),
                           call.M, call.H, gating, call.threads});
  });
}

template <class Arguments>
void run_pointwise_backward(const Arguments& call, Gating gating) {
  with_element(call.gate.dtype, [&]<class T>(T*) {
    pointwise_backward(PointwiseBackward<T>{
        rows<const T>(call.grad_out), rows<const T>(call.gate), rows<const T>(call.up),
        rows<T>(call.grad_gate), rows<T>(call.grad_up), call.M, call.H, gating, call.threads});
  });
}

}  // namespace gated_mlp::cpu
