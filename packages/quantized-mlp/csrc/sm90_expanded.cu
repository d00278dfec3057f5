// SPDX-License-Identifier: Apache-2.0
//
// The products of smxx_expanded.cu on SM 9.0, by wgmma. CTAs stay and walk over a chunk's tiles;
// the two of a cluster have tiles below each other, and each brings half of their weights to both.
// Meanwhile warps with nothing else to do expand the next chunk.
//
//   threads of a CTA     role
//   0 to 31              producer: one thread issues every copy
//   32 to 127            the next chunk's weights
//   128 to 255, to 383   two consumer warpgroups of 64 tokens each
//
//   a stage              | 128 tokens x 64 of k | 256 rows of weights; gated: gate's, then up's |
#include "expand.cuh"
#include "gate.cuh"
#include "sm90/sm90_prefill.cuh"

namespace quantized_mlp {

using T = Sm90ExpandedTile;
using Memory = gated_mlp::PrefillMemory<T>;
constexpr int kExpanders = 3;  // warps
constexpr int kProducerRegisters = 72;
constexpr int kConsumerRegisters = 216;

template <bool kGated>
struct ExpandedPlace {
  int row;
  int column;  // of the chunk
  __device__ __forceinline__ ExpandedPlace(const Sm90ExpandedArguments& p, unsigned tile) {
    const gated_mlp::TilePosition at =
        gated_mlp::tile_position(tile, p.tiles_m, p.tiles_n, p.panel);
    row = static_cast<int>(at.row * 2 + gated_mlp::cluster_rank()) * T::kRows;
    column = static_cast<int>(at.column) * gated_mlp::kOutColumns<kGated, T>;
  }
};

template <bool kGated>
__device__ __forceinline__ void produce(const Sm90ExpandedArguments& p, const Memory& memory) {
  constexpr unsigned kBoxBytes = gated_mlp::kTokenBox * gated_mlp::kDepth * 2;
  constexpr int kHalf = kGated ? 0 : T::kColumns / 2;  // rows to the second half of the weights
  const unsigned rank = gated_mlp::cluster_rank();
  const gated_mlp::TensorMap& weights = kGated && rank == 1 ? p.b1 : p.b0;
  const unsigned long long keep = gated_mlp::evict_last_policy();
  gated_mlp::Ring<T::kStages> ring;
  for (unsigned tile = blockIdx.x / 2; tile < p.tiles_m * p.tiles_n; tile += gridDim.x / 2) {
    const ExpandedPlace<kGated> at(p, tile);
    // Boxes of tokens that are not all beyond the last one.
    const int boxes = static_cast<int>(
        min(max((p.m - at.row + gated_mlp::kTokenBox - 1) / gated_mlp::kTokenBox, 0ll), 2ll));
    for (unsigned block = 0; block < p.k_blocks; ++block, ring.next()) {
      const int k = static_cast<int>(block) * gated_mlp::kDepth;
      const unsigned full = memory.full(ring.stage);
      gated_mlp::barrier_wait(memory.empty(ring.stage), ring.parity ^ 1);
      gated_mlp::barrier_expect(full, T::kBBytes + boxes * kBoxBytes);
      gated_mlp::load_box_both(memory.b(ring.stage) + rank * (T::kBBytes / 2), weights, full, k,
                               at.column + static_cast<int>(rank) * kHalf);
      for (int box = 0; box < boxes; ++box) {
        gated_mlp::load_box(memory.a(ring.stage) + box * kBoxBytes, p.a, full, k,
                            at.row + box * gated_mlp::kTokenBox, keep);
      }
    }
  }
}

template <class Element>
__device__ __forceinline__ void expand_next(const ExpandArguments& next, unsigned warp) {
  if (next.matrices == 0) return;
  const unsigned number = blockIdx.x * kExpanders + warp;
  const unsigned warps = gridDim.x * kExpanders;
  if (next.codes == Codes::kInt4) {
    expand<Element, Codes::kInt4>(next, number, warps);
  } else if (next.codes == Codes::kInt8) {
    expand<Element, Codes::kInt8>(next, number, warps);
  } else {
    expand<Element, Codes::kE4m3>(next, number, warps);
  }
}

template <class Element, bool kGated>
__device__ __forceinline__ void consume(const Sm90ExpandedArguments& p, const Memory& memory,
                                        int warpgroup) {
  const int first_row = warpgroup * T::kWarpgroupRows;
  gated_mlp::Ring<T::kStages> ring;
  int next_strip = 0;
  gated_mlp::Sums<T> sums;
  const auto release_stage = [&](unsigned stage) { gated_mlp::release(memory.empty(stage)); };
  for (unsigned tile = blockIdx.x / 2; tile < p.tiles_m * p.tiles_n; tile += gridDim.x / 2) {
    const ExpandedPlace<kGated> at(p, tile);
    const int row = at.row + first_row;
    if (row >= p.m) {
      gated_mlp::skip_blocks(memory, ring, p.k_blocks, release_stage);
      continue;
    }
    gated_mlp::multiply_blocks<T, Element, true>(sums, memory, ring, p.k_blocks,
                                                 first_row * gated_mlp::kDepth * 2, release_stage);
    gated_mlp::wait_for_sums(sums);
    release_stage(ring.last());
    const int column = p.first + at.column;
    gated_mlp::add_biases<T, Element, kGated>(sums, p, column);
    if constexpr (!kGated) gated_mlp::add_residual<T, Element>(sums, p, row, column);
    gated_mlp::with_gate<kGated>(p.gating, [&](auto unit) {
      gated_mlp::epilogue<T, Element, kGated>(sums, memory, p.out, unit, warpgroup, row, column,
                                              next_strip);
    });
    next_strip = (next_strip + gated_mlp::kStrips<kGated, T>) % 2;
  }
  if (threadIdx.x % 128 == 0) gated_mlp::wait_stores_read<0>();
}

template <class Element, bool kGated>
__device__ __forceinline__ void expanded(const Sm90ExpandedArguments& p) {
  extern __shared__ unsigned char shared_memory[];
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
  const Memory memory = {(shared + 1023) & ~1023u};
  const int warp = static_cast<int>(gated_mlp::warp_number());
  if (threadIdx.x == 0) gated_mlp::init_barriers<T>(memory, T::kStages);
  gated_mlp::cluster_arrive_relaxed();
  gated_mlp::cluster_wait();
  gated_mlp::wait_for_previous_kernel();
  gated_mlp::let_next_kernel_start();
  if (warp > kExpanders) {
    gated_mlp::take_registers<kConsumerRegisters>();
    consume<Element, kGated>(p, memory, warp / 4 - 1);
  } else {
    gated_mlp::give_registers<kProducerRegisters>();
    if (warp > 0) {
      expand_next<Element>(p.next, static_cast<unsigned>(warp - 1));
    } else if (gated_mlp::elect_one()) {
      produce<kGated>(p, memory);
    }
    __syncwarp();
  }
  // A CTA's memory must outlive the other's copies into it and arrivals at its barriers.
  gated_mlp::cluster_arrive();
  gated_mlp::cluster_wait();
}

}  // namespace quantized_mlp

#define KILN_EXPANDED(name, Element, gated)                                   \
  extern "C" __global__ void __launch_bounds__(quantized_mlp::T::kThreads, 1) \
      name(const __grid_constant__ quantized_mlp::Sm90ExpandedArguments p) {  \
    quantized_mlp::expanded<gated_mlp::Element, gated>(p);                    \
  }
KILN_EXPANDED(sm90_expanded_gated_bf16, Bfloat16, true)
KILN_EXPANDED(sm90_expanded_gated_f16, Float16, true)
KILN_EXPANDED(sm90_expanded_plain_bf16, Bfloat16, false)
KILN_EXPANDED(sm90_expanded_plain_f16, Float16, false)
