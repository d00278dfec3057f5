// SPDX-License-Identifier: Apache-2.0
//
// The two GEMMs of the MLP for small M on sm_90a, where reading the weights is the work. A cluster
// has one tile of outputs; its CTAs split k, stream their part of the weights through a ring of
// shared-memory stages and multiply with wgmma, tokens as its 64 rows and weights as its columns.
// Then each CTA gets a share of the columns from all of them through distributed shared memory,
// adds them in the order of the parts, and writes its outputs: the same bits each time. Across, a
// cluster has two tiles side by side: the two CTAs of one part of k share its tokens by multicast.
// Swapped tiles multiply with weights as the rows and tokens as the columns, and share those.
//
//   threads of a CTA       role
//   the first kConsumers   consumers: multiply a part of k, push the sums to the CTAs that add
//                          them, add their own share, store
//   the last warp          producer: one thread issues every copy. A wide tile has three idle warps
//                          beside it, whose registers the consumers take
//
//   barrier                arrivals of a phase                            who waits for it
//   full[stage]            1 of the producer, and the bytes of a_rows     the consumers
//                          rows of a and of all of b
//   empty[stage]           1 of each consumer warp; across: in both       the producer, before it
//                          CTAs that share the tokens                     fills the stage again
//   of the cluster         all threads. Across: the barriers are there.   all threads
//                          Behind the products, where sums are pushed,
//                          twice: no CTA reads its stages any more; all
//                          sums are there. Else, across, once: no CTA
//                          arrives at another's barriers any more
//
//   a stage                | a: kTokens x 64 of k | b: kColumns x 64 of k; gated: gate, then up |
//   the same bytes later   | of each part of k: kMatrixRows rows of this CTA's share of the sums |
#include "sm90/sm90_arguments.h"
#include "sm90/sm90_mainloop.cuh"
#include "sm90/sm90_outputs.cuh"
#include "sm90/sm90_ptx.cuh"
#include "sm90/sm90_start.cuh"

namespace gated_mlp {

template <class T>
struct DecodeMemory {
  unsigned base;
  __device__ __forceinline__ unsigned a(unsigned stage) const {
    return base + stage * T::kStageBytes;
  }
  __device__ __forceinline__ unsigned b(unsigned stage) const { return a(stage) + T::kABytes; }
  __device__ __forceinline__ unsigned full(unsigned stage) const {
    return base + T::kBarriersAt + stage * 8;
  }
  __device__ __forceinline__ unsigned empty(unsigned stage) const {
    return base + T::kBarriersAt + (T::kStages + stage) * 8;
  }
};

// What one CTA does: a tile of outputs and a range of k blocks. Of its cluster, the CTAs of the
// same tile have the ranks rank(part), and those of the same part follow each other.
struct DecodeWork {
  int row;
  int column;
  unsigned begin;
  unsigned end;
  unsigned part;
  unsigned parts;
  unsigned across;  // 1: the cluster has two tiles, and this CTA that of its side
  unsigned side;
  __device__ __forceinline__ unsigned rank(unsigned of_part) const {
    return (of_part << across) + side;
  }
};

template <class T, bool kGated>
__device__ __forceinline__ void load_weights(const Sm90Arguments& p, const DecodeMemory<T>& memory,
                                             const DecodeWork& work, unsigned block, unsigned stage,
                                             unsigned long long once) {
  const int k = static_cast<int>(block) * kDepth;
  const unsigned barrier = memory.full(stage);
  barrier_expect(barrier, T::kBBytes + p.a_rows * kDepth * 2);
  load_box(memory.b(stage), p.b0, barrier, k, work.column, once);
  if (kGated) load_box(memory.b(stage) + T::kBBytes / 2, p.b1, barrier, k, work.column, once);
}

// Across: half of the rows from this CTA to both.
template <class T>
__device__ __forceinline__ void load_tokens(const Sm90Arguments& p, const DecodeMemory<T>& memory,
                                            const DecodeWork& work, unsigned block, unsigned stage,
                                            unsigned long long keep) {
  const int k = static_cast<int>(block) * kDepth;
  if (work.across != 0) {
    const int first = static_cast<int>(work.side * p.a_rows / 2);
    load_box_both(memory.a(stage) + first * kDepth * 2, p.a, memory.full(stage), k,
                  work.row + first, keep, work.part * 2);
  } else {
    load_box(memory.a(stage), p.a, memory.full(stage), k, work.row, keep);
  }
}

template <class T, bool kGated>
__device__ __forceinline__ void produce(const Sm90Arguments& p, const DecodeMemory<T>& memory,
                                        const DecodeWork& work) {
  const unsigned long long once = evict_first_policy();
  const unsigned long long keep = evict_last_policy();
  // The weights do not depend on the previous kernel: fill the ring with them while it ends.
  const unsigned blocks = work.end - work.begin;
  const unsigned ahead = blocks < T::kStages ? blocks : T::kStages;
#pragma unroll 1
  for (unsigned i = 0; i < ahead; ++i) {
    load_weights<T, kGated>(p, memory, work, work.begin + i, i, once);
  }
  if (!kGated) wait_for_previous_kernel();
  Ring<T::kStages> ring;
#pragma unroll 1
  for (unsigned i = 0; i < blocks; ++i) {
    const unsigned block = work.begin + i;
    if (i >= ahead) {
      barrier_wait(memory.empty(ring.stage), ring.parity ^ 1);
      load_weights<T, kGated>(p, memory, work, block, ring.stage, once);
    }
    load_tokens<T>(p, memory, work, block, ring.stage, keep);
    ring.next();
  }
}

// One lane for each CTA that fills this stage says that this warp has read it.
__device__ __forceinline__ void release(const DecodeWork& work, unsigned empty_barrier) {
  const unsigned lane = threadIdx.x & 31;
  if (lane > work.across) return;
  if (work.across != 0) {
    barrier_arrive_peer(empty_barrier, work.part * 2 + lane);
  } else {
    barrier_arrive(empty_barrier);
  }
}

// Where the sums of a tile go: column c of the output, or token c of a swapped tile, to part
// c / (4 quads), there into the slot of the part that they come from. A slot has rows of `pitch`
// floats: of gate, then of up.
template <class T, bool kGated>
struct Shares {
  static constexpr int kColumns = kGated ? T::kColumns / 2 : T::kMatrixColumns;
  unsigned quads;    // of columns a part
  unsigned inverse;  // what divides by it: a product is faster
  unsigned pitch;
  unsigned slot_bytes;
  __device__ __forceinline__ explicit Shares(unsigned quads_a_part)
      : quads(quads_a_part),
        inverse((1u << 16) / quads + 1),
        pitch(T::kSwapped ? 4 * (quads | 1) : (kGated ? 8 : 4) * quads + T::kRowPadding),
        slot_bytes(T::kMatrixRows * pitch * 4) {}
  // n / quads, exact for n up to the threads of a CTA.
  __device__ __forceinline__ unsigned by_quads(unsigned n) const { return n * inverse >> 16; }
};

// A thread has two neighbouring columns of two rows. It gives those of one row to the lane beside
// it for as many of the other: then it has four columns of one row.
template <class T>
struct QuadAt {
  bool odd;
  int row;     // of its first block
  int column;  // of eight
  __device__ __forceinline__ QuadAt() {
    const int thread = static_cast<int>(threadIdx.x);
    odd = thread % 2 == 1;
    row = thread / 128 * (T::kBlocks * 64) + thread % 128 / 32 * 16 + thread % 32 / 4 + odd * 8;
    column = thread % 4 / 2 * 4;
  }
  // `upper`: what belongs to the row of even lanes.
  template <class Value>
  __device__ __forceinline__ Value exchange(Value upper, Value lower) const {
    return __shfl_xor_sync(0xffffffffu, odd ? upper : lower, 1);
  }
};

// Those of `rows` tokens; of a swapped tile all.
template <class T, bool kGated>
__device__ __forceinline__ void push_sums(const Sums<T>& tile, const Shares<T, kGated>& shares,
                                          const DecodeWork& work, unsigned base, int rows) {
  constexpr unsigned kColumns = Shares<T, kGated>::kColumns;
  const QuadAt<T> lane;
#pragma unroll
  for (int i = 0; i < T::kBlocks; ++i) {
    const int row = lane.row + i * 64;
    const unsigned slot = base + work.part * shares.slot_bytes + row * shares.pitch * 4;
#pragma unroll
    for (int j = 0; j < T::kMatrixColumns / 8; ++j) {
      const unsigned half = (j * 8) / kColumns;  // gate or up
      const unsigned column = j * 8 - half * kColumns + lane.column;
      const unsigned to = shares.by_quads(column / 4);
      const unsigned at = (half - to) * shares.quads * 4 + column;
      const float* mine = tile.sums[i] + 4 * j;
      const float first = lane.exchange(mine[0], mine[2]);
      const float second = lane.exchange(mine[1], mine[3]);
      if (T::kSwapped || row < rows) {
        store_peer(peer_address(slot + at * 4, work.rank(to)), lane.odd ? first : mine[0],
                   lane.odd ? second : mine[1], lane.odd ? mine[2] : first,
                   lane.odd ? mine[3] : second);
      }
    }
  }
}

__device__ __forceinline__ float4 add_slots(unsigned address, unsigned slot_bytes, unsigned parts) {
  float4 sum = load_shared(address);
#pragma unroll
  for (unsigned part = 1; part < kMostParts; ++part) {
    if (part < parts) sum = add(sum, load_shared(address + part * slot_bytes));
  }
  return sum;
}

// Waits for the sums of all parts. Each thread keeps to four columns.
template <class T, class Element, bool kGated>
__device__ __forceinline__ void reduce(const Sm90Arguments& p, const Shares<T, kGated>& shares,
                                       const DecodeWork& work, unsigned base, int rows) {
  const int rows_at_once = static_cast<int>(shares.by_quads(T::kConsumers));
  const int first_row = static_cast<int>(shares.by_quads(threadIdx.x));
  const unsigned at = (threadIdx.x - first_row * shares.quads) * 4;
  const unsigned in_tile = work.part * shares.quads * 4 + at;
  const long long column = work.column + static_cast<long long>(in_tile);
  const bool has_work =
      first_row < rows_at_once && in_tile < Shares<T, kGated>::kColumns && column < p.n;
  const float4 bias0 = has_work ? load_biases<Element>(p.bias0, column) : float4{};
  const float4 bias1 = kGated && has_work ? load_biases<Element>(p.bias1, column) : float4{};
  // Each row's before the one ahead of it is stored, the first one's while the sums come.
  const auto residual_of = [&](int row) {
    if (kGated || !has_work || row >= rows) return float4{};
    return load_residuals<Element>(p, work.row + row, column);
  };
  float4 residual = residual_of(first_row);
  cluster_wait();
  if (!has_work) return;
  for (int row = first_row; row < rows; row += rows_at_once) {
    const float4 next_residual = residual_of(row + rows_at_once);
    const unsigned address = base + (row * shares.pitch + at) * 4;
    const float4 sum = add(add_slots(address, shares.slot_bytes, work.parts), bias0);
    float4 up = {};
    if (kGated) up = add_slots(address + shares.quads * 16, shares.slot_bytes, work.parts);
    store_quad<Element, kGated>(p, work.row + row, column, add(sum, residual), add(up, bias1));
    residual = next_residual;
  }
}

// The same of a swapped tile. Each thread keeps to two columns, and takes four tokens at once.
template <class T, class Element>
__device__ __forceinline__ void reduce_swapped(const Sm90Arguments& p,
                                               const Shares<T, false>& shares,
                                               const DecodeWork& work, unsigned base, int rows) {
  constexpr unsigned kPairs = T::kColumns / 2;
  const unsigned pair = threadIdx.x % kPairs;
  const long long column = work.column + 2ll * pair;
  const bool has_work = column < p.n;
  const float2 bias = has_work ? load_bias_pair<Element>(p.bias0, column) : float2{};
  cluster_wait();
  if (!has_work) return;
  const unsigned first = base + 2 * pair * shares.pitch * 4;
  const unsigned second = first + shares.pitch * 4;
  const int share = static_cast<int>(work.part * shares.quads) * 4;
  for (unsigned quad = threadIdx.x / kPairs; quad < shares.quads; quad += T::kConsumers / kPairs) {
    const int token = share + static_cast<int>(quad) * 4;
    float2 residuals[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (token + i < rows) {
        residuals[i] = load_residual_pair<Element>(p, work.row + token + i, column);
      }
    }
    const float4 left = add_slots(first + quad * 16, shares.slot_bytes, work.parts);
    const float4 right = add_slots(second + quad * 16, shares.slot_bytes, work.parts);
    const float2 sums[] = {
        {left.x, right.x}, {left.y, right.y}, {left.z, right.z}, {left.w, right.w}};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (token + i >= rows) break;
      store_word<Element>(p, work.row + token + i, column,
                          pack_pair(sums[i].x + bias.x + residuals[i].x,
                                    sums[i].y + bias.y + residuals[i].y, Element{}));
    }
  }
}

// Of a tile whose k is not split.
template <class T, class Element, bool kGated, class Unit>
__device__ __forceinline__ void store_sums(const Sums<T>& tile, const Sm90Arguments& p, Unit unit,
                                           const DecodeWork& work, int rows) {
  constexpr int kUp = T::kColumns / 4;  // from a gate to its up
  const QuadAt<T> lane;
#pragma unroll
  for (int i = 0; i < T::kBlocks; ++i) {
    const int row = lane.row + i * 64;
#pragma unroll
    for (int j = 0; j < Shares<T, kGated>::kColumns / 8; ++j) {
      unsigned words[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* sums = tile.sums[i] + 4 * j + 2 * half;
        float2 out = {sums[0], sums[1]};
        if constexpr (kGated) out = unit.of_pair(out, {sums[kUp], sums[kUp + 1]});
        words[half] = unit.pack(out.x, out.y, Element{});
      }
      const unsigned got = lane.exchange(words[0], words[1]);
      const long long column = work.column + static_cast<long long>(j * 8 + lane.column);
      if (row < rows && column < p.n) {
        store_words<Element>(p, work.row + row, column, lane.odd ? got : words[0],
                             lane.odd ? words[1] : got);
      }
    }
  }
}

template <class T, class Element, bool kGated>
__device__ __forceinline__ void decode(const Sm90Arguments& p) {
  extern __shared__ unsigned char shared_memory[];
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
  const DecodeMemory<T> memory = {(shared + 1023) & ~1023u};
  DecodeWork work;
  work.across = p.across;
  work.side = cluster_rank() & work.across;
  work.part = cluster_rank() >> work.across;
  work.parts = cluster_size() >> work.across;
  const unsigned tile = cluster_number();
  work.row = static_cast<int>(tile % p.tiles_m * p.tile_rows);
  work.column = static_cast<int>((tile / p.tiles_m << work.across) + work.side) *
                (kGated ? T::kColumns / 2 : T::kColumns);
  work.begin = p.k_blocks * work.part / work.parts;
  work.end = p.k_blocks * (work.part + 1) / work.parts;
  if (threadIdx.x == 0) {
    for (unsigned stage = 0; stage < T::kStages; ++stage) {
      barrier_init(memory.full(stage), 1);
      barrier_init(memory.empty(stage), (T::kConsumers / 32) << work.across);
    }
    barrier_init_fence();
  }
  if (work.across != 0) {  // the other CTA's copies arrive at these barriers
    cluster_arrive_relaxed();
    cluster_wait();
  } else {
    __syncthreads();
  }
  const unsigned warp = warp_number();
  if (kGated && T::kTokens == 64 && p.m <= kFewRows && warp == T::kConsumers / 32 && elect_one()) {
    // As many as fit into the ring.
    fetch_weights(p, work.column, work.begin, min(work.end, work.begin + T::kStages));
  }
  begin_in_turn<kGated>(p);
  const bool pushes = T::kSwapped || work.parts > 1;
  if (warp >= T::kConsumers / 32) {
    if constexpr (T::kWide) give_registers<32>();
    if (warp == T::kConsumers / 32 && elect_one()) produce<T, kGated>(p, memory, work);
    __syncwarp();
    if (pushes) {
      cluster_arrive_relaxed();
      cluster_wait();
    }
    if (pushes || work.across != 0) {
      cluster_arrive_relaxed();
      cluster_wait();
    }
    return;
  }
  if constexpr (T::kWide) take_registers<160>();
  const Shares<T, kGated> shares(p.quads);
  Sums<T> sums;
#pragma unroll
  for (int i = 0; i < T::kBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < T::kSums; ++j) sums.sums[i][j] = 0.0f;
  }
  const long long left = p.m - work.row;
  const int rows = static_cast<int>(min(left, static_cast<long long>(p.tile_rows)));
  if constexpr (!kGated) {
    if (work.part == 0) fetch_residual<T::kColumns>(p, work.row, rows, work.column, T::kConsumers);
  }
  Ring<T::kStages> ring;
  multiply_blocks<T, Element, false>(sums, memory, ring, work.end - work.begin,
                                     threadIdx.x / 128 * (T::kBlocks * 64 * kDepth * 2),
                                     [&](unsigned stage) { release(work, memory.empty(stage)); });
  wait_for_sums(sums);
  if (!pushes) {
    add_biases<T, Element, kGated>(sums, p, work.column);
    if constexpr (!kGated) {
      const int first_row = work.row + static_cast<int>(threadIdx.x) / 128 * (T::kBlocks * 64);
      add_residual<T, Element>(sums, p, first_row, work.column);
    }
    with_gate<kGated>(
        p.gating, [&](auto unit) { store_sums<T, Element, kGated>(sums, p, unit, work, rows); });
    if (work.across != 0) {  // the memory must outlive the other CTA's arrivals at its barriers
      cluster_arrive_relaxed();
      cluster_wait();
    }
    return;
  }
  cluster_arrive_relaxed();  // no CTA reads its stages any more
  cluster_wait();
  push_sums<T, kGated>(sums, shares, work, memory.base, rows);
  cluster_arrive();
  if constexpr (T::kSwapped) {
    reduce_swapped<T, Element>(p, shares, work, memory.base, rows);
  } else {
    reduce<T, Element, kGated>(p, shares, work, memory.base, rows);
  }
}

}  // namespace gated_mlp

KILN_GATED_DECODES(KILN_GATED_KERNELS)
KILN_PLAIN_DECODES(KILN_PLAIN_KERNELS)
