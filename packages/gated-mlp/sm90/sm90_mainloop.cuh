// SPDX-License-Identifier: Apache-2.0
//
// What a consumer warpgroup does with the stages of a ring, in prefill and decode. Device only.
#pragma once

#include "sm90/sm90_arguments.h"
#include "sm90/sm90_outputs.cuh"
#include "sm90/sm90_ptx.cuh"
#include "sm90/sm90_wgmma.cuh"

namespace gated_mlp {

template <class T>
__device__ __forceinline__ void hold_all(Sums<T>& tile) {
#pragma unroll
  for (int i = 0; i < T::kBlocks; ++i) hold(tile.sums[i]);
}

// The next `blocks` of k: sums += tokens weights^T, or where the tile is swapped, weights tokens^T.
// `offset`: of this warpgroup's rows in the first of the two, in bytes. One wgmma group stays in
// flight: `release(stage)` says that a stage is read when the next one's products are on their way,
// and the caller waits for the last group. kFresh: the sums start at zero.
template <class T, class Element, bool kFresh, class Order = Straight, class Memory, class Stages,
          class Release>
__device__ __forceinline__ void multiply_blocks(Sums<T>& tile, const Memory& memory, Stages& ring,
                                                unsigned blocks, unsigned offset, Release release) {
  constexpr unsigned kNextA = Order::kTurnedA ? kNextK16Turned : kNextK16;
  constexpr unsigned kNextB = Order::kTurnedB ? kNextK16Turned : kNextK16;
  unsigned before = ring.stage;
#pragma unroll 1
  for (unsigned block = 0; block < blocks; ++block) {
    barrier_wait(memory.full(ring.stage), ring.parity);
    hold_all(tile);
    wgmma_fence();
    const unsigned tokens = memory.a(ring.stage);
    const unsigned weights = memory.b(ring.stage);
    const unsigned long long a =
        matrix_at<Order::kTurnedA>((T::kSwapped ? weights : tokens) + offset);
    const unsigned long long b = matrix_at<Order::kTurnedB>(T::kSwapped ? tokens : weights);
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      const int add = kFresh && k == 0 ? static_cast<int>(block) : 1;
      const unsigned long long columns = b + k * kNextB;
#pragma unroll
      for (int i = 0; i < T::kBlocks; ++i) {
        const unsigned long long rows = a + k * kNextA + i * (64 * 128 / 16);
        if constexpr (T::kWide) {
          constexpr Columns<T::kColumns / 2> kHalf = {};
          multiply(kHalf, Order{}, tile.sums[i], rows, columns, add, Element{});
          multiply(kHalf, Order{}, tile.sums[i] + T::kColumns / 4, rows,
                   columns + T::kBBytes / 2 / 16, add, Element{});
        } else {
          multiply(tile.sums[i], rows, columns, add, Element{}, Order{});
        }
      }
    }
    wgmma_commit();
    hold_all(tile);
    wgmma_wait<1>();
    if (block > 0) release(before);
    before = ring.stage;
    ring.next();
  }
}

// Instead, where all of the warpgroup's rows are beyond the output.
template <class Memory, class Stages, class Release>
__device__ __forceinline__ void skip_blocks(const Memory& memory, Stages& ring, unsigned blocks,
                                            Release release) {
#pragma unroll 1
  for (unsigned block = 0; block < blocks; ++block) {
    barrier_wait(memory.full(ring.stage), ring.parity);
    release(ring.stage);
    ring.next();
  }
}

// Until the last group has ended.
template <class T>
__device__ __forceinline__ void wait_for_sums(Sums<T>& tile) {
  wgmma_wait<0>();
  hold_all(tile);
}

}  // namespace gated_mlp
