// SPDX-License-Identifier: Apache-2.0
//
// Backward: the gradients of the CPU's forward. The hidden columns are worked off in blocks: a
// block reads its columns of gate_out and up_out, or computes them again, makes their gradients of
// them (fp32) and from these the block's part of each output. Only grad_x sums over the blocks.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cpu/gate.hpp"

namespace gated_mlp::cpu {

// Where the gradient of a weight or a bias goes: it is written, or added to what is there, or, with
// neither, not computed.
template <class T>
struct Gradient {
  T* written;
  float* added;
  bool wanted() const { return written != nullptr || added != nullptr; }
};

// T is float, Bfloat16 or Float16. A missing bias is null, and so is a grad_x that nobody asked
// for.
template <class T>
struct MlpBackward {
  const T* grad_y;
  const T* x;
  const T* gate;
  const T* up;
  const T* down;
  const T* gate_bias;
  const T* up_bias;
  const T* gate_out;  // what forward kept, or both null
  const T* up_out;
  T* grad_x;
  Gradient<T> grad_gate;
  Gradient<T> grad_up;
  Gradient<T> grad_down;
  Gradient<T> grad_gate_bias;
  Gradient<T> grad_up_bias;
  Gradient<T> grad_down_bias;
  int64_t m, d, h;
  Gating gating;
  uint32_t threads = 0;  // the most that the call may have; 0: any number
};

// The same for every dtype and choice of outputs. SIZE_MAX if it does not fit a size_t.
size_t mlp_backward_workspace_bytes(int64_t m, int64_t d, int64_t h);

template <class T>
void mlp_backward(const MlpBackward<T>& call, void* workspace);

}  // namespace gated_mlp::cpu
