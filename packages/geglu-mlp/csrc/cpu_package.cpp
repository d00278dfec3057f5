// SPDX-License-Identifier: Apache-2.0
//
// Package: the CPU ops of geglu-mlp. The glue has checked the call against the schema; this file
// picks the dtype and calls the kernels. No state, no heap.
#include <kiln/sdk/types.hpp>

#include "cpu_gemm.hpp"
#include "cpu_pointwise.hpp"
#include "cpu_vector.hpp"
#include "package.gen.hpp"

namespace kiln::package {
namespace {

namespace cpu = geglu_mlp::cpu;

// Calls function with a null pointer of the element type.
template <class Function>
void with_element(sdk::DType dtype, const Function& function) {
  switch (dtype) {
    case sdk::DType::kFloat32:
      function(static_cast<float*>(nullptr));
      return;
    case sdk::DType::kFloat16:
      function(static_cast<cpu::Float16*>(nullptr));
      return;
    case sdk::DType::kBFloat16:
      function(static_cast<cpu::Bfloat16*>(nullptr));
      return;
  }
}

template <class T>
T* data(const sdk::Tensor& tensor) {
  return tensor.present ? static_cast<T*>(tensor.data) : nullptr;
}

template <class T>
cpu::Rows<T> rows(const sdk::Tensor& tensor) {
  return {static_cast<T*>(tensor.data), tensor.stride[0]};
}

}  // namespace

size_t forward_workspace_bytes(const ForwardArguments& call) {
  return cpu::mlp_workspace_bytes(call.M, call.D, call.H);
}

int32_t forward(const ForwardArguments& call, kiln_error*) {
  if (call.M == 0 || call.D == 0) return KILN_OK;
  with_element(call.x.dtype, [&]<class T>(T*) {
    const cpu::Mlp<T> mlp = {data<const T>(call.x),
                             data<const T>(call.gate),
                             data<const T>(call.up),
                             data<const T>(call.down),
                             data<const T>(call.gate_bias),
                             data<const T>(call.up_bias),
                             data<const T>(call.down_bias),
                             data<T>(call.y),
                             call.M,
                             call.D,
                             call.H,
                             call.approximate == ForwardArguments::Approximate::kNone};
    cpu::mlp(mlp, call.workspace);
  });
  return KILN_OK;
}

size_t geglu_workspace_bytes(const GegluArguments&) {
  return 0;
}

int32_t geglu(const GegluArguments& call, kiln_error*) {
  with_element(call.gate.dtype, [&]<class T>(T*) {
    cpu::geglu(cpu::Geglu<T>{rows<const T>(call.gate), rows<const T>(call.up), rows<T>(call.out),
                             call.M, call.H,
                             call.approximate == GegluArguments::Approximate::kNone});
  });
  return KILN_OK;
}

size_t geglu_backward_workspace_bytes(const GegluBackwardArguments&) {
  return 0;
}

int32_t geglu_backward(const GegluBackwardArguments& call, kiln_error*) {
  with_element(call.gate.dtype, [&]<class T>(T*) {
    cpu::geglu_backward(cpu::GegluBackward<T>{
        rows<const T>(call.grad_out), rows<const T>(call.gate), rows<const T>(call.up),
        rows<T>(call.grad_gate), rows<T>(call.grad_up), call.M, call.H,
        call.approximate == GegluBackwardArguments::Approximate::kNone});
  });
  return KILN_OK;
}

}  // namespace kiln::package
