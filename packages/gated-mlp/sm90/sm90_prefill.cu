// SPDX-License-Identifier: Apache-2.0
//
// The two GEMMs of the MLP for large M on sm_90a: a producer thread feeds a ring of shared-memory
// stages with the copy engine, two consumer warpgroups multiply with wgmma, CTAs stay and walk over
// the tiles. A gated stage holds a tile of gate beside the same rows of up, so that one wgmma gives
// a thread both values of an output. Every output is one accumulator that runs through k in order
// in every tile shape, and however the CTAs of a cluster lie: a row's result does not depend on how
// many rows there are.
// Kernels that keep also store the sums of gate and of up, for training.
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
#include "sm90/sm90_arguments.h"
#include "sm90/sm90_mainloop.cuh"
#include "sm90/sm90_outputs.cuh"
#include "sm90/sm90_prefill.cuh"
#include "sm90/sm90_ptx.cuh"
#include "tile.h"

namespace gated_mlp {

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

// Boxes of a tile's rows of a that are not all beyond the matrix. The copy engine takes six cycles
// to fill a row with zeros, longer than wgmma to multiply with it: rows that no output needs stay
// what they were.
template <class T>
__device__ __forceinline__ int boxes_of_a(const Sm90Arguments& p, int row) {
  const long long boxes = (p.m - row + kTokenBox - 1) / kTokenBox;
  return static_cast<int>(min(max(boxes, 0ll), static_cast<long long>(T::kRows / kTokenBox)));
}
// Across: half of the boxes from this CTA to both. Otherwise all of its own.
template <class T, bool kGated>
__device__ __forceinline__ void load_a(const Sm90Arguments& p, const PrefillMemory<T>& memory,
                                       unsigned stage, const TileAt<T, kGated>& at, int boxes,
                                       int k, unsigned rank, unsigned long long policy) {
  constexpr int kBytes = kTokenBox * kDepth * 2;
  const bool across = p.across != 0;
  for (int box = across ? static_cast<int>(rank) : 0; box < boxes; box += across ? 2 : 1) {
    const int row = at.row + box * kTokenBox;
    if (across) {
      load_box_both(memory.a(stage) + box * kBytes, p.a, memory.full(stage), k, row, policy);
    } else {
      load_box(memory.a(stage) + box * kBytes, p.a, memory.full(stage), k, row, policy);
    }
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
  const auto bytes_of = [](int boxes) { return T::kBBytes + boxes * (kTokenBox * kDepth * 2); };
  if (!kGated) {
    if (first < tiles) {
      const TileAt<T, kGated> at(p, first, rank);
      const int boxes = boxes_of_a<T>(p, at.row);
      for (; ahead < T::kStages && ahead < p.k_blocks; ++ahead) {
        barrier_expect(memory.full(ahead), bytes_of(boxes));
        load_b<T, kGated>(p, memory, ahead, at, static_cast<int>(ahead) * kDepth, rank);
      }
    }
    wait_for_previous_kernel();
  }
  for (unsigned tile = first; tile < tiles; tile += clusters) {
    const TileAt<T, kGated> at(p, tile, rank);
    const int boxes = boxes_of_a<T>(p, at.row);
    for (unsigned block = 0; block < p.k_blocks; ++block) {
      const int k = static_cast<int>(block) * kDepth;
      if (ahead > 0) {
        --ahead;
      } else {
        barrier_wait(memory.empty(ring.stage), ring.parity ^ 1);
        barrier_expect(memory.full(ring.stage), bytes_of(boxes));
        load_b<T, kGated>(p, memory, ring.stage, at, k, rank);
      }
      load_a<T, kGated>(p, memory, ring.stage, at, boxes, k, rank, keep);
      ring.next();
    }
  }
}

template <class Arguments>
constexpr bool kKeeps = false;
template <>
constexpr bool kKeeps<Sm90KeptArguments> = true;

// Stores what the gate makes of the sums, as forward does, and then the sums themselves, rounded.
// Returns the number of strips.
template <class T, class Element>
__device__ __forceinline__ int keeping_epilogue(const Sums<T>& tile, const PrefillMemory<T>& memory,
                                                const Sm90KeptArguments& p, int warpgroup, int row,
                                                int column, int first_strip) {
  constexpr int kUp = T::kColumns / 4;  // from a gate to its up
  with_gate(p.gating, [&](auto unit) {
    epilogue<T, Element, true>(tile, memory, p.out, unit, warpgroup, row, column, first_strip);
  });
  const auto store = [&](const TensorMap& map, int strip, int first) {
    store_tile<T, true>(memory, map, warpgroup, row, column, strip, [&](int i, int at) {
      const float* sums = tile.sums[i] + first + at;
      return pack_pair(sums[0], sums[1], Element{});
    });
  };
  store(p.gate_out, first_strip + kStrips<true, T>, 0);
  store(p.up_out, first_strip + 2 * kStrips<true, T>, kUp);
  return 3 * kStrips<true, T>;
}

template <class T, class Element, bool kGated, class Arguments>
__device__ __forceinline__ void consume(const Arguments& p, const PrefillMemory<T>& memory,
                                        unsigned rank, unsigned first, unsigned clusters,
                                        int warpgroup) {
  const unsigned tiles = p.tiles_m * p.tiles_n;
  const int row_in_tile = T::kPingPong ? 0 : warpgroup * T::kWarpgroupRows;
  Ring<T::kStages> ring;
  Turns<T, PrefillMemory<T>> turns(memory, warpgroup);
  const Walk<T> walk(ring, first, clusters, p.k_blocks, warpgroup);
  int next_strip = 0;
  Sums<T> sums;
  for (unsigned tile = walk.first; tile < tiles; tile += walk.step) {
    const TileAt<T, kGated> at(p, tile, rank);
    turns.wait();
    const auto release_stage = [&](unsigned stage) { release(memory.empty(stage)); };
    const int row = at.row + row_in_tile;
    if (row >= p.m) {
      skip_blocks(memory, ring, p.k_blocks, release_stage);
      turns.pass();
      if (T::kPingPong) ring.skip(p.k_blocks);
      continue;
    }
    multiply_blocks<T, Element, true>(sums, memory, ring, p.k_blocks, row_in_tile * kDepth * 2,
                                      release_stage);
    turns.pass();
    wait_for_sums(sums);
    release_stage(ring.last());
    if (T::kPingPong) ring.skip(p.k_blocks);
    add_biases<T, Element, kGated>(sums, p, at.column);
    if constexpr (!kGated) add_residual<T, Element>(sums, p, row, at.column);
    if constexpr (kKeeps<Arguments>) {
      next_strip +=
          keeping_epilogue<T, Element>(sums, memory, p, warpgroup, row, at.column, next_strip % 2);
      continue;
    }
    with_gate<kGated>(p.gating, [&](auto unit) {
      epilogue<T, Element, kGated>(sums, memory, p.out, unit, warpgroup, row, at.column,
                                   next_strip);
    });
    next_strip = (next_strip + kStrips<kGated, T>) % 2;
  }
  if (threadIdx.x % 128 == 0) wait_stores_read<0>();  // the kernel's end waits for the writes
}

template <class T, class Element, bool kGated, class Arguments>
__device__ __forceinline__ void prefill(const Arguments& p) {
  extern __shared__ unsigned char shared_memory[];
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
  const PrefillMemory<T> memory = {(shared + 1023) & ~1023u};
  const unsigned rank = cluster_rank();
  const unsigned first = blockIdx.x / 2;
  const unsigned clusters = gridDim.x / 2;
  play_product<T, kGated>(
      p, memory, T::kStages, [&] { produce<T, kGated>(p, memory, rank, first, clusters); },
      [&](int warpgroup) {
        consume<T, Element, kGated>(p, memory, rank, first, clusters, warpgroup);
      });
}

}  // namespace gated_mlp

KILN_GATED_PREFILLS(KILN_GATED_KERNELS)
KILN_PLAIN_PREFILLS(KILN_PLAIN_KERNELS)
KILN_KEPT_PREFILLS(KILN_KEPT_KERNELS)
