// SPDX-License-Identifier: Apache-2.0
//
// Biases and outputs of the portable GEMMs. Device only.
#pragma once

#include "arguments.h"
#include "element.cuh"

namespace geglu_mlp {

template <class Element>
__device__ __forceinline__ float bias_at(const void* bias, long long column, long long columns) {
  if (bias == nullptr || column >= columns) return 0.0f;
  return load_float(static_cast<const Element*>(bias)[column]);
}

// Two neighbouring outputs of one row.
template <class Element>
__device__ __forceinline__ void store_pair(const GemmArguments& p, long long row, long long column,
                                           float first, float second) {
  if (row >= p.m || column >= p.n) return;
  Element* address = static_cast<Element*>(p.out) + row * p.n + column;
  if (p.paired_stores != 0) {
    *reinterpret_cast<unsigned*>(address) = pack_pair(first, second, Element{});
    return;
  }
  store_float(address, first);
  if (column + 1 < p.n) store_float(address + 1, second);
}

}  // namespace geglu_mlp
