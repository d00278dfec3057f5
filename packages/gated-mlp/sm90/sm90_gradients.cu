// SPDX-License-Identifier: Apache-2.0
//
// Backward on sm_90a: what it multiplies, read as it lies in memory, and what it does between. Of
// every product one operand or both have k down their columns; wgmma turns them.
//
//   gradients_gated     dh = dy down, which is not stored: the epilogue reads g and u and stores
//                       dg, du and h. a has k along its rows, b is turned
//   gradients_tokens    dx = dg gate + du up; operands as above
//   gradients_weights   dgate = dg^T x, dup = du^T x, ddown = dy^T h in one grid; both are turned.
//                       Each is written or, in float32, added to what is there
//   gradients_sums      the biases' gradients: sums of columns
//
// The two CTAs of a cluster lie below each other and share b. Every output is one accumulator, and
// sums of columns run in an order that depends on nothing but the number of rows.
//
//   threads of a CTA     role, but in gradients_sums
//   0 to 31              producer: one thread issues every copy into a stage
//   32 to 63, to 95      in gradients_gated a carrier for each consumer warpgroup: one thread
//                        issues the copies of its strips
//   the rest to 127      only give up registers
//   128 to 255, to 383   two consumer warpgroups: multiply, store
//
//   barrier              arrivals of a phase                            who waits for it
//   full[stage]          1 of the producer, and kStageBytes of copies,  the stage's consumers
//                        half of b's from the other CTA
//   empty[stage]         1 of each warp that reads the stage, in both   the producer, before it
//                        CTAs of the cluster: 8 (ping-pong) or 16       fills the stage again
//   turn[warpgroup]      4, the warps of the other warpgroup            the warpgroup, before the
//                        (ping-pong)                                    products of a tile
//   brought[warpgroup]   1 of the carrier, and copies of g and u        the warpgroup
//          [place]
//   done[warpgroup]      4, the warps of the warpgroup                  its carrier, before it
//          [place]                                                      stores the strips
//
//   a stage              | a: kRows x 64 of k | b: kColumns x 64 of k |
//   a turned operand     in blocks of 64 of its rows: | 64 lines, one of each k, of 64 rows | ...
//                        the first 32 lines of a block of b come from CTA 0, the others from CTA 1
//   behind the stages    | places of strips: two a warpgroup, three in gradients_gated | barriers |
//   such a place         | a strip of g, then of dg | of u, then of du | of h |
#include "element.cuh"
#include "gate.cuh"
#include "overlap.cuh"
#include "sm90/sm90_arguments.h"
#include "sm90/sm90_mainloop.cuh"
#include "sm90/sm90_prefill.cuh"
#include "sm90/sm90_ptx.cuh"
#include "tile.h"

namespace gated_mlp {

// A tile: of weights, of one of the products; of tokens, of products[0], whose map is that of the
// output.
template <class T, class Operands>
struct GradientTile {
  const GradientProduct* product = nullptr;
  int row = 0;  // of this CTA
  int column = 0;

  __device__ __forceinline__ GradientTile(const GradientArguments& p, unsigned tile,
                                          unsigned rank) {
    product = p.products;
    if (Operands::kTurnedA) {
      for (; tile >= product->tiles_m * product->tiles_n; ++product) {
        tile -= product->tiles_m * product->tiles_n;
      }
    }
    const TilePosition at = tile_position(tile, product->tiles_m, product->tiles_n, product->panel);
    row = static_cast<int>(at.row * 2 + rank) * T::kRows;
    column = static_cast<int>(at.column) * T::kColumns;
  }
};

template <class Operands>
__device__ __forceinline__ unsigned tile_count(const GradientArguments& p) {
  unsigned tiles = 0;
  for (unsigned i = 0; i < (Operands::kTurnedA ? p.count : 1); ++i) {
    tiles += p.products[i].tiles_m * p.products[i].tiles_n;
  }
  return tiles;
}

template <class T, class Operands>
__device__ __forceinline__ void load_stage(const GradientProduct& product,
                                           const PrefillMemory<T>& memory, unsigned stage,
                                           const GradientTile<T, Operands>& at, int k,
                                           unsigned rank) {
  constexpr int kHalf = kDepth / 2;
  const unsigned full = memory.full(stage);
  barrier_expect(full, T::kStageBytes);
  if (Operands::kTurnedA) {
#pragma unroll
    for (int block = 0; block < T::kRows / 64; ++block) {
      load_box(memory.a(stage) + block * kTurnedBytes, product.a, full, at.row + block * 64, k);
    }
  } else {
    load_box(memory.a(stage), product.a, full, k, at.row);
  }
  const int half = static_cast<int>(rank) * kHalf;
#pragma unroll
  for (int block = 0; block < T::kColumns / 64; ++block) {
    load_box_both(memory.b(stage) + block * kTurnedBytes + half * 128, product.b, full,
                  at.column + block * 64, k + half);
  }
}

template <class T, class Operands>
__device__ __forceinline__ void produce(const GradientArguments& p, const PrefillMemory<T>& memory,
                                        unsigned rank, unsigned first, unsigned clusters) {
  const unsigned tiles = tile_count<Operands>(p);
  const unsigned links = Operands::kTurnedA ? 1 : p.count;
  Ring<T::kStages> ring;
  for (unsigned tile = first; tile < tiles; tile += clusters) {
    const GradientTile<T, Operands> at(p, tile, rank);
    for (unsigned link = 0; link < links; ++link) {
      for (unsigned block = 0; block < p.k_blocks; ++block) {
        barrier_wait(memory.empty(ring.stage), ring.parity ^ 1);
        load_stage<T, Operands>(at.product[link], memory, ring.stage, at,
                                static_cast<int>(block) * kDepth, rank);
        ring.next();
      }
    }
  }
}

template <class Arguments>
constexpr bool kGates = false;
template <>
constexpr bool kGates<GatedGradientArguments> = true;

// Brings g and u to a warpgroup's epilogue, a strip of each into one of its places after the other,
// and stores what the epilogue leaves there. The first strips arrive while the tile multiplies.
template <class T, class Operands>
__device__ __forceinline__ void carry(const GatedGradientArguments& p,
                                      const PrefillMemory<T>& memory, unsigned rank, unsigned first,
                                      unsigned clusters, int warpgroup) {
  static_assert(!T::kPingPong);
  constexpr unsigned kTileStrips = T::kColumns / kMostStripColumns;
  const unsigned tiles = tile_count<Operands>(p);
  const unsigned strips = first < tiles ? ((tiles - 1 - first) / clusters + 1) * kTileStrips : 0;
  Ring<T::kPlaces> place;
  for (unsigned next = 0; next < strips + T::kPlaces; ++next) {
    const unsigned gate = memory.strip(warpgroup, place.stage);
    const unsigned up = gate + T::kMatrixStripBytes;
    int row;
    int column;
    const auto find = [&](unsigned strip) {
      const GradientTile<T, Operands> tile(p, first + strip / kTileStrips * clusters, rank);
      row = tile.row + warpgroup * T::kWarpgroupRows;
      column = tile.column + static_cast<int>(strip % kTileStrips) * kMostStripColumns;
    };
    if (next >= T::kPlaces) {
      find(next - T::kPlaces);
      barrier_wait(memory.done(warpgroup, place.stage), place.parity ^ 1);
      store_box(p.products[0].out, gate, column, row);
      store_box(p.grad_up, up, column, row);
      if (p.stores_hidden != 0) store_box(p.hidden, up + T::kMatrixStripBytes, column, row);
      wait_stores_read<0>();
    }
    if (next < strips) {
      find(next);
      const unsigned brought = memory.brought(warpgroup, place.stage);
      barrier_expect(brought, 2 * T::kMatrixStripBytes);
      load_box(gate, p.gate_out, brought, column, row);
      load_box(up, p.up_out, brought, column, row);
    }
    place.next();
  }
}

// Two neighbours of a row, of each matrix.
struct GatedPair {
  unsigned grad_gate;
  unsigned grad_up;
  unsigned hidden;
};

template <class Element, class Unit>
__device__ __forceinline__ GatedPair gated_pair(Unit unit, unsigned gate, unsigned up,
                                                float2 grad) {
  const float2 g = unpack_pair<Element>(gate);
  const float2 u = unpack_pair<Element>(up);
  const GatedGradients first = unit.gradients(g.x, u.x, grad.x);
  const GatedGradients second = unit.gradients(g.y, u.y, grad.y);
  return {pack_pair(first.gate, second.gate, Element{}), pack_pair(first.up, second.up, Element{}),
          unit.pack(first.hidden, second.hidden, Element{})};
}

// The sums are those of dh. dg and du take the place of g and u, and h lies behind them.
template <class T, class Element, class Unit>
__device__ __forceinline__ void gated_epilogue(const Sums<T>& tile, const PrefillMemory<T>& memory,
                                               Ring<T::kPlaces>& place, Unit unit, int warpgroup) {
  constexpr int kStripBlocks = kMostStripColumns / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int matrix_row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int strip = 0; strip < T::kColumns / kMostStripColumns; ++strip) {
    barrier_wait(memory.brought(warpgroup, place.stage), place.parity);
#pragma unroll
    for (int block = 0; block < kStripBlocks; block += 2) {
      const unsigned at = memory.strip(warpgroup, place.stage) +
                          in_strip<kMostStripColumns>(matrix_row, block + lane / 16);
      unsigned gate[T::kBlocks][4];
      unsigned up[T::kBlocks][4];
#pragma unroll
      for (int i = 0; i < T::kBlocks; ++i) {
        load_matrices(at + i * 64 * 64, gate[i]);
        load_matrices(at + i * 64 * 64 + T::kMatrixStripBytes, up[i]);
      }
#pragma unroll
      for (int i = 0; i < T::kBlocks; ++i) {
        unsigned hidden[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* grad = tile.sums[i] + (strip * kStripBlocks + block) * 4 + j * 2;
          const GatedPair pair =
              gated_pair<Element>(unit, gate[i][j], up[i][j], {grad[0], grad[1]});
          gate[i][j] = pair.grad_gate;
          up[i][j] = pair.grad_up;
          hidden[j] = pair.hidden;
        }
        store_matrices(at + i * 64 * 64, gate[i]);
        store_matrices(at + i * 64 * 64 + T::kMatrixStripBytes, up[i]);
        store_matrices(at + i * 64 * 64 + 2 * T::kMatrixStripBytes, hidden);
      }
    }
    shared_writes_before_copies();
    __syncwarp();
    if (lane == 0) barrier_arrive(memory.done(warpgroup, place.stage));
    place.next();
  }
}

// As store_tile, by turns of a strip of 16 columns of float32, of rows of 64 bytes too. Of each
// four rows two take a strip's halves in the other order, so that what 16 lanes write at once lies
// in all banks.
template <class T>
__device__ __forceinline__ void add_tile(const Sums<T>& tile, const PrefillMemory<T>& memory,
                                         const TensorMap& map, int warpgroup, int row, int column) {
  constexpr int kAddedStrips = T::kColumns / kAddedStripColumns;
  static_assert(kAddedStrips % 2 == 0, "the next tile begins where this one did");
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const int matrix_row = thread / 32 * 16 + lane / 4;
  const bool second_first = (lane & 8) != 0;
#pragma unroll
  for (int strip = 0; strip < kAddedStrips; ++strip) {
    const unsigned shared = memory.strip(warpgroup, strip % 2);
    if (thread < 32) wait_stores_read<1>();
    warpgroup_sync<1>(warpgroup);
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
      const int half = second_first ? 1 - turn : turn;
      const unsigned at =
          shared + in_strip<kMostStripColumns>(matrix_row, half * 2 + lane % 4 / 2) + lane % 2 * 8;
#pragma unroll
      for (int i = 0; i < T::kBlocks; ++i) {
        const float* one = tile.sums[i] + (strip * 2 + turn) * 4;
        const float* other = tile.sums[i] + (strip * 2 + 1 - turn) * 4;
        const unsigned block = at + i * 64 * 64;
        store_shared(block, second_first ? other[0] : one[0], second_first ? other[1] : one[1]);
        store_shared(block + 8 * 64, second_first ? other[2] : one[2],
                     second_first ? other[3] : one[3]);
      }
    }
    shared_writes_before_copies();
    warpgroup_sync<1>(warpgroup);
    if (warp_number() % 4 == 0 && elect_one()) {
      add_box(map, shared, column + strip * kAddedStripColumns, row);
    }
    __syncwarp();
  }
}

template <class T, class Element, class Operands, class Arguments>
__device__ __forceinline__ void consume(const Arguments& p, const PrefillMemory<T>& memory,
                                        unsigned rank, unsigned first, unsigned clusters,
                                        int warpgroup) {
  const unsigned tiles = tile_count<Operands>(p);
  const unsigned blocks = p.k_blocks * (Operands::kTurnedA ? 1 : p.count);
  const int row_in_tile = T::kPingPong ? 0 : warpgroup * T::kWarpgroupRows;
  Ring<T::kStages> ring;
  Turns<T, PrefillMemory<T>> turns(memory, warpgroup);
  const Walk<T> walk(ring, first, clusters, blocks, warpgroup);
  int next_strip = 0;
  Ring<T::kPlaces> place;
  Sums<T> sums;
  for (unsigned tile = walk.first; tile < tiles; tile += walk.step) {
    const GradientTile<T, Operands> at(p, tile, rank);
    turns.wait();
    multiply_blocks<T, Element, true, Operands>(
        sums, memory, ring, blocks, row_in_tile * kDepth * 2,
        [&](unsigned stage) { release(memory.empty(stage)); });
    turns.pass();
    wait_for_sums(sums);
    release(memory.empty(ring.last()));
    if (T::kPingPong) ring.skip(blocks);
    if constexpr (kGates<Arguments>) {
      with_gate(p.gating, [&](auto unit) {
        gated_epilogue<T, Element>(sums, memory, place, unit, warpgroup);
      });
      continue;
    }
    // Of the tile before, which may have been stored by another thread of this warp.
    if (Operands::kTurnedA && threadIdx.x % 128 < 32) wait_stores_read<0>();
    if (Operands::kTurnedA && at.product->adds != 0) {
      add_tile<T>(sums, memory, at.product->out, warpgroup, at.row + row_in_tile, at.column);
      continue;
    }
    epilogue<T, Element, false>(sums, memory, at.product->out, NoGate{}, warpgroup,
                                at.row + row_in_tile, at.column, next_strip);
    next_strip = (next_strip + kStrips<false, T>) % 2;
  }
  if (threadIdx.x % 128 < 32) wait_stores_read<0>();  // the kernel's end waits for the writes
}

template <class T, class Element, class Operands, class Arguments>
__device__ __forceinline__ void gradients(const Arguments& p) {
  extern __shared__ unsigned char shared_memory[];
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
  const PrefillMemory<T> memory = {(shared + 1023) & ~1023u};
  const unsigned rank = cluster_rank();
  const unsigned first = blockIdx.x / 2;
  const unsigned clusters = gridDim.x / 2;
  const auto init = [&] {
    if constexpr (kGates<Arguments>) {
      for (unsigned place = 0; place < 2 * T::kPlaces; ++place) {
        barrier_init(memory.brought(0, place), 1);
        barrier_init(memory.done(0, place), 4);
      }
    }
    init_barriers<T>(memory, T::kStages);
  };
  const auto start = [] {
    wait_for_previous_kernel();
    let_next_kernel_start();
  };
  const auto issue = [&] {
    if (warp_number() == 0 && elect_one()) {
      produce<T, Operands>(p, memory, rank, first, clusters);
    }
    if constexpr (kGates<Arguments>) {
      const int carried = static_cast<int>(warp_number()) - 1;
      if (carried >= 0 && carried < 2 && elect_one()) {
        carry<T, Operands>(p, memory, rank, first, clusters, carried);
      }
    }
  };
  play_roles(init, start, issue, [&](int warpgroup) {
    consume<T, Element, Operands>(p, memory, rank, first, clusters, warpgroup);
  });
}

// A CTA has 16 columns: its even threads eight of them, its odd ones the others, each of every
// 128th row.
template <class Element>
__device__ __forceinline__ void column_sums(const ColumnSumsArguments& p) {
  constexpr int kLines = kSumThreads / 2;
  __shared__ float parts[kLines][kSumColumns + 1];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int line = static_cast<int>(threadIdx.x) / 2;
  const int eight = static_cast<int>(threadIdx.x) % 2 * 8;
  const long long column = static_cast<long long>(blockIdx.x) * kSumColumns + eight;
  float sums[8] = {};
  if (column < p.columns) {
    const auto* source = static_cast<const Element*>(p.source) + column;
#pragma unroll 4
    for (long long row = line; row < p.rows; row += kLines) {
      const uint4 words = *reinterpret_cast<const uint4*>(source + row * p.columns);
      const unsigned all[] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_pair<Element>(all[i]);
        sums[2 * i] += pair.x;
        sums[2 * i + 1] += pair.y;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) parts[line][eight + i] = sums[i];
  for (int lines = kLines / 2; lines > 0; lines /= 2) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < lines * kSumColumns; i += kSumThreads) {
      parts[i / kSumColumns][i % kSumColumns] += parts[i / kSumColumns + lines][i % kSumColumns];
    }
  }
  __syncthreads();
  const long long out = static_cast<long long>(blockIdx.x) * kSumColumns + threadIdx.x;
  if (threadIdx.x < kSumColumns && out < p.columns) {
    store_sum<Element>(p.sums, out, parts[0][threadIdx.x], p.adds != 0);
  }
}

}  // namespace gated_mlp

#define KILN_TOKEN_KERNELS(family, shape, Tile) \
  KILN_KERNEL_PAIR(family, tokens, gated_mlp::TurnedB, GradientArguments, shape, Tile)
#define KILN_GATED_GRADIENT_KERNELS(family, shape, Tile) \
  KILN_KERNEL_PAIR(family, gated, gated_mlp::TurnedB, GatedGradientArguments, shape, Tile)
#define KILN_WEIGHT_KERNELS(family, shape, Tile) \
  KILN_KERNEL_PAIR(family, weights, gated_mlp::TurnedBoth, GradientArguments, shape, Tile)
KILN_TOKEN_GRADIENTS(KILN_TOKEN_KERNELS)
KILN_WEIGHT_GRADIENTS(KILN_WEIGHT_KERNELS)
KILN_GATED_GRADIENTS(KILN_GATED_GRADIENT_KERNELS)

#define KILN_SUMS_KERNEL(name, Element)                                \
  extern "C" __global__ void __launch_bounds__(gated_mlp::kSumThreads) \
      name(const gated_mlp::ColumnSumsArguments arguments) {           \
    gated_mlp::column_sums<gated_mlp::Element>(arguments);             \
  }
KILN_SUMS_KERNEL(gradients_sums_bf16, Bfloat16)
KILN_SUMS_KERNEL(gradients_sums_f16, Float16)
