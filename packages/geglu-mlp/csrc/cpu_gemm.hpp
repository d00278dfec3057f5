// SPDX-License-Identifier: Apache-2.0
//
// GEMM: the CPU's forward. Rows are worked off in blocks: x is packed, the gated product writes h
// (fp32) in packed form, the down product reads it and writes y. A handful of rows (decode) takes
// plain dot products over the unpacked weights instead, which stream from memory once.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cpu_gate.hpp"

namespace geglu_mlp::cpu {

// T is float, Bfloat16 or Float16. A missing bias is null.
template <class T>
struct Mlp {
  const T* x;
  const T* gate;
  const T* up;
  const T* down;
  const T* gate_bias;
  const T* up_bias;
  const T* down_bias;
  T* y;
  T* gate_out;  // x gate^T + gate_bias and x up^T + up_bias, where they are to be kept; or null
  T* up_out;
  int64_t m, d, h;
  Gating gating;
};

// The same for every dtype: packed operands are fp32. SIZE_MAX if it does not fit a size_t.
size_t mlp_workspace_bytes(int64_t m, int64_t d, int64_t h);

template <class T>
void mlp(const Mlp<T>& call, void* workspace);

}  // namespace geglu_mlp::cpu
