// SPDX-License-Identifier: Apache-2.0
//
// Outputs: what becomes of two neighbouring sums of one token: bias, gate, residual, rounding.
// Device only.
#pragma once

#include "arguments.h"
#include "element.cuh"
#include "gate.cuh"

namespace quantized_mlp {

template <class Element>
__device__ __forceinline__ float2 load_two(const void* data, long long at, bool second) {
  const Element* const from = static_cast<const Element*>(data) + at;
  return {gated_mlp::load_float(from[0]), second ? gated_mlp::load_float(from[1]) : 0.0f};
}

// Of columns `column` and the next one, which is even; those beyond n are not there.
template <class Element>
__device__ __forceinline__ void store_outputs(const ProductArguments& p, long long token,
                                              long long column, unsigned both) {
  Element* const to = static_cast<Element*>(p.out) + token * p.n + column;
  if (p.paired != 0) {
    *reinterpret_cast<unsigned*>(to) = both;
    return;
  }
  to[0].bits = static_cast<unsigned short>(both & 0xffffu);
  if (column + 1 < p.n) to[1].bits = static_cast<unsigned short>(both >> 16);
}

// A lane's two tokens of one row become one token of two neighbouring rows.
__device__ __forceinline__ float2 turned(float even_token, float odd_token, bool odd_row) {
  const float sent = odd_row ? even_token : odd_token;
  const float got = __shfl_xor_sync(0xffffffffu, sent, 4);
  return odd_row ? float2{got, odd_token} : float2{even_token, got};
}

// Two sums of one of the parts of k.
__device__ __forceinline__ void store_part(const ProductArguments& p, int part, long long token,
                                           long long column, float2 both) {
  if (token >= p.m) return;
  float* const to = p.parts + (part * p.m + token) * p.n + column;
  if (column < p.n) to[0] = both.x;
  if (column + 1 < p.n) to[1] = both.y;
}

// With a bias of which both are there.
template <class Element>
__device__ __forceinline__ float2 plus_two(float2 sums, const void* bias, long long column) {
  const float2 two = load_two<Element>(bias, column, true);
  return {sums.x + two.x, sums.y + two.y};
}

template <class Element, bool kGated>
__device__ __forceinline__ void finish(const ProductArguments& p, long long token, long long column,
                                       float2 first, float2 second) {
  if (token >= p.m || column >= p.n) return;
  const bool both = column + 1 < p.n;
  if (p.bias0 != nullptr) {
    const float2 bias = load_two<Element>(p.bias0, column, both);
    first = {first.x + bias.x, first.y + bias.y};
  }
  if constexpr (kGated) {
    if (p.bias1 != nullptr) {
      const float2 bias = load_two<Element>(p.bias1, column, both);
      second = {second.x + bias.x, second.y + bias.y};
    }
    gated_mlp::with_gate(p.gating, [&](auto unit) {
      first = {unit.of(first.x, second.x), unit.of(first.y, second.y)};
    });
  } else if (p.residual != nullptr) {
    const float2 residual = load_two<Element>(p.residual, token * p.n + column, both);
    first = {first.x + residual.x, first.y + residual.y};
  }
  unsigned words = gated_mlp::pack_pair(first.x, first.y, Element{});
  if constexpr (kGated) words = gated_mlp::bound_pair(words, p.gating.greatest, Element{});
  store_outputs<Element>(p, token, column, words);
}

}  // namespace quantized_mlp
