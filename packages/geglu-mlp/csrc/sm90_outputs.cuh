// SPDX-License-Identifier: Apache-2.0
//
// What becomes of the sums of wgmma: biases, the gate, stores. Device only.
#pragma once

#include "element.cuh"
#include "gate.cuh"
#include "sm90_arguments.h"

namespace geglu_mlp {

// A thread's sums of a tile: for each block of 64 rows of its warpgroup as sm90_wgmma.cuh has them.
template <class T>
struct Sums {
  float sums[T::kBlocks][T::kSums];
};

// To the columns of a half of the sums: all of gate, or of up, or half of down's.
template <class T, class Element>
__device__ __forceinline__ void add_to_half(Sums<T>& tile, int half, const void* bias,
                                            long long column, long long columns) {
  if (bias == nullptr) return;
  column += static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int block = 0; block < T::kColumns / 16; ++block) {
    const long long at = column + block * 8;
    if (at >= columns) continue;
    const Element* from = static_cast<const Element*>(bias) + at;
    const float first = load_float(from[0]);
    const float second = load_float(from[1]);
#pragma unroll
    for (int i = 0; i < T::kBlocks; ++i) {
      float* sums = tile.sums[i] + half * (T::kColumns / 4) + block * 4;
      sums[0] += first;
      sums[1] += second;
      sums[2] += first;
      sums[3] += second;
    }
  }
}

// The same of a block of a swapped tile, whose rows are the columns of the output: a thread has two
// of them, eight apart.
template <class Element, int kSums>
__device__ __forceinline__ void add_to_rows(float (&sums)[kSums], const void* bias,
                                            long long column, long long columns) {
  if (bias == nullptr) return;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  column += thread / 32 * 16 + thread % 32 / 4;
  const Element* from = static_cast<const Element*>(bias) + column;
  const float upper = column < columns ? load_float(from[0]) : 0.0f;
  const float lower = column + 8 < columns ? load_float(from[8]) : 0.0f;
#pragma unroll
  for (int at = 0; at < kSums; at += 4) {
    sums[at] += upper;
    sums[at + 1] += upper;
    sums[at + 2] += lower;
    sums[at + 3] += lower;
  }
}

// `column`: of the output, where the tile begins.
template <class T, class Element, bool kGated>
__device__ __forceinline__ void add_biases(Sums<T>& tile, const Sm90Arguments& p,
                                           long long column) {
  if constexpr (T::kSwapped) {
    add_to_rows<Element>(tile.sums[0], p.bias0, column, p.n);
    add_to_rows<Element>(tile.sums[1], p.bias1, column, p.n);
  } else {
    add_to_half<T, Element>(tile, 0, p.bias0, column, p.n);
    add_to_half<T, Element>(tile, 1, kGated ? p.bias1 : p.bias0,
                            kGated ? column : column + T::kColumns / 2, p.n);
  }
}

// What a thread's sums of 64 rows of a plain product begin with: the residual [m, n], or zeros. A
// row's loads are on their way together. The consumers would wait then for their first stage, or
// for their turn: added at the end, the residual of 8192 x 768 took 6 us more.
template <class Element, int kSums>
__device__ __forceinline__ void begin_sums(float (&sums)[kSums], const void* residual, long long m,
                                           long long n, long long row, long long column) {
  constexpr int kPairs = kSums / 4;  // of each of two rows
  const int thread = static_cast<int>(threadIdx.x) % 128;
  row += thread / 32 * 16 + thread % 32 / 4;
  column += thread % 4 * 2;
  const int left = static_cast<int>(min(n - column, 8ll * kPairs));  // columns
#pragma unroll
  for (int i = 0; i < kSums; ++i) sums[i] = 0.0f;
#pragma unroll
  for (int half = 0; half < 2; ++half, row += 8) {
    if (residual == nullptr || row >= m) continue;
    const Element* from = static_cast<const Element*>(residual) + row * n + column;
    unsigned words[kPairs] = {};
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      if (pair * 8 < left) words[pair] = *reinterpret_cast<const unsigned*>(from + pair * 8);
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const float2 both = unpack_pair<Element>(words[pair]);
      sums[pair * 4 + half * 2] = both.x;
      sums[pair * 4 + half * 2 + 1] = both.y;
    }
  }
}
// Of a warpgroup's rows, which begin at `row`.
template <class T, class Element>
__device__ __forceinline__ void begin_sums(Sums<T>& tile, const void* residual,
                                           const Sm90Arguments& p, long long row,
                                           long long column) {
#pragma unroll
  for (int i = 0; i < T::kBlocks; ++i) {
    begin_sums<Element>(tile.sums[i], residual, p.m, p.n, row + i * 64, column);
  }
}

// Two columns of a row of the residual; zeros without one.
template <class Element>
__device__ __forceinline__ float2 load_residual_pair(const Sm90Arguments& p, long long row,
                                                     long long column) {
  if (p.residual == nullptr) return {};
  const Element* from = static_cast<const Element*>(p.residual) + row * p.n + column;
  return unpack_pair<Element>(*reinterpret_cast<const unsigned*>(from));
}

// Of two columns, or four; zeros without a bias.
template <class Element>
__device__ __forceinline__ float2 load_bias_pair(const void* bias, long long column) {
  if (bias == nullptr) return {};
  const Element* at = static_cast<const Element*>(bias) + column;
  return {load_float(at[0]), load_float(at[1])};
}
template <class Element>
__device__ __forceinline__ float4 load_biases(const void* bias, long long column) {
  const float2 low = load_bias_pair<Element>(bias, column);
  const float2 high = load_bias_pair<Element>(bias, column + 2);
  return {low.x, low.y, high.x, high.y};
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// Of two columns in a word, and of four.
template <class Element>
__device__ __forceinline__ void store_word(const Sm90Arguments& p, long long row, long long column,
                                           unsigned word) {
  Element* to = static_cast<Element*>(p.out_data) + row * p.n + column;
  *reinterpret_cast<unsigned*>(to) = word;
}
template <class Element>
__device__ __forceinline__ void store_words(const Sm90Arguments& p, long long row, long long column,
                                            unsigned low, unsigned high) {
  Element* to = static_cast<Element*>(p.out_data) + row * p.n + column;
  *reinterpret_cast<uint2*>(to) = {low, high};
}

// Of sums that already have their biases.
template <class Element, bool kGated>
__device__ __forceinline__ void store_quad(const Sm90Arguments& p, long long row, long long column,
                                           float4 out, float4 up) {
  if constexpr (kGated) {
    with_gate(p.gating, [&](auto unit) {
      const float2 low = unit.of_pair({out.x, out.y}, {up.x, up.y});
      const float2 high = unit.of_pair({out.z, out.w}, {up.z, up.w});
      out = {low.x, low.y, high.x, high.y};
    });
  }
  unsigned low = pack_pair(out.x, out.y, Element{});
  unsigned high = pack_pair(out.z, out.w, Element{});
  if constexpr (kGated) {
    low = bound_pair(low, p.gating.greatest, Element{});
    high = bound_pair(high, p.gating.greatest, Element{});
  }
  store_words<Element>(p, row, column, low, high);
}

}  // namespace geglu_mlp
