// SPDX-License-Identifier: Apache-2.0
//
// What becomes of the sums of wgmma: biases, the gate, stores. Device only.
#pragma once

#include "element.cuh"
#include "gate.cuh"
#include "sm90/sm90_arguments.h"

namespace gated_mlp {

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
    add_to_rows<Element>(tile.sums[1], kGated ? p.bias1 : p.bias0, kGated ? column : column + 64,
                         p.n);
  } else {
    add_to_half<T, Element>(tile, 0, p.bias0, column, p.n);
    add_to_half<T, Element>(tile, 1, kGated ? p.bias1 : p.bias0,
                            kGated ? column : column + T::kColumns / 2, p.n);
  }
}

// The residual's part of a thread's sums of a plain tile. `row`: where its warpgroup's rows begin.
// As many loads as there are registers for are on their way together.
template <class T, class Element>
__device__ __forceinline__ void add_residual(Sums<T>& tile, const Sm90Arguments& p, long long row,
                                             long long column) {
  if (p.residual == nullptr) return;
  constexpr int kPairs = T::kColumns / 8;  // of a row
  constexpr int kAtOnce = T::kBlocks * T::kSums > 160 ? 12 : 16;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  row += thread / 32 * 16 + thread % 32 / 4;
  column += thread % 4 * 2;
  const int left = static_cast<int>(min(p.n - column, 8ll * kPairs));  // columns
#pragma unroll
  for (int half = 0; half < 2 * T::kBlocks; ++half) {  // of the 16 rows of a block, eight each
    const long long at_row = row + half / 2 * 64 + half % 2 * 8;
    if (at_row >= p.m) continue;
    const Element* from = static_cast<const Element*>(p.residual) + at_row * p.n + column;
    float* const sums = tile.sums[half / 2] + half % 2 * 2;
#pragma unroll
    for (int first = 0; first < kPairs; first += kAtOnce) {
      unsigned words[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce && first + i < kPairs; ++i) {
        const int at = (first + i) * 8;
        words[i] = at < left ? *reinterpret_cast<const unsigned*>(from + at) : 0;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce && first + i < kPairs; ++i) {
        const float2 pair = unpack_pair<Element>(words[i]);
        sums[(first + i) * 4] += pair.x;
        sums[(first + i) * 4 + 1] += pair.y;
      }
    }
  }
}

// Of a plain tile: what add_residual() will read, into the L2 cache.
template <int kColumns>
__device__ __forceinline__ void fetch_residual(const Sm90Arguments& p, long long row, int rows,
                                               long long column, int threads) {
  if (p.residual == nullptr) return;
  constexpr int kLines = (kColumns * 2 + 127) / 128;  // of a row
  for (int i = static_cast<int>(threadIdx.x) % threads; i < rows * kLines; i += threads) {
    const long long at_row = row + i / kLines;
    const long long at = column + i % kLines * 64;
    if (at_row >= p.m || at >= p.n) continue;
    const char* from = static_cast<const char*>(p.residual) + (at_row * p.n + at) * 2;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
  }
}

// Two columns of a row of the residual, or four; zeros without one.
template <class Element>
__device__ __forceinline__ float2 load_residual_pair(const Sm90Arguments& p, long long row,
                                                     long long column) {
  if (p.residual == nullptr) return {};
  const Element* from = static_cast<const Element*>(p.residual) + row * p.n + column;
  return unpack_pair<Element>(*reinterpret_cast<const unsigned*>(from));
}
template <class Element>
__device__ __forceinline__ float4 load_residuals(const Sm90Arguments& p, long long row,
                                                 long long column) {
  if (p.residual == nullptr) return {};
  const Element* from = static_cast<const Element*>(p.residual) + row * p.n + column;
  const uint2 both = *reinterpret_cast<const uint2*>(from);
  const float2 low = unpack_pair<Element>(both.x);
  const float2 high = unpack_pair<Element>(both.y);
  return {low.x, low.y, high.x, high.y};
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

}  // namespace gated_mlp
