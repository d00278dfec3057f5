// SPDX-License-Identifier: Apache-2.0
//
// The two GEMMs of the MLP on sm_90a with the weights as wgmma's 64 rows and the tokens as its
// columns. A tile then has any multiple of 8 tokens, which its call names: the rows of a call are
// cut into tiles of one height, so that no tile is nearly empty. One kernel has all heights; only
// its main loop is there once for each. Roles and barriers are those of sm90_prefill.cu.
//
//   a stage              | a: tokens x 64 of k | b: boxes of 64 rows of the weights; gated: of gate
//                        and of up in turns |
//   behind the stages    | strips of outputs: two a warpgroup | barriers |
#include "sm90/sm90_arguments.h"
#include "sm90/sm90_mainloop.cuh"
#include "sm90/sm90_outputs.cuh"
#include "sm90/sm90_prefill.cuh"
#include "sm90/sm90_ptx.cuh"
#include "sm90/sm90_start.cuh"
#include "tile.h"

namespace gated_mlp {

// Shared memory of a CTA, by addresses. How large a stage is, and so how many there are, follows
// from the tokens.
template <class T>
struct SwappedMemory {
  unsigned base;
  unsigned a_bytes;
  unsigned stages;
  __device__ __forceinline__ SwappedMemory(unsigned shared, unsigned tokens)
      : base((shared + kSharedAlign - 1) & ~(kSharedAlign - 1)),
        a_bytes(whole_sixteens(tokens) * kDepth * 2),
        stages(T::stages_of(tokens)) {}
  __device__ __forceinline__ unsigned a(unsigned stage) const {
    return base + stage * (a_bytes + T::kBBytes);
  }
  __device__ __forceinline__ unsigned b(unsigned stage) const { return a(stage) + a_bytes; }
  // A strip has half as many columns as a block of k.
  __device__ __forceinline__ unsigned strip(int warpgroup, int index) const {
    return a(stages) + (warpgroup * 2 + index) * (a_bytes / 2);
  }
  __device__ __forceinline__ unsigned full(unsigned stage) const {
    return base + T::kBarriersAt + stage * 8;
  }
  __device__ __forceinline__ unsigned empty(unsigned stage) const {
    return full(T::kMostStages + stage);
  }
  __device__ __forceinline__ unsigned turn(int warpgroup) const {
    return full(2 * T::kMostStages + warpgroup);
  }
};

template <class T, bool kGated>
struct SwappedAt {
  int row;     // of the tokens
  int column;  // of the output
  __device__ __forceinline__ SwappedAt(const Sm90Arguments& p, unsigned tile, unsigned rank) {
    const TilePosition at = tile_position(tile, p.tiles_m, p.tiles_n, p.panel);
    const bool across = p.across != 0;
    row = static_cast<int>((across ? at.row : at.row * 2 + rank) * p.tile_rows);
    column = static_cast<int>(across ? at.column * 2 + rank : at.column) * kOutColumns<kGated, T>;
  }
};

// Box number `box` of the weights' rows, to this CTA or to both.
template <class T, bool kGated>
__device__ __forceinline__ void load_weights(const Sm90Arguments& p, unsigned shared, unsigned full,
                                             int box, int k, int column, bool both) {
  const TensorMap& map = kGated && box % 2 == 1 ? p.b1 : p.b0;
  const int row = column + (kGated ? box / 2 : box) * 64;
  if (both) {
    load_box_both(shared + box * T::kBoxBytes, map, full, k, row);
  } else {
    load_box(shared + box * T::kBoxBytes, map, full, k, row);
  }
}

// Across: the tokens come to both CTAs, half from each. Otherwise the weights do.
template <class T, bool kGated>
__device__ __forceinline__ void load_b(const Sm90Arguments& p, const SwappedMemory<T>& memory,
                                       unsigned stage, int column, int k, unsigned rank) {
  constexpr int kHalf = T::kBoxes / 2;
  const bool both = p.across == 0;
  const int first = both ? static_cast<int>(rank) * kHalf : 0;
  const int boxes = both ? kHalf : T::kBoxes;
  for (int box = first; box < first + boxes; ++box) {
    load_weights<T, kGated>(p, memory.b(stage), memory.full(stage), box, k, column, both);
  }
}
// Of tokens: none where all are beyond the matrix. The copy engine takes longer to fill them with
// zeros than wgmma to multiply with them.
template <class T>
__device__ __forceinline__ unsigned bytes_of_a(const Sm90Arguments& p,
                                               const SwappedMemory<T>& memory, int row) {
  if (row >= p.m) return 0;
  return p.across != 0 ? memory.a_bytes : p.tile_rows * (kDepth * 2);
}
template <class T>
__device__ __forceinline__ void load_a(const Sm90Arguments& p, const SwappedMemory<T>& memory,
                                       unsigned stage, int row, int k, unsigned rank,
                                       unsigned long long policy) {
  if (row >= p.m) return;
  if (p.across != 0) {
    const unsigned half = rank * (memory.a_bytes / 2);
    load_box_both(memory.a(stage) + half, p.a, memory.full(stage), k,
                  row + static_cast<int>(half / (kDepth * 2)), policy);
  } else {
    load_box(memory.a(stage), p.a, memory.full(stage), k, row, policy);
  }
}

template <class T, bool kGated>
__device__ __forceinline__ void produce(const Sm90Arguments& p, const SwappedMemory<T>& memory,
                                        unsigned rank, unsigned first, unsigned clusters) {
  const unsigned long long keep = evict_last_policy();
  const unsigned tiles = p.tiles_m * p.tiles_n;
  AnyRing ring(memory.stages);
  // As in sm90_prefill.cu: the weights do not depend on the previous kernel.
  unsigned ahead = 0;
  if (!kGated) {
    if (first < tiles) {
      const SwappedAt<T, kGated> at(p, first, rank);
      const unsigned bytes = T::kBBytes + bytes_of_a(p, memory, at.row);
      for (; ahead < memory.stages && ahead < p.k_blocks; ++ahead) {
        barrier_expect(memory.full(ahead), bytes);
        load_b<T, kGated>(p, memory, ahead, at.column, static_cast<int>(ahead) * kDepth, rank);
      }
    }
    wait_for_previous_kernel();
  }
  for (unsigned tile = first; tile < tiles; tile += clusters) {
    const SwappedAt<T, kGated> at(p, tile, rank);
    const unsigned bytes = T::kBBytes + bytes_of_a(p, memory, at.row);
    for (unsigned block = 0; block < p.k_blocks; ++block) {
      const int k = static_cast<int>(block) * kDepth;
      if (ahead > 0) {
        --ahead;
      } else {
        barrier_wait(memory.empty(ring.stage), ring.parity ^ 1);
        barrier_expect(memory.full(ring.stage), bytes);
        load_b<T, kGated>(p, memory, ring.stage, at.column, k, rank);
      }
      load_a(p, memory, ring.stage, at.row, k, rank, keep);
      ring.next();
    }
  }
}

// Calls function(tile), of so many tokens.
template <class T, class Function>
__device__ __forceinline__ void with_tokens(unsigned tokens, const Function& function) {
  if constexpr (T::kRows == kFewestSwapped) {
    function(T{});
  } else if (tokens == T::kRows) {
    function(T{});
  } else {
    with_tokens<SwappedTile<T::kRows - 8, T::kColumns>>(tokens, function);
  }
}

// What the residual has of 64 columns, into the strips where their outputs will be.
template <class T>
__device__ __forceinline__ void bring_residual(const Sm90Arguments& p,
                                               const SwappedMemory<T>& memory, int warpgroup,
                                               int row, int column) {
  constexpr int kChunks = 8;  // of 16 bytes, in a row of 64 columns
  for (unsigned i = threadIdx.x % 128; i < p.tile_rows * kChunks; i += 128) {
    const int token = static_cast<int>(i / kChunks);
    const int chunk = static_cast<int>(i % kChunks);
    const long long at_row = row + token;
    const long long at = column + chunk * 8;
    uint4 words = {};
    if (at_row < p.m && at < p.n) {
      words = *reinterpret_cast<const uint4*>(static_cast<const char*>(p.residual) +
                                              (at_row * p.n + at) * 2);
    }
    store_chunk(memory.strip(warpgroup, chunk / 4) + in_strip<32>(token, chunk % 4), words);
  }
}

// A block of 64 columns of the output, in two strips side by side, each of the rows of two warps'
// sums, transposed. Of a gated tile the block of gate and that of up make one.
template <class T, class Element, bool kGated, class Unit>
__device__ __forceinline__ void store_block(const Sums<T>& tile, int i,
                                            const SwappedMemory<T>& memory, const Sm90Arguments& p,
                                            Unit unit, int warpgroup, int row, int column) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const unsigned shared = memory.strip(warpgroup, thread / 64);
  const int chunk = thread / 32 % 2 * 2 + lane / 8 % 2;
  const int strip_row = lane / 16 * 8 + lane % 8;
  if (thread == 0) wait_stores_read<0>();
  warpgroup_sync<1>(warpgroup);
  const bool adds = !kGated && p.residual != nullptr;
  if (adds) {
    bring_residual(p, memory, warpgroup, row, column);
    warpgroup_sync<1>(warpgroup);
  }
#pragma unroll
  for (int first = 0; first < T::kRows; first += 16) {
    if (first >= static_cast<int>(p.tile_rows)) break;
    const unsigned at_shared = shared + in_strip<32>(first + strip_row, chunk);
    unsigned words[4] = {};
    if (adds) load_transposed(at_shared, words);
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const float* sums = tile.sums[i] + first / 2 + j * 2;
      // Columns are tokens here: sums[0] and sums[2] are one token's, sums[1] and sums[3] the next
      // one's. What a gate takes together must be of one token.
      float2 one = {sums[0], sums[2]};
      float2 next = {sums[1], sums[3]};
      if constexpr (kGated) {
        const float* ups = tile.sums[i + 1] + first / 2 + j * 2;
        one = unit.of_pair(one, {ups[0], ups[2]});
        next = unit.of_pair(next, {ups[1], ups[3]});
      } else if (adds) {
        const float2 upper = unpack_pair<Element>(words[j]);
        const float2 lower = unpack_pair<Element>(words[j + 1]);
        one = {one.x + upper.x, one.y + lower.x};
        next = {next.x + upper.y, next.y + lower.y};
      }
      words[j] = unit.pack(one.x, next.x, Element{});
      words[j + 1] = unit.pack(one.y, next.y, Element{});
    }
    store_transposed(at_shared, words);
  }
  shared_writes_before_copies();
  warpgroup_sync<1>(warpgroup);
  if (thread == 0) {
    store_box(p.out, memory.strip(warpgroup, 0), column, row);
    store_box(p.out, memory.strip(warpgroup, 1), column + kMostStripColumns, row);
  }
}

template <class T, class Element, bool kGated>
__device__ __forceinline__ void consume(const Sm90Arguments& p, const SwappedMemory<T>& memory,
                                        unsigned rank, unsigned first, unsigned clusters,
                                        int warpgroup) {
  const unsigned tiles = p.tiles_m * p.tiles_n;
  const bool leader = threadIdx.x % 32 == 0;         // of its warp
  const int box = T::kPingPong ? 0 : warpgroup * 2;  // the first of this warpgroup
  const unsigned step = T::kPingPong ? 2 * clusters : clusters;
  AnyRing ring(memory.stages);
  unsigned turn_parity = warpgroup == 0 ? 1 : 0;  // warpgroup 0 has the first turn
  if (T::kPingPong && warpgroup == 1) {
    first += clusters;
    ring.skip(p.k_blocks);
  }
  Sums<T> sums;
  for (unsigned tile = first; tile < tiles; tile += step) {
    const SwappedAt<T, kGated> at(p, tile, rank);
    if (T::kPingPong) {
      barrier_wait(memory.turn(warpgroup), turn_parity);
      turn_parity ^= 1;
    }
    const auto release_stage = [&](unsigned stage) { release(memory.empty(stage)); };
    if (at.row >= p.m) {
      skip_blocks(memory, ring, p.k_blocks, release_stage);
      if (T::kPingPong) {
        if (leader) barrier_arrive(memory.turn(1 - warpgroup));
        ring.skip(p.k_blocks);
      }
      continue;
    }
    with_tokens<T>(p.tile_rows, [&](auto tile) {
      // Sums of their own: where tiles of several heights have some in common, ptxas makes each
      // wgmma wait for the one before it.
      using Exact = decltype(tile);
      Sums<Exact> exact = {};
      multiply_blocks<Exact, Element, true>(exact, memory, ring, p.k_blocks, box * T::kBoxBytes,
                                            release_stage);
      // The other warpgroup's first wgmma may queue behind this one's last.
      if (T::kPingPong && leader) barrier_arrive(memory.turn(1 - warpgroup));
      wait_for_sums(exact);
#pragma unroll
      for (int i = 0; i < T::kBlocks; ++i) {
#pragma unroll
        for (int at = 0; at < Exact::kSums; ++at) sums.sums[i][at] = exact.sums[i][at];
      }
    });
    release_stage(ring.stage == 0 ? memory.stages - 1 : ring.stage - 1);
    if (T::kPingPong) ring.skip(p.k_blocks);
    const int column = at.column + (kGated ? box / 2 : box) * 64;
    add_biases<T, Element, kGated>(sums, p, column);
    with_gate<kGated>(p.gating, [&](auto unit) {
      store_block<T, Element, kGated>(sums, 0, memory, p, unit, warpgroup, at.row, column);
      if constexpr (!kGated) {
        store_block<T, Element, kGated>(sums, 1, memory, p, unit, warpgroup, at.row, column + 64);
      }
    });
  }
  if (threadIdx.x % 128 == 0) wait_stores_read<0>();  // the kernel's end waits for the writes
}

template <class T, class Element, bool kGated>
__device__ __forceinline__ void swapped(const Sm90Arguments& p) {
  extern __shared__ unsigned char shared_memory[];
  const SwappedMemory<T> memory(static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)),
                                p.tile_rows);
  const unsigned rank = cluster_rank();
  const unsigned first = blockIdx.x / 2;
  const unsigned clusters = gridDim.x / 2;
  const int role = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    init_barriers<T>(memory, memory.stages);
    prefetch_map(p.a);
    prefetch_map(p.b0);
    if (kGated) prefetch_map(p.b1);
    prefetch_map(p.out);
  }
  cluster_arrive_relaxed();  // the fence above has released the barriers
  cluster_wait();
  begin_in_turn<kGated>(p);
  if (role == 0) {
    give_registers<kProducerRegisters>();
    if (warp_number() == 0 && elect_one()) produce<T, kGated>(p, memory, rank, first, clusters);
    __syncwarp();
  } else {
    take_registers<kConsumerRegisters>();
    consume<T, Element, kGated>(p, memory, rank, first, clusters, role - 1);
  }
  // A CTA's memory must outlive the other's copies into it and arrivals at its barriers.
  cluster_arrive();
  cluster_wait();
}

}  // namespace gated_mlp

KILN_SWAPPED_KERNELS(KILN_GATED_KERNELS)
KILN_SWAPPED_KERNELS(KILN_PLAIN_KERNELS)
