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
__device__ __forceinline__ void store_one_shared(unsigned address, float one) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(one) : "memory");
}
__device__ __forceinline__ void sync_consumers() {
  asm volatile("bar.sync 1, 256;" ::: "memory");
}

// A product's tiles of outputs are numbered so that neighbours share weights.
__device__ __forceinline__ gated_mlp::TilePosition wide_tile_at(const ProductArguments& p,
                                                                bool gated, int number) {
  const long long rows = parts_of(p.row_tiles, gated ? kWideRowTiles / 2 : kWideRowTiles);
  return gated_mlp::tile_position(static_cast<unsigned>(number), static_cast<unsigned>(rows),
                                  static_cast<unsigned>(p.token_blocks), kWidePanel);
}

// A CTA's place, and a warp's in it: its tile of outputs and its part of k.
template <bool kGated, int kOfTokens>
struct WidePlace {
  static constexpr bool kIsGated = kGated;
  static constexpr int kPanels = 2;
  static constexpr int kTokens = kOfTokens;
  static constexpr int kTokenBlocks = (kTokens + kWideBlock - 1) / kWideBlock;
  using Sums = float[kPanels][kTokens / 2];

  const ProductArguments& p;
  unsigned shared;
  int warp;
  int lane;
  int split_tile;  // the tile's number among those that are split, or negative
  int part;        // of k, of such a tile
  int row_block;
  int token_block;
  int first;  // tiles of k [first, last)
  int last;

  __device__ __forceinline__ WidePlace(const ProductArguments& a_p, unsigned a_shared)
      : p(a_p),
        shared(a_shared),
        warp(static_cast<int>(gated_mlp::warp_number())),
        lane(static_cast<int>(threadIdx.x) & 31) {
    const int number = static_cast<int>(blockIdx.x);
    const bool is_split = number >= p.whole;
    split_tile = is_split ? (number - p.whole) / p.splits : -1;
    part = is_split ? (number - p.whole) % p.splits : 0;
    const gated_mlp::TilePosition at =
        wide_tile_at(p, kGated, is_split ? p.whole + split_tile : number);
    row_block = static_cast<int>(at.row);
    token_block = static_cast<int>(at.column) * kTokenBlocks;
    const int units = (p.depth_tiles + kWideUnit - 1) / kWideUnit;
    const int tiles = is_split ? (units + p.splits - 1) / p.splits * kWideUnit : p.depth_tiles;
    first = part * tiles;
    last = first + tiles < p.depth_tiles ? first + tiles : p.depth_tiles;
  }

  // Sums of a token of the tile, in this CTA's part of k.
  __device__ __forceinline__ float* sums_of(int token) const {
    return p.parts +
           ((static_cast<long long>(split_tile) * p.splits + part) * kTokens + token) * kWideRows;
  }
  __device__ __forceinline__ int readable(int tile) const {
    return tile < p.row_tiles ? tile : p.row_tiles - 1;
  }
};

// The stages of a CTA's ring, and behind them their barriers. `Layout` says how large they are.
template <bool kGated, int kTokens, class Layout>
struct WideStages : WidePlace<kGated, kTokens>, Layout {
  using Place = WidePlace<kGated, kTokens>;
  using Layout::kStages;
  using Place::Place;

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
        gated_mlp::barrier_init(empty(stage), kWideConsumers * Layout::kFreeing);
      }
      gated_mlp::barrier_init_fence();
    }
    __syncthreads();
  }
};

// What a lane has of a token at the end of a tile: four neighbouring rows, gated of gate and of up.
template <bool kGated>
struct TokenSums {
  static constexpr int kMatrices = kGated ? 2 : 1;
  static constexpr int kWarps = 2 / kMatrices;  // of a token
  long long token;
  long long row;
  float sums[kMatrices][4];
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
  one.finish(sums);
}

// A warp's token, or half of one, with the sums of all parts in their order. False: there is none.
template <bool kGated>
__device__ __forceinline__ bool add_split(const ProductArguments& p, TokenSums<kGated>& one) {
  constexpr int kMatrices = TokenSums<kGated>::kMatrices;
  constexpr int kWarps = TokenSums<kGated>::kWarps;
  constexpr int kAtOnce = 8;  // parts whose loads are on their way together
  gated_mlp::wait_for_previous_kernel();
  gated_mlp::let_next_kernel_start();
  const unsigned number = blockIdx.x * 8 + threadIdx.x / 32;
  const auto tokens = static_cast<unsigned>(p.tile_tokens);
  const unsigned tile = number / kWarps / tokens;
  if (tile >= static_cast<unsigned>(p.split_tiles)) return false;
  const gated_mlp::TilePosition at = wide_tile_at(p, kGated, p.whole + static_cast<int>(tile));
  const unsigned token = number / kWarps % tokens;
  one.token = static_cast<long long>(at.column) * tokens + token;
  // The next product reads whole blocks of h: it gets numbers, whatever the parts have.
  const bool is_there = one.token < p.m;
  if (!kGated && !is_there) return false;
  const unsigned row = number % kWarps * (kWideRows / 2) + threadIdx.x % 32 * 4;
  one.row = static_cast<long long>(at.row) * (kWideRows / kMatrices) + row;
#pragma unroll
  for (int i = 0; i < kMatrices * 4; ++i) one.sums[i / 4][i % 4] = 0;
  const float* from =
      p.parts + (static_cast<long long>(tile) * p.splits * tokens + token) * kWideRows + row;
#pragma unroll 1
  for (int part = is_there ? 0 : p.splits; part < p.splits; part += kAtOnce) {
    float4 got[kAtOnce][kMatrices];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int matrix = 0; matrix < kMatrices; ++matrix) {
        got[i][matrix] = part + i < p.splits
                             ? *reinterpret_cast<const float4*>(from + matrix * (kWideRows / 2))
                             : float4{0, 0, 0, 0};
      }
      from += static_cast<long long>(tokens) * kWideRows;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int matrix = 0; matrix < kMatrices; ++matrix) {
        one.sums[matrix][0] += got[i][matrix].x;
        one.sums[matrix][1] += got[i][matrix].y;
        one.sums[matrix][2] += got[i][matrix].z;
        one.sums[matrix][3] += got[i][matrix].w;
      }
    }
  }
  return true;
}

// Four neighbouring numbers of h. Zeros beyond the last row tile.
template <class Element>
__device__ __forceinline__ void gate_four(const ProductArguments& p, const TokenSums<true>& one,
                                          unsigned (&words)[2]) {
  words[0] = words[1] = 0;
  if (one.row >= static_cast<long long>(p.row_tiles) * kTileRows) return;
  gated_mlp::with_gate(p.gating, [&](auto unit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float2 both[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        both[half] = {one.sums[half][2 * i], one.sums[half][2 * i + 1]};
        const void* const bias = half == 0 ? p.bias0 : p.bias1;
        if (bias != nullptr) both[half] = plus_two<Element>(both[half], bias, one.row + 2 * i);
      }
      words[i] = gated_mlp::pack_pair(unit.of(both[0].x, both[1].x), unit.of(both[0].y, both[1].y),
                                      Element{});
      words[i] = gated_mlp::bound_pair(words[i], p.gating.greatest, Element{});
    }
  });
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
