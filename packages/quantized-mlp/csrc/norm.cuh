// SPDX-License-Identifier: Apache-2.0
//
// Norm: eight neighbouring columns of a row of x, or of the norm's weights, a thread at a time, for
// the kernels that norm x. Device only.
#pragma once

#include "arguments.h"
#include "dequantize.cuh"

namespace quantized_mlp {

// Eight neighbouring columns, of which `left` are there; else zeros.
__device__ __forceinline__ uint4 load_token(const unsigned short* from, int left, bool aligned) {
  if (aligned) return left > 0 ? *reinterpret_cast<const uint4*>(from) : uint4{};
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned low = 2 * i < left ? from[2 * i] : 0u;
    const unsigned high = 2 * i + 1 < left ? from[2 * i + 1] : 0u;
    words[i] = low | high << 16;
  }
  return {words[0], words[1], words[2], words[3]};
}

__device__ __forceinline__ void store_shared(unsigned address, const uint4& words) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

// made(value, number) of each of eight columns, as Element; `of`: the columns of another row.
template <class Element, class Function>
__device__ __forceinline__ uint4 each_of(const uint4& values, const uint4& of, Function made) {
  const unsigned words[4] = {values.x, values.y, values.z, values.w};
  const unsigned others[4] = {of.x, of.y, of.z, of.w};
  unsigned result[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = gated_mlp::unpack_pair<Element>(words[i]);
    const float2 other = gated_mlp::unpack_pair<Element>(others[i]);
    result[i] = gated_mlp::pack_pair(made(two.x, other.x), made(two.y, other.y), Element{});
  }
  return {result[0], result[1], result[2], result[3]};
}

// The sum of their squares, added to `sum`.
template <class Element>
__device__ __forceinline__ float plus_squares(float sum, const uint4& values) {
  const unsigned words[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = gated_mlp::unpack_pair<Element>(words[i]);
    sum = fmaf(two.x, two.x, sum);
    sum = fmaf(two.y, two.y, sum);
  }
  return sum;
}

// By what a row is multiplied.
__device__ __forceinline__ float factor_of(float squares, long long columns, float eps) {
  return rsqrtf(squares / static_cast<float>(columns) + eps);
}

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

}  // namespace quantized_mlp
