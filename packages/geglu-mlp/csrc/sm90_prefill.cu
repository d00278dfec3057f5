// SPDX-License-Identifier: Apache-2.0
//
// The two GEMMs of the MLP for large M on sm_90a: a producer thread feeds a ring of shared-memory
// stages with the copy engine, two consumer warpgroups multiply with wgmma, CTAs stay and walk over
// the tiles. A gated stage holds a tile of gate beside the same rows of up, so that one wgmma gives
// a thread both values of an output. Every output is one accumulator that runs through k in order
// in every tile shape, and however the CTAs of a cluster lie: a row's result does not depend on how
// many rows there are. Swapped tiles are for small M, where that is not promised.
//
//   threads of a CTA     role
//   0 to 127             producer: one thread issues every copy; the others only give up registers
//   128 to 255, to 383   two consumer warpgroups: multiply, add biases, apply the gate, store
//
//   barrier              arrivals of a phase                            who waits for it
//   full[stage]          1 of the producer, and kStageBytes of copies   the stage's consumers
//   empty[stage]         1 of each warp that reads the stage, in both   the producer, before it
//                        CTAs of the cluster: 8 (ping-pong) or 16       fills the stage again
//   turn[warpgroup]      4, the warps of the other warpgroup            the warpgroup, before the
//                        (ping-pong)                                    products of a tile
//
//   a stage              | a: kRows x 64 of k | b: kColumns x 64 of k; gated: gate, then up |
//   behind the stages    | strips of outputs: two a warpgroup | barriers |
#include "sm90_arguments.h"
#include "sm90_mainloop.cuh"
#include "sm90_outputs.cuh"
#include "sm90_ptx.cuh"
#include "sm90_start.cuh"
#include "tile.h"

namespace geglu_mlp {

constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 232;

// Shared memory of a CTA, by addresses.
template <class T>
struct PrefillMemory {
  unsigned base;
  __device__ __forceinline__ unsigned a(unsigned stage) const {
    return base + stage * T::kStageBytes;
  }
  __device__ __forceinline__ unsigned b(unsigned stage) const { return a(stage) + T::kABytes; }
  __device__ __forceinline__ unsigned strip(int warpgroup, int index) const {
    return base + T::kStripsAt + (warpgroup * 2 + index) * T::kStripBytes;
  }
  __device__ __forceinline__ unsigned full(unsigned stage) const {
    return base + T::kBarriersAt + stage * 8;
  }
  __device__ __forceinline__ unsigned empty(unsigned stage) const {
    return base + T::kBarriersAt + (T::kStages + stage) * 8;
  }
  __device__ __forceinline__ unsigned turn(int warpgroup) const {
    return base + T::kBarriersAt + (2 * T::kStages + warpgroup) * 8;
  }
};

template <bool kGated, class T>
constexpr int kOutColumns = kGated ? T::kColumns / 2 : T::kColumns;

template <class T, bool kGated>
struct TileAt {
  int row;     // of this CTA
  int column;  // of the output
  __device__ __forceinline__ TileAt(const Sm90Arguments& p, unsigned tile, unsigned rank) {
    const TilePosition at = tile_position(tile, p.tiles_m, p.tiles_n, p.panel);
    const bool across = p.across != 0;
    row = static_cast<int>(across ? at.row : at.row * 2 + rank) * T::kRows;
    column = static_cast<int>(across ? at.column * 2 + rank : at.column) * kOutColumns<kGated, T>;
  }
};

// Across: half of the rows of a from this CTA to both. Otherwise all of its own.
template <class T, bool kGated>
__device__ __forceinline__ void load_a(const Sm90Arguments& p, const PrefillMemory<T>& memory,
                                       unsigned stage, const TileAt<T, kGated>& at, int k,
                                       unsigned rank, unsigned long long policy) {
  if (p.across != 0) {
    const int half = static_cast<int>(rank) * (whole_sixteens(T::kRows) / 2);
    load_box_both(memory.a(stage) + half * kDepth * 2, p.a, memory.full(stage), k, at.row + half,
                  policy);
  } else {
    load_box(memory.a(stage), p.a, memory.full(stage), k, at.row, policy);
  }
}

// Across: all of this CTA's own b. Otherwise half of it to both: gate or up, or half of the rows of
// down.
template <class T, bool kGated>
__device__ __forceinline__ void load_b(const Sm90Arguments& p, const PrefillMemory<T>& memory,
                                       unsigned stage, const TileAt<T, kGated>& at, int k,
                                       unsigned rank) {
  constexpr unsigned kHalf = T::kBBytes / 2;
  constexpr int kRowsBetween = kGated ? 0 : T::kColumns / 2;  // from the first half to the second
  const unsigned full = memory.full(stage);
  if (p.across != 0) {
    load_box(memory.b(stage), p.b0, full, k, at.column);
    load_box(memory.b(stage) + kHalf, kGated ? p.b1 : p.b0, full, k, at.column + kRowsBetween);
  } else {
    const TensorMap& map = kGated && rank == 1 ? p.b1 : p.b0;
    load_box_both(memory.b(stage) + rank * kHalf, map, full, k,
                  at.column + static_cast<int>(rank) * kRowsBetween);
  }
}

template <class T, bool kGated>
__device__ __forceinline__ void produce(const Sm90Arguments& p, const PrefillMemory<T>& memory,
                                        unsigned rank, unsigned first, unsigned clusters) {
  const unsigned long long keep = evict_last_policy();
  const unsigned tiles = p.tiles_m * p.tiles_n;
  Ring<T::kStages> ring;
  // The weights do not depend on the previous kernel: fill the ring with them while it ends.
  unsigned ahead = 0;
  if (!kGated) {
    if (first < tiles) {
      const TileAt<T, kGated> at(p, first, rank);
      for (; ahead < T::kStages && ahead < p.k_blocks; ++ahead) {
        barrier_expect(memory.full(ahead), T::kStageBytes);
        load_b<T, kGated>(p, memory, ahead, at, static_cast<int>(ahead) * kDepth, rank);
      }
    }
    wait_for_previous_kernel();
  }
  for (unsigned tile = first; tile < tiles; tile += clusters) {
    const TileAt<T, kGated> at(p, tile, rank);
    for (unsigned block = 0; block < p.k_blocks; ++block) {
      const int k = static_cast<int>(block) * kDepth;
      if (ahead > 0) {
        --ahead;
      } else {
        barrier_wait(memory.empty(ring.stage), ring.parity ^ 1);
        barrier_expect(memory.full(ring.stage), T::kStageBytes);
        load_b<T, kGated>(p, memory, ring.stage, at, k, rank);
      }
      load_a<T, kGated>(p, memory, ring.stage, at, k, rank, keep);
      ring.next();
    }
  }
}

// One lane for each CTA of the cluster says that this warp has read the stage.
__device__ __forceinline__ void release(unsigned empty_barrier) {
  const unsigned lane = threadIdx.x & 31;
  if (lane < 2) barrier_arrive_peer(empty_barrier, lane);
}

// A strip has rows of 64 or 32 bytes, whose 16-byte chunks the copy engine's swizzle exchanges by
// bits 7 and 8, or bit 7, of the address.
template <int kStripColumns>
__device__ __forceinline__ unsigned in_strip(int row, int chunk) {
  const int exchange = kStripColumns == 32 ? row >> 1 & 3 : row >> 2 & 1;
  return row * (kStripColumns * 2) + (chunk ^ exchange) * 16;
}

// The strips take turns between two places, on from one tile to the next (`first_strip`): a tile
// may have an odd number of them, and its last one may still be on its way when the next tile
// begins.
template <class T, class Element, bool kGated, class Unit>
__device__ __forceinline__ void epilogue(const Sums<T>& tile, const PrefillMemory<T>& memory,
                                         const Sm90Arguments& p, Unit unit, int warpgroup, int row,
                                         int column, int first_strip) {
  constexpr int kStripColumns = strip_columns(kOutColumns<kGated, T>);
  constexpr int kStrips = kOutColumns<kGated, T> / kStripColumns;
  constexpr int kUp = T::kColumns / 4;  // from a gate to its up
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const int matrix_row = thread / 32 * 16 + lane % 16;
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
    const unsigned shared = memory.strip(warpgroup, (first_strip + strip) % 2);
    if (thread == 0) wait_stores_read<1>();
    warpgroup_sync<1>(warpgroup);
#pragma unroll
    for (int pair = 0; pair < kStripColumns / 16; ++pair) {  // of blocks of 8 columns
      const int block = strip * (kStripColumns / 8) + pair * 2;
#pragma unroll
      for (int i = 0; i < T::kBlocks; ++i) {
        unsigned words[4];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float* sums = tile.sums[i] + (block + j) * 4 + half * 2;
            float2 out = {sums[0], sums[1]};
            if constexpr (kGated) out = unit.of_pair(out, {sums[kUp], sums[kUp + 1]});
            words[j * 2 + half] = pack_pair(out.x, out.y, Element{});
          }
        }
        const unsigned at = in_strip<kStripColumns>(i * 64 + matrix_row, pair * 2 + lane / 16);
        store_matrices(shared + at, words);
      }
    }
    shared_writes_before_copies();
    warpgroup_sync<1>(warpgroup);
    if (thread == 0) store_box(p.out, shared, column + strip * kStripColumns, row);
  }
}

// Two strips side by side, each of the rows of two warps' sums, transposed.
template <class T, class Element, class Unit>
__device__ __forceinline__ void swapped_epilogue(const Sums<T>& tile,
                                                 const PrefillMemory<T>& memory,
                                                 const Sm90Arguments& p, Unit unit, int warpgroup,
                                                 int row, int column) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const unsigned shared = memory.strip(warpgroup, thread / 64);
  const int chunk = thread / 32 % 2 * 2 + lane / 8 % 2;
  const int strip_row = lane / 16 * 8 + lane % 8;
  if (thread == 0) wait_stores_read<0>();
  warpgroup_sync<1>(warpgroup);
#pragma unroll
  for (int first = 0; first < T::kWarpgroupRows; first += 16) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int at = first / 2 + i * 2;
      words[i] = words[i + 1] = 0;
      if (at >= T::kSums) continue;  // the rows up to a multiple of 16, which no copy takes
      // Columns are tokens here: sums[at] and sums[at + 2] are one token's, sums[at + 1] the next
      // one's. A pair must be of one token.
      const float2 one = unit.of_pair({tile.sums[0][at], tile.sums[0][at + 2]},
                                      {tile.sums[1][at], tile.sums[1][at + 2]});
      const float2 next = unit.of_pair({tile.sums[0][at + 1], tile.sums[0][at + 3]},
                                       {tile.sums[1][at + 1], tile.sums[1][at + 3]});
      words[i] = pack_pair(one.x, next.x, Element{});
      words[i + 1] = pack_pair(one.y, next.y, Element{});
    }
    store_transposed(shared + in_strip<kMostStripColumns>(first + strip_row, chunk), words);
  }
  shared_writes_before_copies();
  warpgroup_sync<1>(warpgroup);
  if (thread == 0) {
    store_box(p.out, memory.strip(warpgroup, 0), column, row);
    store_box(p.out, memory.strip(warpgroup, 1), column + kMostStripColumns, row);
  }
}

template <class T, class Element, bool kGated>
__device__ __forceinline__ void consume(const Sm90Arguments& p, const PrefillMemory<T>& memory,
                                        unsigned rank, unsigned first, unsigned clusters,
                                        int warpgroup) {
  const unsigned tiles = p.tiles_m * p.tiles_n;
  const bool leader = threadIdx.x % 32 == 0;  // of its warp
  const int row_in_tile = T::kPingPong ? 0 : warpgroup * T::kWarpgroupRows;
  const unsigned step = T::kPingPong ? 2 * clusters : clusters;
  Ring<T::kStages> ring;
  unsigned turn_parity = warpgroup == 0 ? 1 : 0;  // warpgroup 0 has the first turn
  if (T::kPingPong && warpgroup == 1) {
    first += clusters;
    ring.skip(p.k_blocks);
  }
  constexpr int kStrips = kOutColumns<kGated, T> / strip_columns(kOutColumns<kGated, T>);
  int next_strip = 0;
  Sums<T> sums;
  for (unsigned tile = first; tile < tiles; tile += step) {
    const TileAt<T, kGated> at(p, tile, rank);
    if (T::kPingPong) {
      barrier_wait(memory.turn(warpgroup), turn_parity);
      turn_parity ^= 1;
    }
    multiply_blocks<T, Element, true>(sums, memory, ring, p.k_blocks, row_in_tile * kDepth * 2,
                                      [&](unsigned stage) { release(memory.empty(stage)); });
    // The other warpgroup's first wgmma may queue behind this one's last.
    if (T::kPingPong && leader) barrier_arrive(memory.turn(1 - warpgroup));
    wait_for_sums(sums);
    release(memory.empty(ring.stage == 0 ? T::kStages - 1 : ring.stage - 1));
    if (T::kPingPong) ring.skip(p.k_blocks);
    const int row = at.row + row_in_tile;
    add_biases<T, Element, kGated>(sums, p, at.column);
    with_gate<kGated>(p.gating, [&](auto unit) {
      if constexpr (T::kSwapped) {
        swapped_epilogue<T, Element>(sums, memory, p, unit, warpgroup, row, at.column);
      } else {
        epilogue<T, Element, kGated>(sums, memory, p, unit, warpgroup, row, at.column, next_strip);
      }
    });
    next_strip = (next_strip + kStrips) % 2;
  }
  if (threadIdx.x % 128 == 0) wait_stores_read<0>();  // the kernel's end waits for the writes
}

template <class T, class Element, bool kGated>
__device__ __forceinline__ void prefill(const Sm90Arguments& p) {
  extern __shared__ unsigned char shared_memory[];
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
  const PrefillMemory<T> memory = {(shared + 1023) & ~1023u};
  const unsigned rank = cluster_rank();
  const unsigned first = blockIdx.x / 2;
  const unsigned clusters = gridDim.x / 2;
  const int role = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    constexpr unsigned kReaders = 2 * 4 * (T::kPingPong ? 1 : 2);  // warps of both CTAs
    for (unsigned stage = 0; stage < T::kStages; ++stage) {
      barrier_init(memory.full(stage), 1);
      barrier_init(memory.empty(stage), kReaders);
    }
    barrier_init(memory.turn(0), 4);
    barrier_init(memory.turn(1), 4);
    barrier_init_fence();
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

}  // namespace geglu_mlp

KILN_GATED_PREFILLS(KILN_GATED_KERNELS)
KILN_PLAIN_PREFILLS(KILN_PLAIN_KERNELS)
