// SPDX-License-Identifier: Apache-2.0
//
// The two GEMMs of the MLP for small M on sm_90a, where reading the weights is the work. A cluster
// has one tile of outputs; its CTAs split k, stream their part of the weights through a ring of
// shared-memory stages and multiply with wgmma, tokens as its 64 rows and weights as its columns.
// Then each CTA gets a share of the columns from all of them through distributed shared memory,
// adds them in the order of the ranks, and writes its outputs: the same bits each time.
#include "activation.cuh"
#include "sm90_arguments.h"
#include "sm90_outputs.cuh"
#include "sm90_ptx.cuh"
#include "sm90_wgmma.cuh"

namespace geglu_mlp {

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

// What one CTA does: a tile of outputs and a range of k blocks.
struct DecodeWork {
  int row;
  int column;
  unsigned begin;
  unsigned end;
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

template <class T, bool kGated>
__device__ __forceinline__ void produce(const Sm90Arguments& p, const DecodeMemory<T>& memory,
                                        const DecodeWork& work) {
  const unsigned long long once = evict_first_policy();
  const unsigned long long keep = evict_last_policy();
  // The weights do not depend on the previous kernel: fill the ring with them while it ends.
  const unsigned blocks = work.end - work.begin;
  const unsigned ahead = blocks < T::kStages ? blocks : T::kStages;
  for (unsigned i = 0; i < ahead; ++i) {
    load_weights<T, kGated>(p, memory, work, work.begin + i, i, once);
  }
  if (!kGated) wait_for_previous_kernel();
  unsigned stage = 0;
  unsigned parity = 0;
  for (unsigned i = 0; i < blocks; ++i) {
    const unsigned block = work.begin + i;
    if (i >= ahead) {
      barrier_wait(memory.empty(stage), parity ^ 1);
      load_weights<T, kGated>(p, memory, work, block, stage, once);
    }
    load_box(memory.a(stage), p.a, memory.full(stage), static_cast<int>(block) * kDepth, work.row,
             keep);
    if (++stage == T::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

template <class T, class Element>
__device__ __forceinline__ void mainloop(float (&sums)[T::kColumns / 2],
                                         const DecodeMemory<T>& memory, unsigned blocks,
                                         unsigned a_offset) {
#pragma unroll
  for (int i = 0; i < T::kColumns / 2; ++i) sums[i] = 0.0f;
  const bool leader = threadIdx.x % 32 == 0;  // of its warp
  unsigned stage = 0;
  unsigned parity = 0;
  unsigned before = 0;
#pragma unroll 1
  for (unsigned block = 0; block < blocks; ++block) {
    barrier_wait(memory.full(stage), parity);
    hold(sums);
    wgmma_fence();
    const unsigned long long a = matrix_at(memory.a(stage) + a_offset);
    const unsigned long long b = matrix_at(memory.b(stage));
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      multiply(sums, a + k * kNextK16, b + k * kNextK16, 1, Element{});
    }
    wgmma_commit();
    hold(sums);
    wgmma_wait<1>();
    if (block > 0 && leader) barrier_arrive(memory.empty(before));
    before = stage;
    if (++stage == T::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  wgmma_wait<0>();
  hold(sums);
}

// Where the sums of a tile go: output column c to rank c / share, there into the slot of the rank
// that they come from. A slot has rows of `pitch` floats: the share of gate, then that of up.
template <class T, bool kGated>
struct Shares {
  static constexpr int kOutColumns = kGated ? T::kColumns / 2 : T::kColumns;
  unsigned share_bits;  // 2^bits columns of the output a rank
  unsigned pitch;
  unsigned slot_bytes;
  __device__ __forceinline__ explicit Shares(unsigned ranks) {
    share_bits = 31 - __clz(kOutColumns / ranks);
    pitch = (kGated ? 2u << share_bits : 1u << share_bits) + T::kRowPadding;
    slot_bytes = T::kTokens * pitch * 4;
  }
  __device__ __forceinline__ unsigned share() const { return 1u << share_bits; }
};

template <class T, bool kGated>
__device__ __forceinline__ void push_sums(const float (&sums)[T::kColumns / 2],
                                          const Shares<T, kGated>& shares, unsigned base,
                                          unsigned rank, int rows) {
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / 32 * 16 + thread % 32 / 4;
  if (row >= rows) return;
  const unsigned slot = base + rank * shares.slot_bytes + row * shares.pitch * 4;
#pragma unroll
  for (int j = 0; j < T::kColumns / 8; ++j) {
    const unsigned column = j * 8 + thread % 4 * 2;
    const unsigned out_column = column % Shares<T, kGated>::kOutColumns;
    const unsigned half = column / Shares<T, kGated>::kOutColumns;
    const unsigned at = half * shares.share() + (out_column & (shares.share() - 1));
    const unsigned address = peer_address(slot + at * 4, out_column >> shares.share_bits);
    store_peer(address, sums[4 * j], sums[4 * j + 1]);
    if (row + 8 < rows) {
      store_peer(address + 8 * shares.pitch * 4, sums[4 * j + 2], sums[4 * j + 3]);
    }
  }
}

__device__ __forceinline__ float2 add_slots(unsigned address, unsigned slot_bytes, unsigned ranks) {
  float2 sum = load_shared(address);
  for (unsigned rank = 1; rank < ranks; ++rank) {
    const float2 more = load_shared(address + rank * slot_bytes);
    sum.x += more.x;
    sum.y += more.y;
  }
  return sum;
}

template <class T, class Element, bool kGated>
__device__ __forceinline__ void reduce(const Sm90Arguments& p, const Shares<T, kGated>& shares,
                                       const DecodeWork& work, unsigned base, unsigned rank,
                                       unsigned ranks, unsigned rows) {
  const unsigned pair_bits = shares.share_bits - 1;
  for (unsigned i = threadIdx.x; i < rows << pair_bits; i += T::kConsumers) {
    const unsigned row = i >> pair_bits;
    const unsigned at = (i & ((1u << pair_bits) - 1)) * 2;
    const long long column = work.column + static_cast<long long>(rank * shares.share() + at);
    if (column >= p.n) continue;
    const unsigned address = base + (row * shares.pitch + at) * 4;
    float2 out = with_bias<Element>(add_slots(address, shares.slot_bytes, ranks), p.bias0, column);
    if constexpr (kGated) {
      const float2 up = with_bias<Element>(
          add_slots(address + shares.share() * 4, shares.slot_bytes, ranks), p.bias1, column);
      out = p.exact != 0 ? gated_pair<true>(out, up) : gated_pair<false>(out, up);
    }
    store_output<Element>(p, work.row + row, column, out);
  }
}

template <class T, class Element, bool kGated>
__device__ __forceinline__ void decode(const Sm90Arguments& p) {
  extern __shared__ unsigned char shared_memory[];
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
  const DecodeMemory<T> memory = {(shared + 1023) & ~1023u};
  const unsigned rank = cluster_rank();
  const unsigned ranks = cluster_size();
  const unsigned tile = blockIdx.x / ranks;
  DecodeWork work;
  work.row = static_cast<int>(tile % p.tiles_m) * T::kTokens;
  work.column = static_cast<int>(tile / p.tiles_m) * Shares<T, kGated>::kOutColumns;
  work.begin = p.k_blocks * rank / ranks;
  work.end = p.k_blocks * (rank + 1) / ranks;
  if (threadIdx.x == 0) {
    for (unsigned stage = 0; stage < T::kStages; ++stage) {
      barrier_init(memory.full(stage), 1);
      barrier_init(memory.empty(stage), T::kConsumers / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (kGated) let_next_kernel_start();
  const bool producer = threadIdx.x >= T::kConsumers;
  float sums[T::kColumns / 2];
  if (producer) {
    if (threadIdx.x == T::kConsumers) produce<T, kGated>(p, memory, work);
    __syncwarp();
  } else {
    mainloop<T, Element>(sums, memory, work.end - work.begin,
                         threadIdx.x / 128 * (64 * kDepth * 2));
  }
  const Shares<T, kGated> shares(ranks);
  const long long left = p.m - work.row;
  const int rows = left < T::kTokens ? static_cast<int>(left) : T::kTokens;
  cluster_arrive_relaxed();  // no CTA reads its stages any more
  cluster_wait();
  if (!producer) push_sums<T, kGated>(sums, shares, memory.base, rank, rows);
  cluster_arrive();
  cluster_wait();
  if (!producer) reduce<T, Element, kGated>(p, shares, work, memory.base, rank, ranks, rows);
}

}  // namespace geglu_mlp

KILN_GATED_DECODES(KILN_GATED_KERNELS)
KILN_PLAIN_DECODES(KILN_PLAIN_KERNELS)
