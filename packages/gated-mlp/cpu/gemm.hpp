// SPDX-License-Identifier: Apache-2.0
//
// GEMM: the CPU's forward. Rows are worked off in blocks: x is packed, the gated product writes h
// in packed form, the down product reads it and writes y. Here the weights are packed, too, and all
// is fp32; cpu_dots.hpp has the products that read the weights where they are.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cpu/gate.hpp"
#include "cpu/tile.hpp"
#include "cpu/vector.hpp"

namespace gated_mlp::cpu {

// T is float, Bfloat16 or Float16. A missing bias or residual is null.
template <class T>
struct Mlp {
  const T* x;
  const T* gate;
  const T* up;
  const T* down;
  const T* gate_bias;
  const T* up_bias;
  const T* down_bias;
  const T* residual;
  T* y;
  T* gate_out;  // x gate^T + gate_bias and x up^T + up_bias, where they are to be kept; or null
  T* up_out;
  int64_t m, d, h;
  Gating gating;
  bool invariant;        // a row's bits must not depend on m
  uint32_t threads = 0;  // the most that the call may have; 0: any number
};

// The same for every dtype. SIZE_MAX if it does not fit a size_t.
size_t mlp_workspace_bytes(int64_t m, int64_t d, int64_t h);

template <class T>
void mlp(const Mlp<T>& call, void* workspace);

// `bytes`: of a weight. `speedup`: of the products, over those of fp32 vectors. Of a few tokens the
// weights' bytes decide: several CPUs read more of them at one time than one can.
inline double threads_worth(int64_t m, int64_t d, int64_t h, size_t bytes, double speedup) {
  const double weights = 3.0 * static_cast<double>(d) * static_cast<double>(h);
  const double products = 2.0 * static_cast<double>(m) * weights;
  return larger(products / (kFlopsPerThread * speedup),
                static_cast<double>(bytes) * weights / kBytesPerThread);
}
template <class T>
double threads_worth(const Mlp<T>& call, double speedup = 1) {
  return threads_worth(call.m, call.d, call.h, sizeof(T), speedup);
}

// Those of the biases that there are, from `column` on; zeros where there is none.
template <class T>
Floats bias_vector(const T* bias, int64_t column, int64_t columns) {
  if (bias == nullptr || column >= columns) return Floats{};
  return load_up_to(bias + column, columns - column);
}

// Up to kLanes elements of y, from `column` on: what the sums, down's bias and the residual make.
template <class T>
void write_y(const Mlp<T>& call, int64_t row, int64_t column, Floats sums, Floats bias,
             int64_t count) {
  const int64_t at = row * call.d + column;
  Floats y = sums + bias;
  if (call.residual != nullptr) y += load_up_to(call.residual + at, count);
  store_up_to(call.y + at, y, count);
}

}  // namespace gated_mlp::cpu
