// SPDX-License-Identifier: Apache-2.0
//
// Dots: the CPU's forward without packed weights, by the tile of cpu_dot_tile.hpp. Packing a weight
// takes as long as multiplying it with dozens of rows, so up to kMostDotRows rows (measured) this
// is faster than cpu_gemm's tile; where the CPU multiplies pairs of bfloat16, for any number of
// them. x and h are packed in blocks of rows. In pairs, h is rounded to bfloat16.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cpu/dot_tile.hpp"
#include "cpu/gemm.hpp"

namespace gated_mlp::cpu {

#if defined(__AVX512F__)
inline constexpr int64_t kMostFloatDotRows = 96;
#elif defined(__AVX2__)
inline constexpr int64_t kMostFloatDotRows = 32;  // half of the registers: loads bound the tile
#else
inline constexpr int64_t kMostFloatDotRows = 24;  // not measured
#endif
template <class T>
inline constexpr int64_t kMostDotRows = Dot<T>::kPairs ? INT64_MAX : kMostFloatDotRows;

// Enough for every dtype.
size_t dots_workspace_bytes(int64_t m, int64_t d, int64_t h);

template <class T>
void mlp_by_dots(const Mlp<T>& call, void* workspace);

}  // namespace gated_mlp::cpu
