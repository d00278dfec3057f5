// SPDX-License-Identifier: Apache-2.0
//
// Biases, residuals and outputs of the portable GEMMs. Device only.
#pragma once

#include "arguments.h"
#include "element.cuh"

namespace geglu_mlp {

template <class Element>
__device__ __forceinline__ float bias_at(const void* bias, long long column, long long columns) {
  if (bias == nullptr || column >= columns) return 0.0f;
  return load_float(static_cast<const Element*>(bias)[column]);
}

// Two neighbouring values of one row of the residual; zeros outside, and without one.
template <class Element>
__device__ __forceinline__ float2 residual_at(const GemmArguments& p, long long row,
                                              long long column) {
  if (p.residual == nullptr || row >= p.m || column >= p.n) return {};
  const Element* address = static_cast<const Element*>(p.residual) + row * p.n + column;
  if (p.paired != 0) return unpack_pair<Element>(*reinterpret_cast<const unsigned*>(address));
  return {load_float(address[0]), column + 1 < p.n ? load_float(address[1]) : 0.0f};
}

// Two neighbouring outputs of one row, the first in the low half.
template <class Element>
__device__ __forceinline__ void store_pair(const GemmArguments& p, long long row, long long column,
                                           unsigned both) {
  if (row >= p.m || column >= p.n) return;
  Element* address = static_cast<Element*>(p.out) + row * p.n + column;
  if (p.paired != 0) {
    *reinterpret_cast<unsigned*>(address) = both;
    return;
  }
  address[0].bits = static_cast<unsigned short>(both & 0xffffu);
  if (column + 1 < p.n) address[1].bits = static_cast<unsigned short>(both >> 16);
}

}  // namespace geglu_mlp
