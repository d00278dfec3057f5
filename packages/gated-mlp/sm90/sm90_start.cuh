// SPDX-License-Identifier: Apache-2.0
//
// How a GEMM kernel starts beside the one ahead of it. Device only.
#pragma once

#include "overlap.cuh"
#include "sm90/sm90_arguments.h"
#include "sm90/sm90_ptx.cuh"

namespace gated_mlp {

// Before gate and up's kernel waits here, it touches nothing that any kernel may have written, and
// only then lets down's start: so down's may load its weights at once, whoever wrote them.
template <bool kGated>
__device__ __forceinline__ void begin_in_turn(const Sm90Arguments& p) {
  if (kGated) wait_for_previous_kernel();
  if (p.early != 0) let_next_kernel_start();
}
// Blocks of k of gate and up into the L2 cache, before the kernel waits: that cache also sees what
// the previous kernel still writes.
__device__ __forceinline__ void fetch_weights(const Sm90Arguments& p, int column, unsigned begin,
                                              unsigned end) {
#pragma unroll 1
  for (unsigned block = begin; block < end; ++block) {
    const int k = static_cast<int>(block) * kDepth;
    fetch_box(p.b0, k, column);
    fetch_box(p.b1, k, column);
  }
}

}  // namespace gated_mlp
