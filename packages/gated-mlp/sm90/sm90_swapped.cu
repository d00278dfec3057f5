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
//   a strip              16 tokens of 64 columns: rows of 128 bytes, their 16-byte chunks swizzled
#include "sm90/sm90_arguments.h"
#include "sm90/sm90_mainloop.cuh"
#include "sm90/sm90_outputs.cuh"
#include "sm90/sm90_prefill.cuh"
#include "sm90/sm90_ptx.cuh"
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
  __device__ __forceinline__ unsigned strip(int warpgroup, int index) const {
    return a(stages) + (warpgroup * 2 + index) * T::kStripBytes;
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

// How many tiles and pieces of tiles the clusters walk over.
__device__ __forceinline__ unsigned walked(const Sm90Arguments& p) {
  return p.tail_from + (p.tiles_m * p.tiles_n - p.tail_from) * p.pieces;
}

template <class T, bool kGated>
struct SwappedAt {
  int row;     // of the tokens
  int end;     // of the rows that this CTA stores
  int column;  // of the output
  unsigned tokens;
  bool in_tail;
  __device__ __forceinline__ SwappedAt(const Sm90Arguments& p, unsigned tile, unsigned rank)
      : in_tail(tile >= p.tail_from) {
    const bool across = p.across != 0;
    unsigned piece = 0;
    tokens = p.tile_rows;
    if (in_tail) {
      piece = (tile - p.tail_from) % p.pieces;
      tile = p.tail_from + (tile - p.tail_from) / p.pieces;
      tokens = p.tail_rows;
    }
    const TilePosition at = tile_position(tile, p.tiles_m, p.tiles_n, p.panel);
    const unsigned rows = across ? p.tile_rows : 2 * p.tile_rows;
    row = static_cast<int>(at.row * rows + (across ? piece : 2 * piece + rank) * tokens);
    const long long tile_end = min(static_cast<long long>(at.row + 1) * rows, p.m);
    end = static_cast<int>(min(tile_end, static_cast<long long>(row) + tokens));
    column = static_cast<int>(across ? at.column * 2 + rank : at.column) * kOutColumns<kGated, T>;
  }
  // Whether no row of it is there.
  __device__ __forceinline__ bool is_empty() const { return row >= end; }
};

// Across: the tokens come to both CTAs, half from each. Otherwise the weights do.
template <class T, bool kGated>
__device__ __forceinline__ void load_b(const Sm90Arguments& p, const SwappedMemory<T>& memory,
                                       unsigned stage, int column, int k, unsigned rank) {
  constexpr int kHalf = T::kBoxes / 2;
  const bool both = p.across == 0;
  const unsigned full = memory.full(stage);
  const int first = both ? static_cast<int>(rank) * kHalf : 0;
  const int boxes = both ? kHalf : T::kBoxes;
  for (int box = first; box < first + boxes; ++box) {
    const TensorMap& map = kGated && box % 2 == 1 ? p.b1 : p.b0;
    const unsigned shared = memory.b(stage) + box * T::kBoxBytes;
    const int row = column + (kGated ? box / 2 : box) * 64;
    if (both) {
      load_box_both(shared, map, full, k, row);
    } else {
      load_box(shared, map, full, k, row);
    }
  }
}
// Of tokens: none where all are beyond the matrix. The copy engine takes longer to fill them with
// zeros than wgmma to multiply with them.
template <class T, bool kGated>
__device__ __forceinline__ unsigned bytes_of_a(const Sm90Arguments& p,
                                               const SwappedAt<T, kGated>& at) {
  if (at.is_empty()) return 0;
  return (p.across != 0 ? whole_sixteens(at.tokens) : at.tokens) * (kDepth * 2);
}
template <class T, bool kGated>
__device__ __forceinline__ void load_a(const Sm90Arguments& p, const SwappedMemory<T>& memory,
                                       unsigned stage, const SwappedAt<T, kGated>& at, int k,
                                       unsigned rank, unsigned long long policy) {
  if (at.is_empty()) return;
  const TensorMap& map = at.in_tail ? p.a_tail : p.a;
  if (p.across != 0) {
    const unsigned half = rank * (whole_sixteens(at.tokens) / 2);
    load_box_both(memory.a(stage) + half * (kDepth * 2), map, memory.full(stage), k,
                  at.row + static_cast<int>(half), policy);
  } else {
    load_box(memory.a(stage), map, memory.full(stage), k, at.row, policy);
  }
}

template <class T, bool kGated>
__device__ __forceinline__ void produce(const Sm90Arguments& p, const SwappedMemory<T>& memory,
                                        unsigned rank, unsigned first, unsigned clusters) {
  const unsigned long long keep = evict_last_policy();
  const unsigned tiles = walked(p);
  AnyRing ring(memory.stages);
  // As in sm90_prefill.cu: the weights do not depend on the previous kernel.
  unsigned ahead = 0;
  if (!kGated) {
    if (first < tiles) {
      const SwappedAt<T, kGated> at(p, first, rank);
      const unsigned bytes = T::kBBytes + bytes_of_a(p, at);
      for (; ahead < memory.stages && ahead < p.k_blocks; ++ahead) {
        barrier_expect(memory.full(ahead), bytes);
        load_b<T, kGated>(p, memory, ahead, at.column, static_cast<int>(ahead) * kDepth, rank);
      }
    }
    wait_for_previous_kernel();
  }
  for (unsigned tile = first; tile < tiles; tile += clusters) {
    const SwappedAt<T, kGated> at(p, tile, rank);
    const unsigned bytes = T::kBBytes + bytes_of_a(p, at);
    for (unsigned block = 0; block < p.k_blocks; ++block) {
      const int k = static_cast<int>(block) * kDepth;
      if (ahead > 0) {
        --ahead;
      } else {
        barrier_wait(memory.empty(ring.stage), ring.parity ^ 1);
        barrier_expect(memory.full(ring.stage), bytes);
        load_b<T, kGated>(p, memory, ring.stage, at.column, k, rank);
      }
      load_a(p, memory, ring.stage, at, k, rank, keep);
      ring.next();
    }
  }
}

// Calls function(tile), of so many tokens.
template <class T, class Function>
__device__ __forceinline__ void with_tokens(unsigned tokens, const Function& function) {
  if constexpr (T::kRows == kFewestPiece) {
    function(T{});
  } else if (tokens == T::kRows) {
    function(T{});
  } else {
    with_tokens<SwappedTile<T::kRows - 8, T::kColumns>>(tokens, function);
  }
}

__device__ __forceinline__ unsigned in_swapped_strip(int row, int chunk) {
  return row * 128 + (chunk ^ (row & 7)) * 16;
}

// A block of 64 columns of the output. Of a gated tile the block of gate and that of up make one.
// The warps put 16 tokens at a time into a strip, transposed, and each thread stores 16 bytes of it
// in a row of the output; the strips take turns, so that one barrier is enough for each. The copy
// engine would store by itself, but only higher strips, which would take a stage from the ring.
template <class T, class Element, bool kGated, class Unit>
__device__ __forceinline__ void store_block(const Sums<T>& tile, int i,
                                            const SwappedMemory<T>& memory, const Sm90Arguments& p,
                                            Unit unit, int warpgroup, int row, int end, int tokens,
                                            int column) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const unsigned put = in_swapped_strip(lane / 16 * 8 + lane % 8, thread / 32 * 2 + lane / 8 % 2);
  // What this thread stores of a strip: a row of it, and eight columns.
  const int token = thread / 8;
  const unsigned taken = in_swapped_strip(token, thread % 8);
  const long long at_column = column + thread % 8 * 8;
  const int rows = at_column < p.n ? end - row - token : 0;
  const long long offset = ((static_cast<long long>(row) + token) * p.n + at_column) * 2;
  const long long next_strip = p.n * 32;
  const bool adds = !kGated && p.residual != nullptr;
  const auto residual_of = [&](int first) {
    const char* from = static_cast<const char*>(p.residual) + offset + first / 16 * next_strip;
    return first < rows ? *reinterpret_cast<const uint4*>(from) : uint4{};
  };
  uint4 residual = {};
  if (adds) residual = residual_of(0);
  warpgroup_sync<1>(warpgroup);  // the last strip of the block before has been read
#pragma unroll
  for (int first = 0; first < T::kRows; first += 16) {
    if (first >= tokens) break;
    const unsigned strip = memory.strip(warpgroup, first / 16 % 2);
    unsigned words[4] = {};
    if (adds) {
      store_chunk(strip + taken, residual);
      residual = residual_of(first + 16);
      warpgroup_sync<1>(warpgroup);
      load_transposed(strip + put, words);
    }
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
    store_transposed(strip + put, words);
    warpgroup_sync<1>(warpgroup);
    if (first < rows) {
      char* to = static_cast<char*>(p.out_data) + offset + first / 16 * next_strip;
      *reinterpret_cast<uint4*>(to) = load_chunk(strip + taken);
    }
  }
}

template <class T, class Element, bool kGated>
__device__ __forceinline__ void consume(const Sm90Arguments& p, const SwappedMemory<T>& memory,
                                        unsigned rank, unsigned first, unsigned clusters,
                                        int warpgroup) {
  const unsigned tiles = walked(p);
  const int box = T::kPingPong ? 0 : warpgroup * 2;  // the first of this warpgroup
  AnyRing ring(memory.stages);
  Turns<T, SwappedMemory<T>> turns(memory, warpgroup);
  const Walk<T> walk(ring, first, clusters, p.k_blocks, warpgroup);
  Sums<T> sums;
  for (unsigned tile = walk.first; tile < tiles; tile += walk.step) {
    const SwappedAt<T, kGated> at(p, tile, rank);
    turns.wait();
    const auto release_stage = [&](unsigned stage) { release(memory.empty(stage)); };
    if (at.is_empty()) {
      skip_blocks(memory, ring, p.k_blocks, release_stage);
      turns.pass();
      if (T::kPingPong) ring.skip(p.k_blocks);
      continue;
    }
    with_tokens<T>(at.tokens, [&](auto tile) {
      // Sums of their own: where tiles of several heights have some in common, ptxas makes each
      // wgmma wait for the one before it.
      using Exact = decltype(tile);
      Sums<Exact> exact = {};
      multiply_blocks<Exact, Element, true>(exact, memory, ring, p.k_blocks, box * T::kBoxBytes,
                                            release_stage);
      turns.pass();
      wait_for_sums(exact);
#pragma unroll
      for (int i = 0; i < T::kBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < Exact::kSums; ++j) sums.sums[i][j] = exact.sums[i][j];
      }
    });
    release_stage(ring.last());
    if (T::kPingPong) ring.skip(p.k_blocks);
    const int column = at.column + (kGated ? box / 2 : box) * 64;
    add_biases<T, Element, kGated>(sums, p, column);
    with_gate<kGated>(p.gating, [&](auto unit) {
#pragma unroll
      for (int i = 0; i < (kGated ? 1 : 2); ++i) {
        store_block<T, Element, kGated>(sums, i, memory, p, unit, warpgroup, at.row, at.end,
                                        static_cast<int>(at.tokens), column + i * 64);
      }
    });
  }
}

template <class T, class Element, bool kGated>
__device__ __forceinline__ void swapped(const Sm90Arguments& p) {
  extern __shared__ unsigned char shared_memory[];
  const SwappedMemory<T> memory(static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)),
                                p.tile_rows);
  const unsigned rank = cluster_rank();
  const unsigned first = blockIdx.x / 2;
  const unsigned clusters = gridDim.x / 2;
  play_product<T, kGated>(
      p, memory, memory.stages, [&] { produce<T, kGated>(p, memory, rank, first, clusters); },
      [&](int warpgroup) {
        consume<T, Element, kGated>(p, memory, rank, first, clusters, warpgroup);
      });
}

}  // namespace gated_mlp

KILN_SWAPPED_KERNELS(KILN_GATED_KERNELS)
KILN_SWAPPED_KERNELS(KILN_PLAIN_KERNELS)
