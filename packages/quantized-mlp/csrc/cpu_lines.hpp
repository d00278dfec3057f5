// SPDX-License-Identifier: Apache-2.0
//
// Lines: what the CPU's kernels share: a packed tile as they read it, 64 bytes at a time, its
// scales, the threads of a call, biases and y.
#pragma once

#include "cpu/vector.hpp"
#include "package.gen.hpp"
#include "shapes.hpp"

namespace quantized_mlp::cpu {

using namespace gated_mlp::cpu;

inline constexpr int kLineBytes = 64;  // of a tile: rows r and r + 8, of e4m3 one of them
inline constexpr int kGroupRows = kTileRows / 2;

// Of column k; beyond the last one the last.
inline int64_t group_of(const Matrix& matrix, int64_t k) {
  const int64_t group = k >> matrix.shift;
  return group < matrix.groups ? group : matrix.groups - 1;
}

// Calls function.operator()<kCodes>().
template <class Function>
void with_codes(Codes codes, const Function& function) {
  switch (codes) {
    case Codes::kInt4:
      return function.template operator()<Codes::kInt4>();
    case Codes::kInt8:
      return function.template operator()<Codes::kInt8>();
    case Codes::kE4m3:
      return function.template operator()<Codes::kE4m3>();
  }
}

// Threads that a call is worth, whose weights are read for `tokens` at a time.
inline double worth_of(const kiln::package::ForwardArguments& call, int64_t tokens) {
  constexpr double kBytesPerThread = 64 << 10;
  const double bytes = static_cast<double>(call.HR * call.DK) * 2.0 * static_cast<double>(call.T) +
                       static_cast<double>(call.DR * call.HK) * static_cast<double>(call.TD);
  return bytes * static_cast<double>(parts_of(call.M, tokens)) / kBytesPerThread;
}

// Adds a bias to a token's sums of a row tile.
template <class T>
void add_bias(const sdk::Tensor& bias, int64_t column, int64_t columns, float* sums) {
  if (!bias.present) return;
  for (int i = 0; i < kTileRows && column + i < columns; ++i) {
    sums[i] += load_one(static_cast<const T*>(bias.data) + column + i);
  }
}

// y of up to kTileRows columns of a token: sums, down's bias and the residual.
template <class T>
void write_y(const kiln::package::ForwardArguments& call, int64_t token, int64_t column,
             float* sums) {
  add_bias<T>(call.down_bias, column, call.D, sums);
  const int64_t at = token * call.D + column;
  for (int64_t i = 0; i < kTileRows && column + i < call.D; i += kLanes) {
    const int64_t left = call.D - column - i;
    Floats sum = load(sums + i);
    if (call.residual.present) {
      sum += load_up_to(static_cast<const T*>(call.residual.data) + at + i, left);
    }
    store_up_to(static_cast<T*>(call.y.data) + at + i, sum, left);
  }
}

}  // namespace quantized_mlp::cpu
