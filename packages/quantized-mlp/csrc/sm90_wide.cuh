// SPDX-License-Identifier: Apache-2.0
//
// What the wide kernels share: which rows and tokens a CTA has, its stages and its warps' roles.
// Device only.
#pragma once

#include "dequantize.cuh"
#include "outputs.cuh"
#include "overlap.cuh"
#include "sm90/sm90_ptx.cuh"
#include "sm90/sm90_wgmma.cuh"

namespace quantized_mlp {

using gated_mlp::barrier_arrive;
using gated_mlp::barrier_wait;

__device__ __forceinline__ void copy_bulk(unsigned shared, const void* global, unsigned bytes,
                                          unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_bulk(void* global, unsigned shared, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void sync_consumers() {
  asm volatile("bar.sync 1, 256;" ::: "memory");
}

// A CTA's place, and a warp's in it. `unit`: tiles of k that are not parted where k is split.
template <bool kGated, int kTokenBlocks>
struct WidePlace {
  static constexpr int kPanels = 2;
  static constexpr int kTokens = kTokenBlocks * kWideBlock;
  using Sums = float[kPanels][kTokens / 2];

  const ProductArguments& p;
  unsigned shared;
  int warp;
  int lane;
  int row_block;
  int token_block;
  int first;  // tiles of k [first, last)
  int last;

  __device__ __forceinline__ WidePlace(const ProductArguments& a_p, unsigned a_shared, int unit)
      : p(a_p),
        shared(a_shared),
        warp(static_cast<int>(gated_mlp::warp_number())),
        lane(static_cast<int>(threadIdx.x) & 31) {
    const auto rows = static_cast<unsigned>(parts_of(p.row_tiles, row_tiles_of()));
    const unsigned tokens = gridDim.x / rows;
    const gated_mlp::TilePosition at =
        gated_mlp::tile_position(blockIdx.x, rows, tokens, kWidePanel);
    row_block = static_cast<int>(at.row);
    token_block = static_cast<int>(at.column) * kTokenBlocks;
    const int units = (p.depth_tiles + unit - 1) / unit;
    const int tiles = (units + p.splits - 1) / p.splits * unit;
    first = static_cast<int>(blockIdx.z) * tiles;
    last = first + tiles < p.depth_tiles ? first + tiles : p.depth_tiles;
  }

  // Of each matrix.
  __device__ __forceinline__ static constexpr int row_tiles_of() {
    return kGated ? kWideRowTiles / 2 : kWideRowTiles;
  }
  __device__ __forceinline__ int readable(int tile) const {
    return tile < p.row_tiles ? tile : p.row_tiles - 1;
  }
};

// The stages of a CTA's ring, and behind them their barriers. `Layout` says how large they are.
template <bool kGated, int kTokenBlocks, class Layout>
struct WideStages : WidePlace<kGated, kTokenBlocks>, Layout {
  using Place = WidePlace<kGated, kTokenBlocks>;
  using Layout::kStages;

  __device__ __forceinline__ WideStages(const ProductArguments& p, unsigned shared)
      : Place(p, shared, Layout::kUnit) {}

  __device__ __forceinline__ unsigned stage_at(unsigned stage) const {
    return this->shared + stage * Layout::kStageStep;
  }
  __device__ __forceinline__ unsigned full(unsigned stage) const {
    return stage_at(kStages) + stage * 8;
  }
  __device__ __forceinline__ unsigned empty(unsigned stage) const {
    return full(kStages) + stage * 8;
  }

  __device__ __forceinline__ void start() const {
    if (threadIdx.x == 0) {
      for (unsigned stage = 0; stage < kStages; ++stage) {
        gated_mlp::barrier_init(full(stage), Layout::kArrivals);
        gated_mlp::barrier_init(empty(stage), kWideConsumers);
      }
      gated_mlp::barrier_init_fence();
    }
    __syncthreads();
  }
};

// A CTA: its last four warps fill the stages, the others multiply.
template <class One>
__device__ __forceinline__ void run_wide(const ProductArguments& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const One one(p, (static_cast<unsigned>(__cvta_generic_to_shared(memory)) + 1023u) & ~1023u);
  one.start();
  gated_mlp::wait_for_previous_kernel();
  gated_mlp::let_next_kernel_start();
  if (one.warp >= kWideConsumers) {
    gated_mlp::give_registers<One::kProducerRegisters>();
    one.produce(one.warp - kWideConsumers);
    return;
  }
  gated_mlp::take_registers<One::kConsumerRegisters>();
  typename One::Sums sums = {};
  one.consume(sums);
  one.store(sums);
}

// Numbers k and k + 1 of a token of x, the first in the low half. Zeros beyond the last token and
// k.
__device__ __forceinline__ unsigned load_pair(const ArrangeArguments& p, long long token,
                                              long long k) {
  if (token >= p.m || k >= p.k) return 0;
  const unsigned short* const from = static_cast<const unsigned short*>(p.x) + token * p.k + k;
  if (p.paired != 0) return *reinterpret_cast<const unsigned*>(from);
  return from[0] | (k + 1 < p.k ? static_cast<unsigned>(from[1]) << 16 : 0u);
}

}  // namespace quantized_mlp
