// SPDX-License-Identifier: Apache-2.0
//
// The plain GEMM for every SM from 8.0 on, by smxx_gemm.cuh: out = a b0^T + bias0 + residual, or,
// of a call that adds, out += a b0^T in fp32. Without a gate: every package that has these kernels
// has the same image of them.
#include "portable/smxx_gemm.cuh"

namespace gated_mlp {

// The residual's part of the sums, before the first output is stored: no load waits for a store
// that might change it. The loads of a column block are on their way together.
template <class T, class Element, bool kAligned>
__device__ __forceinline__ void add_residual(Sums<T>& sums, const GemmArguments& p, long long row,
                                             long long column) {
  if (p.residual == nullptr) return;
  const SumPlaces<T, false> at(row, column);
#pragma unroll
  for (int j = 0; j < T::kColumnBlocks; ++j) {
    unsigned words[T::kRowBlocks][2];
#pragma unroll
    for (int i = 0; i < T::kRowBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        words[i][half] =
            residual_pair<Element, kAligned>(p, at.row + i * 16 + half * 8, at.column_of(j));
      }
    }
#pragma unroll
    for (int i = 0; i < T::kRowBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 residual = unpack_pair<Element>(words[i][half]);
        sums[i][j][half * 2] += residual.x;
        sums[i][j][half * 2 + 1] += residual.y;
      }
    }
  }
}

// Adds the sums to an output of float32, row by row: one address at a time, beside the sums. The
// loads of kTogether column blocks are on their way together.
template <class T, bool kAligned>
__device__ __forceinline__ void add_to_out(const Sums<T>& sums, const GemmArguments& p,
                                           long long row, long long column) {
  constexpr int kTogether = T::kColumnBlocks % 4 == 0 ? 4 : T::kColumnBlocks;
  const SumPlaces<T, false> places(row, column);
#pragma unroll
  for (int i = 0; i < T::kRowBlocks; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long at_row = places.row + i * 16 + half * 8;
#pragma unroll
      for (int first = 0; first < T::kColumnBlocks; first += kTogether) {
        float2 pairs[kTogether];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          pairs[j] = load_floats<kAligned>(p, at_row, places.column_of(first + j));
        }
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const float* const sum = sums[i][first + j] + half * 2;
          store_floats<kAligned>(p, at_row, places.column_of(first + j),
                                 {pairs[j].x + sum[0], pairs[j].y + sum[1]});
        }
      }
    }
  }
}

template <class T, class Element, bool kAligned>
__device__ __forceinline__ void plain(const GemmArguments& p) {
  const OutputTile<T, false> tile(p);
  Sums<T> sums = {};
  mainloop<T, Element, false, kAligned>(sums, p, tile.row, tile.column);
  if (p.adds != 0) {
    add_to_out<T, kAligned>(sums, p, tile.row, tile.column);
    return;
  }
  add_residual<T, Element, kAligned>(sums, p, tile.row, tile.column);
  epilogue<T, Element, false, kAligned>(sums, p, NoGate{}, tile.row, tile.column);
}

}  // namespace gated_mlp

KILN_GEMMS(plain)
