// SPDX-License-Identifier: Apache-2.0
//
// Pointwise: out = gelu(gate) * up and its gradients on the CPU, on rows with any stride.
#pragma once

#include <stdint.h>

namespace geglu_mlp::cpu {

template <class T>
struct Rows {
  T* data;
  int64_t stride;
};

template <class T>
struct Geglu {
  Rows<const T> gate, up;
  Rows<T> out;
  int64_t rows, columns;
  bool exact;
};

template <class T>
struct GegluBackward {
  Rows<const T> grad_out, gate, up;
  Rows<T> grad_gate, grad_up;
  int64_t rows, columns;
  bool exact;
};

template <class T>
void geglu(const Geglu<T>& call);

template <class T>
void geglu_backward(const GegluBackward<T>& call);

}  // namespace geglu_mlp::cpu
