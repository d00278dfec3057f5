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

// Two neighbouring values of one row of the residual, where GemmArguments::paired, the first in the
// low half; zeros outside of it.
template <class Element>
__device__ __forceinline__ unsigned residual_pair(const GemmArguments& p, long long row,
                                                  long long column) {
  const Element* from = static_cast<const Element*>(p.residual) + row * p.n + column;
  return row < p.m && column < p.n ? *reinterpret_cast<const unsigned*>(from) : 0;
}
// Those that there are of two, wherever the residual lies.
template <class Element>
__device__ __forceinline__ void add_residual_pair(const GemmArguments& p, long long row,
                                                  long long column, float& first, float& second) {
  if (row >= p.m || column >= p.n) return;
  const Element* from = static_cast<const Element*>(p.residual) + row * p.n + column;
  first += load_float(from[0]);
  if (column + 1 < p.n) second += load_float(from[1]);
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

// The same of an output of float32; zeros outside of it.
__device__ __forceinline__ float2 load_floats(const GemmArguments& p, long long row,
                                              long long column) {
  if (row >= p.m || column >= p.n) return {};
  const float* address = static_cast<const float*>(p.out) + row * p.n + column;
  if (p.paired != 0) return *reinterpret_cast<const float2*>(address);
  return {address[0], column + 1 < p.n ? address[1] : 0.0f};
}
__device__ __forceinline__ void store_floats(const GemmArguments& p, long long row,
                                             long long column, float2 both) {
  if (row >= p.m || column >= p.n) return;
  float* address = static_cast<float*>(p.out) + row * p.n + column;
  if (p.paired != 0) {
    *reinterpret_cast<float2*>(address) = both;
    return;
  }
  address[0] = both.x;
  if (column + 1 < p.n) address[1] = both.y;
}

}  // namespace geglu_mlp
