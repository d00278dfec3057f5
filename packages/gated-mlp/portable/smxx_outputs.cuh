// SPDX-License-Identifier: Apache-2.0
//
// Biases, residuals and outputs of the portable GEMMs. Device only.
#pragma once

#include "element.cuh"
#include "portable/arguments.h"

namespace gated_mlp {

template <class Element>
__device__ __forceinline__ float bias_at(const void* bias, long long column, long long columns) {
  if (bias == nullptr || column >= columns) return 0.0f;
  return load_float(static_cast<const Element*>(bias)[column]);
}

// In an aligned kernel n is a multiple of 8 and all matrices are 16-byte aligned: two neighbours
// lie in one word and are there both.

// Two neighbouring values of one row of the residual, the first in the low half; zeros outside.
template <class Element, bool kAligned>
__device__ __forceinline__ unsigned residual_pair(const GemmArguments& p, long long row,
                                                  long long column) {
  if (row >= p.m || column >= p.n) return 0;
  const Element* from = static_cast<const Element*>(p.residual) + row * p.n + column;
  if constexpr (kAligned) return *reinterpret_cast<const unsigned*>(from);
  return from[0].bits | (column + 1 < p.n ? static_cast<unsigned>(from[1].bits) << 16 : 0u);
}

// Two neighbouring outputs of one row, the first in the low half. `out`: one of the arguments'.
template <class Element, bool kAligned>
__device__ __forceinline__ void store_pair(const GemmArguments& p, void* out, long long row,
                                           long long column, unsigned both) {
  if (row >= p.m || column >= p.n) return;
  Element* address = static_cast<Element*>(out) + row * p.n + column;
  if constexpr (kAligned) {
    *reinterpret_cast<unsigned*>(address) = both;
  } else {
    address[0].bits = static_cast<unsigned short>(both & 0xffffu);
    if (column + 1 < p.n) address[1].bits = static_cast<unsigned short>(both >> 16);
  }
}

// What four neighbouring lanes hold of a row, two columns of each of kBlocks blocks of 8, turned: a
// lane then has kBlocks words of one block that lie side by side.
template <int kBlocks>
__device__ __forceinline__ void turn_blocks(unsigned (&words)[kBlocks]) {
  static_assert(kBlocks == 1 || kBlocks == 2 || kBlocks == 4);
#pragma unroll
  for (int distance = kBlocks / 2; distance > 0; distance /= 2) {
    const bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if ((i & distance) != 0) continue;
      const unsigned sent = upper ? words[i] : words[i + distance];
      const unsigned got = __shfl_xor_sync(0xffffffffu, sent, distance);
      if (upper) {
        words[i] = got;
      } else {
        words[i + distance] = got;
      }
    }
  }
}

// The outputs of four lanes in kBlocks blocks of 8 columns of one row. `column`: of this lane's
// first two, `words`: one of each block. Aligned, in stores of up to 16 bytes: one of 4 bytes a
// lane fills half of each sector of 32 that it touches.
template <class Element, bool kAligned, int kBlocks>
__device__ __forceinline__ void store_blocks(const GemmArguments& p, void* out, long long row,
                                             long long column, unsigned (&words)[kBlocks]) {
  if constexpr (!kAligned || kBlocks == 1) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      store_pair<Element, kAligned>(p, out, row, column + i * 8, words[i]);
    }
  } else {
    turn_blocks(words);
    const int lane = static_cast<int>(threadIdx.x) % 4;
    const long long at = column - lane * 2 + lane % kBlocks * 8 + lane / kBlocks * (kBlocks * 2);
    if (row >= p.m || at >= p.n) return;
    Element* address = static_cast<Element*>(out) + row * p.n + at;
    if constexpr (kBlocks == 4) {
      *reinterpret_cast<uint4*>(address) = {words[0], words[1], words[2], words[3]};
    } else {
      *reinterpret_cast<uint2*>(address) = {words[0], words[1]};
    }
  }
}

// Two neighbours of an output of float32; zeros outside of it.
template <bool kAligned>
__device__ __forceinline__ float2 load_floats(const GemmArguments& p, long long row,
                                              long long column) {
  if (row >= p.m || column >= p.n) return {};
  const float* address = static_cast<const float*>(p.out) + row * p.n + column;
  if constexpr (kAligned) return *reinterpret_cast<const float2*>(address);
  return {address[0], column + 1 < p.n ? address[1] : 0.0f};
}
template <bool kAligned>
__device__ __forceinline__ void store_floats(const GemmArguments& p, long long row,
                                             long long column, float2 both) {
  if (row >= p.m || column >= p.n) return;
  float* address = static_cast<float*>(p.out) + row * p.n + column;
  if constexpr (kAligned) {
    *reinterpret_cast<float2*>(address) = both;
  } else {
    address[0] = both.x;
    if (column + 1 < p.n) address[1] = both.y;
  }
}

}  // namespace gated_mlp
