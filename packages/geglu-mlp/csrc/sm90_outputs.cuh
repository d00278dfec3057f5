// SPDX-License-Identifier: Apache-2.0
//
// What the kernels for small M do with the sums of two neighbouring outputs. Device only.
#pragma once

#include "activation.cuh"
#include "sm90_arguments.h"

namespace geglu_mlp {

template <class Element>
__device__ __forceinline__ float2 with_bias(float2 sum, const void* bias, long long column) {
  if (bias == nullptr) return sum;
  const Element* at = static_cast<const Element*>(bias) + column;
  return {sum.x + load_float(at[0]), sum.y + load_float(at[1])};
}

template <class Element>
__device__ __forceinline__ void store_output(const Sm90Arguments& p, long long row,
                                             long long column, float2 pair) {
  Element* to = static_cast<Element*>(p.out_data) + row * p.n + column;
  *reinterpret_cast<unsigned*>(to) = pack_pair(pair.x, pair.y, Element{});
}

}  // namespace geglu_mlp
