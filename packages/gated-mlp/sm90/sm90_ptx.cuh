// SPDX-License-Identifier: Apache-2.0
//
// The instructions of sm_90 that the kernels are made of, one function each: barriers in shared
// memory, the copy engine, clusters, register budgets. Device only.
#pragma once

#include "sm90/sm90_arguments.h"

namespace gated_mlp {

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ unsigned cluster_size() {
  unsigned size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
__device__ __forceinline__ unsigned cluster_number() {
  unsigned number;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(number));
  return number;
}
// One thread of a warp that is here as a whole, always the same one. Copies are issued under this
// condition: under one on threadIdx alone the compiler does not know that a single thread is
// active, and puts each copy into a loop of votes.
__device__ __forceinline__ bool elect_one() {
  unsigned chosen;
  asm volatile(
      "{\n"
      ".reg .pred leads;\n"
      "elect.sync _|leads, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, leads;\n"
      "}"
      : "=r"(chosen));
  return chosen != 0;
}
// The number of this thread's warp, in a register that the compiler knows to be uniform.
__device__ __forceinline__ unsigned warp_number() {
  return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
}
// Of all threads of the cluster, then cluster_wait. What was written before is visible after.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
// The same where nothing was written: without the fence.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// The address of the same place in the shared memory of another CTA of the cluster.
__device__ __forceinline__ unsigned peer_address(unsigned shared, unsigned rank) {
  unsigned address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}
__device__ __forceinline__ void store_peer(unsigned address, float a, float b, float c, float d) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b),
               "f"(c), "f"(d)
               : "memory");
}
__device__ __forceinline__ void store_shared(unsigned address, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(first), "f"(second)
               : "memory");
}
__device__ __forceinline__ float4 load_shared(unsigned address) {
  float4 quad;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(quad.x), "=f"(quad.y), "=f"(quad.z), "=f"(quad.w)
               : "r"(address));
  return quad;
}
__device__ __forceinline__ void barrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes the inits visible to the copy engine and to the cluster. It is no fence of memory, so that
// nothing waits for it: a fence.proxy.async here would be one of the whole GPU.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// In this form, without ".release.cluster", which would cost a fence of the whole GPU: it orders
// the end of reads by wgmma, which wait_group has already seen, and no writes.
__device__ __forceinline__ void barrier_arrive_peer(unsigned barrier, unsigned rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(peer_address(barrier, rank))
               : "memory");
}
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A position in a ring of stages, each with barriers; the parity flips each time around.
template <int kStages>
struct Ring {
  unsigned stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(unsigned steps) {
    const unsigned at = stage + steps;
    parity ^= at / kStages & 1;
    stage = at % kStages;
  }
  __device__ __forceinline__ unsigned last() const { return stage == 0 ? kStages - 1 : stage - 1; }
};

// The same of stages whose number the call decides.
struct AnyRing {
  unsigned stages;
  unsigned stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ explicit AnyRing(unsigned count) : stages(count) {}
  __device__ __forceinline__ void next() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(unsigned steps) {
    const unsigned at = stage + steps;
    parity ^= at / stages & 1;
    stage = at % stages;
  }
  __device__ __forceinline__ unsigned last() const { return stage == 0 ? stages - 1 : stage - 1; }
};

template <int kId>
__device__ __forceinline__ void warpgroup_sync(int warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(kId + warpgroup) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ unsigned long long evict_first_policy() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ unsigned long long evict_last_policy() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// A box at (k, row) into shared memory; what lies outside of the tensor arrives as zeros.
__device__ __forceinline__ void load_box(unsigned shared, const TensorMap& map, unsigned barrier,
                                         int k, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(k), "r"(row)
      : "memory");
}
__device__ __forceinline__ void load_box(unsigned shared, const TensorMap& map, unsigned barrier,
                                         int k, int row, unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(k), "r"(row), "l"(policy)
      : "memory");
}
// The same into the L2 cache alone.
__device__ __forceinline__ void fetch_box(const TensorMap& map, int k, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(&map), "r"(k),
               "r"(row)
               : "memory");
}
// The same into the same place of two CTAs of a cluster, `first` and the next, and onto the barrier
// of each.
__device__ __forceinline__ void load_box_both(unsigned shared, const TensorMap& map,
                                              unsigned barrier, int k, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(k), "r"(row), "h"(static_cast<unsigned short>(3))
      : "memory");
}
__device__ __forceinline__ void load_box_both(unsigned shared, const TensorMap& map,
                                              unsigned barrier, int k, int row,
                                              unsigned long long policy, unsigned first = 0) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(k), "r"(row), "h"(static_cast<unsigned short>(3u << first)),
      "l"(policy)
      : "memory");
}
// Writes a box from shared memory; what lies outside of the tensor is dropped.
__device__ __forceinline__ void store_box(const TensorMap& map, unsigned shared, int column,
                                          int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
      "r"(shared), "r"(column), "r"(row)
      : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// The same, added to the float32 elements that are there, outside of the multiprocessor. Denormal
// numbers stay.
__device__ __forceinline__ void add_box(const TensorMap& map, unsigned shared, int column,
                                        int row) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], "
      "[%1];" ::"l"(&map),
      "r"(shared), "r"(column), "r"(row)
      : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until at most kPending stores of this thread still read shared memory.
template <int kPending>
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Orders what this thread did in shared memory before what the copy engine does there.
__device__ __forceinline__ void shared_writes_before_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void store_matrices(unsigned shared, const unsigned (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ __forceinline__ void load_matrices(unsigned shared, unsigned (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ void load_transposed(unsigned shared, unsigned (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ void store_chunk(unsigned shared, uint4 words) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_chunk(unsigned shared) {
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(shared)
               : "memory");
  return words;
}
__device__ __forceinline__ void store_transposed(unsigned shared, const unsigned (&words)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
      : "memory");
}

}  // namespace gated_mlp
