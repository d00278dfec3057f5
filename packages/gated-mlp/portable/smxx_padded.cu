// SPDX-License-Identifier: Apache-2.0
//
// Copies of compact matrices of 16-bit elements into others with more or fewer columns and rows:
// what is not there is 0. A warp copies kPaddedColumns of one row, a lane eight neighbours at a
// time, whose place begins at a multiple of 16 bytes. The row they come from may begin anywhere: a
// lane reads words of it and shifts them. No shared memory, no barrier.
#include "portable/arguments.h"

namespace gated_mlp {

constexpr int kPaddedRun = 8;

struct PaddedRow {
  const unsigned short* from;   // its first element
  long long columns;            // that are there
  const unsigned short* begin;  // of the matrix
  const unsigned short* end;

  // Elements `column` to `column` + 7 of the row, the first in the low half of x.
  __device__ __forceinline__ uint4 load(long long column) const {
    const unsigned short* const first = from + column;
    const auto offset = static_cast<unsigned>(reinterpret_cast<unsigned long long>(first)) % 16;
    const bool whole = column >= 0 && column + kPaddedRun <= columns;
    if (whole && offset == 0) return *reinterpret_cast<const uint4*>(first);
    const bool odd = offset % 4 != 0;
    if (whole && (!odd || (first > begin && first + kPaddedRun < end))) {
      const auto* const words = reinterpret_cast<const unsigned*>(odd ? first - 1 : first);
      unsigned word[5];
#pragma unroll
      for (int i = 0; i < 4; ++i) word[i] = words[i];
      word[4] = odd ? words[4] : 0;
      const unsigned shift = odd ? 16 : 0;
      return {__funnelshift_r(word[0], word[1], shift), __funnelshift_r(word[1], word[2], shift),
              __funnelshift_r(word[2], word[3], shift), __funnelshift_r(word[3], word[4], shift)};
    }
    unsigned pairs[4] = {};
#pragma unroll
    for (int i = 0; i < kPaddedRun; ++i) {
      const bool there = column + i >= 0 && column + i < columns;
      if (there) pairs[i / 2] |= static_cast<unsigned>(first[i]) << (i % 2 * 16);
    }
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
};

__device__ __forceinline__ void store_run(unsigned short* row, long long column, long long columns,
                                          uint4 run) {
  if (column >= 0 && column + kPaddedRun <= columns) {
    *reinterpret_cast<uint4*>(row + column) = run;
    return;
  }
  const unsigned pairs[4] = {run.x, run.y, run.z, run.w};
#pragma unroll
  for (int i = 0; i < kPaddedRun; ++i) {
    if (column + i >= 0 && column + i < columns) {
      row[column + i] = static_cast<unsigned short>(pairs[i / 2] >> (i % 2 * 16));
    }
  }
}

extern "C" __global__ void __launch_bounds__(kPaddedThreads)
    padded_copies(const __grid_constant__ PaddedArguments p) {
  constexpr int kRuns = static_cast<int>(kPaddedColumns) / (32 * kPaddedRun);  // of a lane
  const long long part = static_cast<long long>(blockIdx.x) * (kPaddedThreads / 32) +
                         static_cast<long long>(threadIdx.x / 32);
  int which = 0;
  while (which + 1 < p.count && part >= p.copies[which + 1].first_part) ++which;
  const PaddedCopy& copy = p.copies[which];
  const long long of_copy = part - copy.first_part;
  const long long row = of_copy / copy.parts_of_row;
  if (row >= copy.to_rows) return;
  const auto* const begin = static_cast<const unsigned short*>(copy.from);
  const PaddedRow from = {begin + row * copy.from_columns,
                          row < copy.from_rows ? copy.from_columns : 0, begin,
                          begin + copy.from_rows * copy.from_columns};
  auto* const to = static_cast<unsigned short*>(copy.to) + row * copy.to_columns;
  const auto before = static_cast<long long>(reinterpret_cast<unsigned long long>(to) % 16 / 2);
  const long long first =
      (of_copy - row * copy.parts_of_row) * kPaddedColumns - before + threadIdx.x % 32 * kPaddedRun;

  uint4 runs[kRuns];
#pragma unroll
  for (int i = 0; i < kRuns; ++i) runs[i] = from.load(first + i * 32 * kPaddedRun);
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    store_run(to, first + i * 32 * kPaddedRun, copy.to_columns, runs[i]);
  }
}

}  // namespace gated_mlp
