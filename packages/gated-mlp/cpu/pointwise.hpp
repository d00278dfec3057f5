// SPDX-License-Identifier: Apache-2.0
//
// Pointwise: out = a(gate) * f(up), see gate.h, and its gradients on the CPU, on rows with any
// stride.
#pragma once

#include <stdint.h>

#include "cpu/gate.hpp"

namespace gated_mlp::cpu {

template <class T>
struct Rows {
  T* data;
  int64_t stride;
};

template <class T>
struct Pointwise {
  Rows<const T> gate, up;
  Rows<T> out;
  int64_t rows, columns;
  Gating gating;
  uint32_t threads = 0;  // the most that the call may have; 0: any number
};

// grad_gate = grad_out f(up) a'(gate), grad_up = grad_out a(gate) f'(up).
template <class T>
struct PointwiseBackward {
  Rows<const T> grad_out, gate, up;
  Rows<T> grad_gate, grad_up;
  int64_t rows, columns;
  Gating gating;
  uint32_t threads = 0;  // the most that the call may have; 0: any number
};

template <class T>
void pointwise(const Pointwise<T>& call);

template <class T>
void pointwise_backward(const PointwiseBackward<T>& call);

}  // namespace gated_mlp::cpu
