// SPDX-License-Identifier: Apache-2.0
//
// Many tokens on every SM from 8.0 on: weights as numbers of 16 bits, row by row, and the two
// products of them by the main loop of smxx_gemm.cuh.
#include "expand.cuh"
#include "gate.cuh"
#include "overlap.cuh"
#include "portable/smxx_gemm.cuh"

namespace quantized_mlp {

// Before the first output is stored, which may lie where the residual does.
template <class T, class Element>
__device__ __forceinline__ void add_residual(gated_mlp::Sums<T>& sums, const ExpandedArguments& p,
                                             const gated_mlp::SumPlaces<T, false>& places) {
  if (p.residual == nullptr) return;
#pragma unroll
  for (int i = 0; i < 2 * T::kRowBlocks; ++i) {
    unsigned words[T::kColumnBlocks];
#pragma unroll
    for (int j = 0; j < T::kColumnBlocks; ++j) {
      words[j] =
          gated_mlp::residual_pair<Element, true>(p, places.row + i * 8, places.column_of(j));
    }
#pragma unroll
    for (int j = 0; j < T::kColumnBlocks; ++j) {
      const float2 both = gated_mlp::unpack_pair<Element>(words[j]);
      sums[i / 2][j][i % 2 * 2] += both.x;
      sums[i / 2][j][i % 2 * 2 + 1] += both.y;
    }
  }
}

template <class Element, bool kGated>
__device__ __forceinline__ void expanded(const ExpandedArguments& p) {
  using T = ExpandedTile;
  gated_mlp::wait_for_previous_kernel();
  gated_mlp::let_next_kernel_start();
  const gated_mlp::OutputTile<T, kGated> tile(p);
  const long long column = p.first + tile.column;
  gated_mlp::Sums<T> sums = {};
  gated_mlp::mainloop<T, Element, kGated, true>(sums, p, tile.row, column);
  if constexpr (kGated) {
    gated_mlp::with_gate(p.gating, [&](auto unit) {
      gated_mlp::epilogue<T, Element, true, true>(sums, p, unit, tile.row, column);
    });
  } else {
    add_residual<T, Element>(sums, p, gated_mlp::SumPlaces<T, false>(tile.row, column));
    gated_mlp::epilogue<T, Element, false, true>(sums, p, gated_mlp::NoGate{}, tile.row, column);
  }
}

}  // namespace quantized_mlp

using namespace quantized_mlp;

#define KILN_EXPAND(name, Element, codes)                                        \
  extern "C" __global__ void __launch_bounds__(kExpandThreads)                   \
      name(const __grid_constant__ ExpandArguments p) {                          \
    gated_mlp::wait_for_previous_kernel();                                       \
    gated_mlp::let_next_kernel_start();                                          \
    constexpr unsigned kWarps = kExpandThreads / 32;                             \
    expand<gated_mlp::Element, codes>(p, blockIdx.x * kWarps + threadIdx.x / 32, \
                                      gridDim.x * kWarps);                       \
  }
#define KILN_EXPANDS(type, Element)                        \
  KILN_EXPAND(expand_##type##_int4, Element, Codes::kInt4) \
  KILN_EXPAND(expand_##type##_int8, Element, Codes::kInt8) \
  KILN_EXPAND(expand_##type##_e4m3, Element, Codes::kE4m3)
#define KILN_EXPANDED(name, Element, gated)                                                 \
  extern "C" __global__ void __launch_bounds__(ExpandedTile::kThreads, ExpandedTile::kCtas) \
      name(const __grid_constant__ ExpandedArguments p) {                                   \
    expanded<gated_mlp::Element, gated>(p);                                                 \
  }
KILN_EXPANDS(bf16, Bfloat16)
KILN_EXPANDS(f16, Float16)
KILN_EXPANDED(expanded_gated_bf16, Bfloat16, true)
KILN_EXPANDED(expanded_gated_f16, Float16, true)
KILN_EXPANDED(expanded_plain_bf16, Bfloat16, false)
KILN_EXPANDED(expanded_plain_f16, Float16, false)
