// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of prefill's tiles share: where a CTA's stages, strips and barriers lie, how
// they begin, and how a tile is stored. Device only.
#pragma once

#include "sm90/sm90_arguments.h"
#include "sm90/sm90_mainloop.cuh"
#include "sm90/sm90_outputs.cuh"
#include "sm90/sm90_ptx.cuh"
#include "sm90/sm90_start.cuh"

namespace gated_mlp {

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
    return base + T::kStripsAt + (warpgroup * T::kPlaces + index) * T::kStripBytes;
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
  // Where strips are read, too (sm90_gradients.cu).
  __device__ __forceinline__ unsigned brought(int warpgroup, unsigned place) const {
    return turn(2) + (warpgroup * T::kPlaces + place) * 8;
  }
  __device__ __forceinline__ unsigned done(int warpgroup, unsigned place) const {
    return brought(2, 0) + (warpgroup * T::kPlaces + place) * 8;
  }
};

template <bool kGated, class T>
constexpr int kOutColumns = kGated ? T::kColumns / 2 : T::kColumns;

// Of a tile of one matrix.
template <bool kGated, class T>
constexpr int kStrips = kOutColumns<kGated, T> / strip_columns(kOutColumns<kGated, T>);

// One lane for each CTA of the cluster says that this warp has read the stage.
__device__ __forceinline__ void release(unsigned empty_barrier) {
  const unsigned lane = threadIdx.x & 31;
  if (lane < 2) barrier_arrive_peer(empty_barrier, lane);
}

// By one thread, before the CTAs of the cluster wait for each other.
template <class T, class Memory>
__device__ __forceinline__ void init_barriers(const Memory& memory, unsigned stages) {
  constexpr unsigned kReaders = 2 * 4 * (T::kPingPong ? 1 : 2);  // warps of both CTAs
  for (unsigned stage = 0; stage < stages; ++stage) {
    barrier_init(memory.full(stage), 1);
    barrier_init(memory.empty(stage), kReaders);
  }
  barrier_init(memory.turn(0), 4);
  barrier_init(memory.turn(1), 4);
  barrier_init_fence();
}

// In ping-pong the two warpgroups take turns: one multiplies while the other is in its epilogue.
template <class T, class Memory>
struct Turns {
  const Memory& memory;
  int warpgroup;
  unsigned parity;  // warpgroup 0 has the first turn
  __device__ __forceinline__ Turns(const Memory& of, int number)
      : memory(of), warpgroup(number), parity(number == 0 ? 1 : 0) {}
  __device__ __forceinline__ void wait() {
    if (!T::kPingPong) return;
    barrier_wait(memory.turn(warpgroup), parity);
    parity ^= 1;
  }
  // Its first wgmma may queue behind this warpgroup's last.
  __device__ __forceinline__ void pass() {
    if (T::kPingPong && threadIdx.x % 32 == 0) barrier_arrive(memory.turn(1 - warpgroup));
  }
};

// The roles of a kernel's CTAs. init() is for one thread, start() for all once the barriers of the
// cluster are there, produce() for the first warpgroup, consume(warpgroup) for the other two.
template <class Init, class Start, class Produce, class Consume>
__device__ __forceinline__ void play_roles(const Init& init, const Start& start,
                                           const Produce& produce, const Consume& consume) {
  const int role = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) init();
  cluster_arrive_relaxed();  // the fence of init_barriers() has released them
  cluster_wait();
  start();
  if (role == 0) {
    give_registers<kProducerRegisters>();
    produce();
    __syncwarp();
  } else {
    take_registers<kConsumerRegisters>();
    consume(role - 1);
  }
  // A CTA's memory must outlive the other's copies into it and arrivals at its barriers.
  cluster_arrive();
  cluster_wait();
}

// Which tiles a consumer warpgroup takes: from `first` on, every step-th; in ping-pong every second
// one of its CTA's. `ring` then begins behind those of the other's first tile.
template <class T>
struct Walk {
  unsigned first;
  unsigned step;
  template <class SomeRing>
  __device__ __forceinline__ Walk(SomeRing& ring, unsigned first_of_cta, unsigned clusters,
                                  unsigned blocks, int warpgroup)
      : first(first_of_cta), step(T::kPingPong ? 2 * clusters : clusters) {
    if (T::kPingPong && warpgroup == 1) {
      first += clusters;
      ring.skip(blocks);
    }
  }
};

// The same of a product of the MLP; produce() is for one thread.
template <class T, bool kGated, class Memory, class Produce, class Consume>
__device__ __forceinline__ void play_product(const Sm90Arguments& p, const Memory& memory,
                                             unsigned stages, const Produce& produce,
                                             const Consume& consume) {
  const auto init = [&] {
    init_barriers<T>(memory, stages);
    prefetch_map(p.a);
    prefetch_map(p.b0);
    if (kGated) prefetch_map(p.b1);
    if (!T::kSwapped) prefetch_map(p.out);
  };
  play_roles(
      init, [&] { begin_in_turn<kGated>(p); },
      [&] {
        if (warp_number() == 0 && elect_one()) produce();
      },
      consume);
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
//
// word_of(block of 64 rows, place of a pair among its sums): two columns of the output.
template <class T, bool kGated, class WordOf>
__device__ __forceinline__ void store_tile(const PrefillMemory<T>& memory, const TensorMap& map,
                                           int warpgroup, int row, int column, int first_strip,
                                           const WordOf& word_of) {
  constexpr int kStripColumns = strip_columns(kOutColumns<kGated, T>);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const int matrix_row = thread / 32 * 16 + lane % 16;
#pragma unroll
  for (int strip = 0; strip < kStrips<kGated, T>; ++strip) {
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
            words[j * 2 + half] = word_of(i, (block + j) * 4 + half * 2);
          }
        }
        const unsigned at = in_strip<kStripColumns>(i * 64 + matrix_row, pair * 2 + lane / 16);
        store_matrices(shared + at, words);
      }
    }
    shared_writes_before_copies();
    warpgroup_sync<1>(warpgroup);
    if (thread == 0) store_box(map, shared, column + strip * kStripColumns, row);
  }
}

template <class T, class Element, bool kGated, class Unit>
__device__ __forceinline__ void epilogue(const Sums<T>& tile, const PrefillMemory<T>& memory,
                                         const TensorMap& map, Unit unit, int warpgroup, int row,
                                         int column, int first_strip) {
  constexpr int kUp = T::kColumns / 4;  // from a gate to its up
  store_tile<T, kGated>(memory, map, warpgroup, row, column, first_strip, [&](int i, int at) {
    const float* sums = tile.sums[i] + at;
    float2 out = {sums[0], sums[1]};
    if constexpr (kGated) out = unit.of_pair(out, {sums[kUp], sums[kUp + 1]});
    return unit.pack(out.x, out.y, Element{});
  });
}

}  // namespace gated_mlp
