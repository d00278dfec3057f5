// SPDX-License-Identifier: Apache-2.0
//
// The gated GEMM for every SM from 8.0 on, by smxx_gemm.cuh:
// out = gated(a b0^T + bias0, a b1^T + bias1), see gate.h; and for training both sums.
#include "gate.cuh"
#include "portable/smxx_gemm.cuh"

namespace gated_mlp {

template <class T, class Element, bool kAligned>
__device__ __forceinline__ void gated(const GemmArguments& p) {
  const OutputTile<T, true> tile(p);
  Sums<T> sums = {};
  mainloop<T, Element, true, kAligned>(sums, p, tile.row, tile.column);
  if (p.gate_out != nullptr) {
    keep_sums<T, Element, kAligned, false>(sums, p, tile.row, tile.column);
    keep_sums<T, Element, kAligned, true>(sums, p, tile.row, tile.column);
  }
  with_gate(p.gating, [&](auto unit) {
    epilogue<T, Element, true, kAligned>(sums, p, unit, tile.row, tile.column);
  });
}

}  // namespace gated_mlp

KILN_GEMMS(gated)
