// SPDX-License-Identifier: Apache-2.0
//
// The norm in front of forward on a CPU: a row of x, normed in fp32, rounded to its dtype, in the
// workspace, behind what the kernel has there.
#pragma once

#include <cmath>

#include "cpu_lines.hpp"

namespace quantized_mlp::cpu {

// Behind `bytes` of a workspace: rows of `tokens` tokens.
inline size_t normed_at(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}
inline size_t with_normed(const kiln::package::ForwardArguments& call, size_t bytes,
                          int64_t tokens) {
  return call.norm_weight.present
             ? normed_at(bytes) + static_cast<size_t>(tokens * call.D) * sizeof(uint16_t)
             : bytes;
}

// A row of x as the products take it: as it is, or normed, in `scratch`. Its sum of squares is
// added in one order.
template <class T>
const T* row_of(const kiln::package::ForwardArguments& call, int64_t row, T* scratch) {
  const T* const from = static_cast<const T*>(call.x.data) + row * call.D;
  if (!call.norm_weight.present) return from;
  const auto* const weight = static_cast<const T*>(call.norm_weight.data);
  Floats squares = {};
  for (int64_t k = 0; k < call.D; k += kLanes) {
    const Floats values = load_up_to(from + k, call.D - k);
    squares += values * values;
  }
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += squares[i];
  const float factor =
      1 / std::sqrt(sum / static_cast<float>(call.D) + static_cast<float>(call.eps));
  const auto offset = static_cast<float>(call.offset);
  for (int64_t k = 0; k < call.D; k += kLanes) {
    const int64_t left = call.D - k;
    store_up_to(scratch + k,
                load_up_to(from + k, left) * factor * (load_up_to(weight + k, left) + offset),
                left);
  }
  return scratch;
}

}  // namespace quantized_mlp::cpu
