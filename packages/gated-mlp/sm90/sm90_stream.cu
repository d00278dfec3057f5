// SPDX-License-Identifier: Apache-2.0
//
// The two GEMMs of the MLP for the smallest M on sm_90a, where nothing but reading the weights
// counts. One wave of CTAs, one on each multiprocessor, each with an equal share of the weights'
// rows and all of k: no CTA waits for another, and none works longer than another. A producer
// thread keeps a ring as large as shared memory full; one warpgroup multiplies with wgmma, tokens
// as its 64 rows and weights as its columns. A row's result does not depend on how many there are.
//
//   threads of a CTA     role
//   0 to 127             consumers: multiply, lay the sums into shared memory, add biases, apply
//                        the gate, store
//   128 to 159           producer: one thread issues every copy
//
//   barrier              arrivals of a phase                         who waits for it
//   full[stage]          1 of the producer, and kBlocks blocks of m  the consumers
//                        rows of a and of b
//   empty[stage]         4, the consumer warps                       the producer, before it fills
//                                                                    the stage again
//
//   the ring             | a of every stage: kBlocks x a_rows x 64 of k | b of every stage |
//   the same bytes later | sums: a_rows x kColumns floats |
#include "sm90/sm90_arguments.h"
#include "sm90/sm90_outputs.cuh"
#include "sm90/sm90_ptx.cuh"
#include "sm90/sm90_start.cuh"
#include "sm90/sm90_wgmma.cuh"

namespace gated_mlp {

// The ring: of every stage first the rows of a, then, behind all of those, its rows of b. A wgmma
// reads 64 rows of a; where a slot has fewer, the rows that follow it, whatever they are. Rows that
// no output needs stay what they were: the copy engine takes longer to fill one with zeros than to
// copy it.
template <class T>
struct StreamRing {
  unsigned base;
  unsigned a_bytes;      // of a block
  unsigned block_bytes;  // that come for a block: rows of a and of b
  unsigned stages;
  __device__ __forceinline__ StreamRing(unsigned shared, unsigned a_rows, unsigned rows)
      : base(shared),
        a_bytes(a_rows * (kDepth * 2)),
        block_bytes(rows * (kDepth * 2) + T::kBlockBytes) {
    const unsigned stage_bytes = T::kBlocks * (a_bytes + T::kBlockBytes);
    const unsigned fitting = T::kRingBytes / stage_bytes;
    stages = fitting < T::kMostStages ? fitting : T::kMostStages;
  }
  __device__ __forceinline__ unsigned a(unsigned stage, unsigned block) const {
    return base + (stage * T::kBlocks + block) * a_bytes;
  }
  __device__ __forceinline__ unsigned b(unsigned stage, unsigned block) const {
    return base + stages * T::kBlocks * a_bytes + (stage * T::kBlocks + block) * T::kBlockBytes;
  }
  __device__ __forceinline__ unsigned full(unsigned stage) const {
    return base + T::kRingBytes + stage * 8;
  }
  __device__ __forceinline__ unsigned empty(unsigned stage) const {
    return base + T::kRingBytes + (T::kMostStages + stage) * 8;
  }
  __device__ __forceinline__ unsigned sum(unsigned row, unsigned column) const {
    return base + (row * T::kPitch + column) * 4;
  }
};

// Blocks of the last stage may lie beyond k: they arrive as zeros, without being read.
template <class T, bool kGated>
__device__ __forceinline__ void load_weights(const Sm90Arguments& p, const StreamRing<T>& ring,
                                             unsigned step, unsigned stage, int column,
                                             unsigned long long once) {
  const unsigned barrier = ring.full(stage);
  barrier_expect(barrier, T::kBlocks * ring.block_bytes);
#pragma unroll
  for (unsigned i = 0; i < T::kBlocks; ++i) {
    const int k = static_cast<int>(step * T::kBlocks + i) * kDepth;
    load_box(ring.b(stage, i), p.b0, barrier, k, column, once);
    if (kGated) load_box(ring.b(stage, i) + T::kBlockBytes / 2, p.b1, barrier, k, column, once);
  }
}

template <class T, bool kGated>
__device__ __forceinline__ void produce(const Sm90Arguments& p, const StreamRing<T>& ring,
                                        unsigned steps, int column) {
  const unsigned long long once = evict_first_policy();
  const unsigned long long keep = evict_last_policy();
  // The weights do not depend on the previous kernel: fill the ring with them while it ends.
  const unsigned ahead = steps < ring.stages ? steps : ring.stages;
  for (unsigned step = 0; step < ahead; ++step) {
    load_weights<T, kGated>(p, ring, step, step, column, once);
  }
  if (!kGated) wait_for_previous_kernel();
  unsigned stage = 0;
  unsigned parity = 0;
  for (unsigned step = 0; step < steps; ++step) {
    if (step >= ahead) {
      barrier_wait(ring.empty(stage), parity ^ 1);
      load_weights<T, kGated>(p, ring, step, stage, column, once);
    }
#pragma unroll
    for (unsigned i = 0; i < T::kBlocks; ++i) {
      const int k = static_cast<int>(step * T::kBlocks + i) * kDepth;
      load_box(ring.a(stage, i), p.a, ring.full(stage), k, 0, keep);
    }
    if (++stage == ring.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

template <class T, class Element>
__device__ __forceinline__ void mainloop(float (&sums)[T::kColumns / 2], const StreamRing<T>& ring,
                                         unsigned steps) {
#pragma unroll
  for (int i = 0; i < T::kColumns / 2; ++i) sums[i] = 0.0f;
  const bool leader = threadIdx.x % 32 == 0;  // of its warp
  unsigned stage = 0;
  unsigned parity = 0;
  unsigned before = 0;
#pragma unroll 1
  for (unsigned step = 0; step < steps; ++step) {
    barrier_wait(ring.full(stage), parity);
    hold(sums);
    wgmma_fence();
#pragma unroll
    for (unsigned i = 0; i < T::kBlocks; ++i) {
      const unsigned long long a = matrix_at(ring.a(stage, i));
      const unsigned long long b = matrix_at(ring.b(stage, i));
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
        multiply(sums, a + k * kNextK16, b + k * kNextK16, 1, Element{});
      }
    }
    wgmma_commit();
    hold(sums);
    wgmma_wait<1>();
    if (step > 0 && leader) barrier_arrive(ring.empty(before));
    before = stage;
    if (++stage == ring.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  wgmma_wait<0>();
  hold(sums);
}

// The sums go through shared memory, so that all threads share the few rows there are.
template <class T>
__device__ __forceinline__ void put_sums(const float (&sums)[T::kColumns / 2],
                                         const StreamRing<T>& ring, unsigned rows) {
  const unsigned row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int j = 0; j < T::kColumns / 8; ++j) {
    const unsigned column = j * 8 + threadIdx.x % 4 * 2;
    if (row < rows) store_shared(ring.sum(row, column), sums[4 * j], sums[4 * j + 1]);
    if (row + 8 < rows) store_shared(ring.sum(row + 8, column), sums[4 * j + 2], sums[4 * j + 3]);
  }
}

template <class T, class Element, bool kGated>
__device__ __forceinline__ void put_outputs(const Sm90Arguments& p, const StreamRing<T>& ring,
                                            unsigned rows, int first_column) {
  constexpr unsigned kQuads = (kGated ? T::kColumns / 2 : T::kColumns) / 4;
  for (unsigned i = threadIdx.x; i < rows * kQuads; i += T::kConsumers) {
    const unsigned row = i / kQuads;
    const unsigned at = i % kQuads * 4;
    const long long column = first_column + static_cast<long long>(at);
    if (column >= p.n) continue;
    const float4 sum = load_shared(ring.sum(row, at));
    float4 up = {};
    if (kGated) {
      up = add(load_shared(ring.sum(row, T::kColumns / 2 + at)),
               load_biases<Element>(p.bias1, column));
    }
    float4 out = add(sum, load_biases<Element>(p.bias0, column));
    if (!kGated) out = add(out, load_residuals<Element>(p, row, column));
    store_quad<Element, kGated>(p, row, column, out, up);
  }
}

template <class T, class Element, bool kGated>
__device__ __forceinline__ void stream(const Sm90Arguments& p) {
  extern __shared__ unsigned char shared_memory[];
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
  const StreamRing<T> ring((shared + kSharedAlign - 1) & ~(kSharedAlign - 1u), p.a_rows,
                           static_cast<unsigned>(p.m));
  const int column = static_cast<int>(blockIdx.x) * (kGated ? T::kColumns / 2 : T::kColumns);
  const unsigned steps = (p.k_blocks + T::kBlocks - 1) / T::kBlocks;
  if (threadIdx.x == 0) {
    for (unsigned stage = 0; stage < ring.stages; ++stage) {
      barrier_init(ring.full(stage), 1);
      barrier_init(ring.empty(stage), T::kConsumers / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const unsigned warp = warp_number();
  if (kGated && warp == T::kConsumers / 32 && elect_one()) {
    // An eighth: what memory can read while the previous kernel ends.
    fetch_weights(p, column, 0, (p.k_blocks + 7) / 8);
  }
  begin_in_turn<kGated>(p);
  if (warp >= T::kConsumers / 32) {
    if (warp == T::kConsumers / 32 && elect_one()) produce<T, kGated>(p, ring, steps, column);
    return;
  }
  if constexpr (!kGated) {
    fetch_residual<T::kColumns>(p, 0, static_cast<int>(p.m), column, T::kConsumers);
  }
  float sums[T::kColumns / 2];
  mainloop<T, Element>(sums, ring, steps);
  warpgroup_sync<1>(0);  // the stages are read; the sums reuse them
  put_sums<T>(sums, ring, static_cast<unsigned>(p.m));
  warpgroup_sync<1>(0);
  put_outputs<T, Element, kGated>(p, ring, static_cast<unsigned>(p.m), column);
}

}  // namespace gated_mlp

KILN_GATED_STREAMS(KILN_GATED_KERNELS)
KILN_PLAIN_STREAMS(KILN_PLAIN_KERNELS)
