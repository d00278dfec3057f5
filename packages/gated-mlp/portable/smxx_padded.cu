// SPDX-License-Identifier: Apache-2.0
//
// Copies of compact matrices of 16-bit elements into others with more or fewer columns and rows:
// what is not there is 0. A warp copies kPaddedColumns of one row; no shared memory, no barrier.
#include "portable/arguments.h"
#include "portable/pairs.cuh"

namespace gated_mlp {

extern "C" __global__ void __launch_bounds__(kPaddedThreads)
    padded_copies(const __grid_constant__ PaddedArguments p) {
  constexpr int kPairs = static_cast<int>(kPaddedColumns) / 64;  // of a lane
  const long long part = static_cast<long long>(blockIdx.x) * (kPaddedThreads / 32) +
                         static_cast<long long>(threadIdx.x / 32);
  int which = 0;
  while (which + 1 < p.count && part >= p.copies[which + 1].first_part) ++which;
  const PaddedCopy& copy = p.copies[which];
  const long long parts = (copy.to_columns + kPaddedColumns - 1) / kPaddedColumns;  // of a row
  const long long row = (part - copy.first_part) / parts;
  if (row >= copy.to_rows) return;
  const long long first = (part - copy.first_part) % parts * kPaddedColumns + threadIdx.x % 32 * 2;
  const long long from = row * copy.from_columns;
  const long long to = row * copy.to_columns;
  const long long there = row < copy.from_rows ? copy.from_columns : 0;

  unsigned pairs[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const long long column = first + i * 64;
    pairs[i] = load_two(copy.from, from + column, there - column, copy.paired_loads != 0);
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const long long column = first + i * 64;
    store_two(copy.to, to + column, copy.to_columns - column, copy.paired_stores != 0, pairs[i]);
  }
}

}  // namespace gated_mlp
