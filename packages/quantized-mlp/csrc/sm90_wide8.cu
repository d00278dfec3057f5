// SPDX-License-Identifier: Apache-2.0
//
// The two products of the MLP for many tokens on SM 9.0, where both weights and activations are
// numbers of e4m3, by wgmma: tokens are its 64 rows, weights its columns, both from shared memory.
// A CTA has 64 or 128 tokens and 16 row tiles, of which a panel is eight: gate's and up's, or
// neighbours. A warpgroup of consumers has 64 tokens and all of the panels, or, where there are
// no more tokens, half of each panel.
//
// wgmma adds products of e4m3 with about 14 bits, so the sums of a block of 128 columns are added
// to others in fp32, times the token's scale in that block and, where weights have groups of 128,
// the row's. A lane has two tokens, so their scales are two numbers. Where all rows of a panel have
// one scale, as in blocks of 128 x 128, it is multiplied by the tokens' first; else each column is
// multiplied by its own. While one warpgroup adds, the other one multiplies.
//
//   tokens in memory    blocks of 64 tokens x 128 k, as a stage has them: [block][block of k], 64
//                       lines of 128 bytes in wgmma's swizzle, in which k has the order of
//                       float8_place; and [block][block of k] scales of 64 tokens. arrange8 writes
//                       those of x, the gated kernel and sum_gated8 those of h, of 128 columns
//   a stage             | blocks of tokens | of each panel, tile of k and row tile: codes as they
//                       are packed, which is wgmma's 64-byte swizzle | scales of tokens | with
//                       groups: of rows, and one number of each 64 rows, which is their scale or,
//                       where they differ, a NaN |
//   it is filled        by bulk copies, a block of k, issued by one thread of each of four warps;
//                       full counts their bytes. Where k ends with one tile, that one is copied
//                       twice: the second is multiplied by zeros. Those warps store scales of rows
//   it is free          when each consumer has said so on empty, after its last wgmma, with groups
//                       after its last sums. Each lane says it, which takes 1% at most: racecheck
//                       does not see that a warp has converged, and would name the others' reads
#include "float8.h"
#include "kernels.cuh"
#include "sm90_wide.cuh"

namespace quantized_mlp {

__device__ __forceinline__ void store_bulk(void* global, unsigned shared, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ float load_one_shared(unsigned address) {
  float one;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(one) : "r"(address) : "memory");
  return one;
}
__device__ __forceinline__ float2 load_two_shared(unsigned address) {
  const uint2 words = load_shared_pair(address);
  return {__uint_as_float(words.x), __uint_as_float(words.y)};
}

// The matrix descriptor of packed codes, tile after tile of rows: lines of 64 bytes in the 64-byte
// swizzle, 512 bytes from eight rows to the next.
__device__ __forceinline__ unsigned long long codes_matrix(unsigned shared) {
  constexpr unsigned long long kSwizzle64 = 2ull << 62;
  constexpr unsigned long long kNextRows = static_cast<unsigned long long>(kStepBytes / 16) << 32;
  return kSwizzle64 | kNextRows | 1ull << 16 | (shared & 0x3ffffu) >> 4;
}

// sums = A B^T or, where it adds, += A B^T.
#define KILN_WIDE8(columns, a_number, b_number, add_number)                                    \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #add_number                          \
               ", 0;\n"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" #columns                                    \
               "k32.f32.e4m3.e4m3"                                                             \
               " {" KILN_NUMBERS_##columns "}, %" #a_number ", %" #b_number ", adds, 1, 1;\n}" \
               : KILN_SUMS_##columns(0)                                                        \
               : "l"(a), "l"(b), "n"(kAdds))
template <int kAdds>
__device__ __forceinline__ void multiply_wide8(float (&d)[32], unsigned long long a,
                                               unsigned long long b) {
  KILN_WIDE8(64, 32, 33, 34);
}
template <int kAdds>
__device__ __forceinline__ void multiply_wide8(float (&d)[64], unsigned long long a,
                                               unsigned long long b) {
  KILN_WIDE8(128, 64, 65, 66);
}

// Two numbers as codes, the first in the low byte.
__device__ __forceinline__ unsigned float8_pair(float first, float second) {
  unsigned short both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
  return both;
}

// Bits of two numbers' magnitudes in 16 bits each; 0 of what is not finite.
template <class Element>
__device__ __forceinline__ unsigned finite_pair(unsigned both) {
  constexpr unsigned kInfinite = kIsSame<Element, Bfloat16> ? 0x7f80u : 0x7c00u;
  both &= 0x7fff7fffu;
  const unsigned low = both & 0xffffu;
  const unsigned high = both >> 16;
  return (low < kInfinite ? low : 0u) | (high < kInfinite ? high : 0u) << 16;
}
__device__ __forceinline__ unsigned larger_pair(unsigned a, unsigned b) {
  unsigned result;
  asm("max.u16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
// A number that becomes a NaN where it is not finite, divided by the scale.
__device__ __forceinline__ float divided(float value, float by_scale) {
  return fmaf(value, by_scale, value - value);
}

__device__ __forceinline__ bool is_normal(float value) {
  return (__float_as_uint(value) >> 23 & 0xffu) - 1u < 254u;
}

template <bool kGrouped, int kTokenBlocks>
struct Wide8Layout {
  static constexpr int kUnit = kWideUnit;
  static constexpr int kXBytes = kTokenBlocks * kWide8BlockBytes;
  static constexpr int kCodeBytes = tile_bytes(Codes::kE4m3);
  static constexpr int kTileBytes = kWideRowTiles / 2 * kCodeBytes;  // of a panel
  static constexpr int kPanelBytes = kUnit * kTileBytes;
  static constexpr int kScalesAt = kXBytes + 2 * kPanelBytes;
  static constexpr int kRowScalesAt = kScalesAt + kTokenBlocks * kWideBlock * 4;
  static constexpr int kSameAt = kRowScalesAt + 2 * kWide8PanelRows * 4;
  static constexpr int kStageStep = wide8_stage_step(kTokenBlocks);
  static constexpr int kStages = wide8_stages(kTokenBlocks);
  // Of the copies' bytes, and of each producer's lane.
  static constexpr int kArrivals = kGrouped ? 1 + 4 * 32 : 1;
  static constexpr int kFreeing = 32;  // lanes of each consumer's warp
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  static_assert(kSameAt + 4 * 4 <= kStageStep);
};

template <class Element, bool kGated, bool kGrouped, int kTokenBlocks>
struct Wide8 : WideStages<kGated, kTokenBlocks * kWideBlock, Wide8Layout<kGrouped, kTokenBlocks>> {
  using Base = WideStages<kGated, kTokenBlocks * kWideBlock, Wide8Layout<kGrouped, kTokenBlocks>>;
  using Base::empty;
  using Base::first;
  using Base::full;
  using Base::kCodeBytes;
  using Base::kPanelBytes;
  using Base::kRowScalesAt;
  using Base::kSameAt;
  using Base::kScalesAt;
  using Base::kStages;
  using Base::kTileBytes;
  using Base::kTokens;
  using Base::kUnit;
  using Base::kXBytes;
  using Base::lane;
  using Base::last;
  using Base::p;
  using Base::readable;
  using Base::row_block;
  using Base::shared;
  using Base::split_tile;
  using Base::stage_at;
  using Base::sums_of;
  using Base::token_block;
  using Base::warp;
  using typename Base::Sums;

  static constexpr int kPanels = Base::kPanels;
  static constexpr int kPanelTiles = kWide8PanelRows / kTileRows;
  static constexpr int kColumns = kTokens;  // of a warpgroup, in a panel
  static constexpr int kScaleBytes = kWideBlock * 4;

  using Base::Base;

  __device__ __forceinline__ int tile_of(int panel, int number) const {
    return readable(kGated ? row_block * kPanelTiles + number
                           : (row_block * kPanels + panel) * kPanelTiles + number);
  }
  __device__ __forceinline__ const float* scales_of(int panel, int number, int group) const {
    const auto* const scales = reinterpret_cast<const float*>(p.b[kGated ? panel : 0].scales);
    return scales + (static_cast<long long>(tile_of(panel, number)) * p.groups + group) * kTileRows;
  }

  // A producer's warp has half of a panel.
  static constexpr int kProduced = kPanelTiles / 2;

  // Scales of rows j and j + 8 of this lane's tile among the warp's four.
  __device__ __forceinline__ float2 load_row_scales(int by, int tile) const {
    int group = tile / kUnit;
    group = group < p.groups ? group : p.groups - 1;
    const float* const from = scales_of(by / 2, by % 2 * kProduced + lane / 8, group);
    return *reinterpret_cast<const float2*>(from + lane % 8 * 2);
  }
  __device__ __forceinline__ void store_row_scales(unsigned stage, int by, float2 scales) const {
    const int row =
        by / 2 * kWide8PanelRows + (by % 2 * kProduced + lane / 8) * kTileRows + lane % 8;
    const unsigned to = stage + static_cast<unsigned>(kRowScalesAt + row * 4);
    store_one_shared(to, scales.x);
    store_one_shared(to + 8 * 4, scales.y);
    const float one = __shfl_sync(0xffffffffu, scales.x, 0);
    const bool is_same = __all_sync(0xffffffffu, scales.x == one && scales.y == one) != 0;
    if (lane == 0) {
      store_one_shared(stage + static_cast<unsigned>(kSameAt + by * 4),
                       is_same ? one : __uint_as_float(0x7fc00000u));
    }
  }

  __device__ __forceinline__ static unsigned codes_at(int panel, int half, int number) {
    return static_cast<unsigned>(kXBytes + panel * kPanelBytes + half * kTileBytes +
                                 number * kCodeBytes);
  }

  // One thread's copies of a block of k: four row tiles, and of two warps a block of tokens.
  __device__ __forceinline__ void copy(int by, unsigned stage, int tile) const {
    const unsigned to = stage_at(stage);
    if (by == 0) {
      gated_mlp::barrier_expect(
          full(stage), kTokenBlocks * (kWide8BlockBytes + kScaleBytes) + kPanels * kPanelBytes);
    }
    if (by < kTokenBlocks) {
      const long long block = (token_block + by) * ((p.depth_tiles + 1ll) / kUnit) + tile / kUnit;
      copy_bulk(to + static_cast<unsigned>(by * kWide8BlockBytes),
                static_cast<const unsigned char*>(p.a) + block * kWide8BlockBytes, kWide8BlockBytes,
                full(stage));
      copy_bulk(to + static_cast<unsigned>(kScalesAt + by * kScaleBytes),
                p.token_scales + block * kWideBlock, kScaleBytes, full(stage));
    }
#pragma unroll
    for (int i = 0; i < kProduced; ++i) {
      const int number = by % 2 * kProduced + i;
      const unsigned char* const codes =
          p.b[kGated ? by / 2 : 0].codes +
          (static_cast<long long>(tile_of(by / 2, number)) * p.depth_tiles + tile) * kCodeBytes;
#pragma unroll
      for (int half = 0; half < kUnit; ++half) {
        copy_bulk(to + codes_at(by / 2, half, number),
                  codes + (tile + half < p.depth_tiles ? half * kCodeBytes : 0), kCodeBytes,
                  full(stage));
      }
    }
  }

  __device__ __forceinline__ void produce(int by) const {
    if (first >= last) return;
    gated_mlp::Ring<kStages> ring;
    float2 row_scales = {};
    if constexpr (kGrouped) row_scales = load_row_scales(by, first);
#pragma unroll 1
    for (int tile = first; tile < last; tile += kUnit) {
      barrier_wait(empty(ring.stage), ring.parity ^ 1);
      if (gated_mlp::elect_one()) copy(by, ring.stage, tile);
      if constexpr (kGrouped) {
        store_row_scales(stage_at(ring.stage), by, row_scales);
        barrier_arrive(full(ring.stage));
        row_scales = load_row_scales(by, tile + kUnit);
      }
      ring.next();
    }
  }

  __device__ __forceinline__ int block() const {
    return kTokenBlocks == 2 ? warp / 4 : 0;
  }
  // Of this warpgroup in a panel.
  __device__ __forceinline__ int first_column() const {
    return kTokenBlocks == 2 ? 0 : warp / 4 * kColumns;
  }
  // Of this lane's first token in its block; the other one is 8 below.
  __device__ __forceinline__ int row() const {
    return warp % 4 * 16 + lane / 4;
  }

  using Part = float[kColumns / 2];  // of one panel and a block of k

  // part = a block of k of tokens times a panel, on its way.
  __device__ __forceinline__ void issue(unsigned stage, int panel, Part& part) const {
    const unsigned long long tokens =
        gated_mlp::matrix_at(stage + static_cast<unsigned>(block() * kWide8BlockBytes));
    const unsigned long long codes =
        codes_matrix(stage + codes_at(panel, 0, first_column() / kTileRows));
    gated_mlp::hold(part);
    gated_mlp::wgmma_fence();
    multiply_wide8<0>(part, tokens, codes);
#pragma unroll
    for (unsigned i = 1; i < 4; ++i) {
      multiply_wide8<1>(part, tokens + i * gated_mlp::kNextK16,
                        codes + i / 2 * (kTileBytes / 16) + i % 2 * gated_mlp::kNextK16);
    }
    gated_mlp::wgmma_commit();
  }

  __device__ __forceinline__ static void add(float (&sums)[kColumns / 2], const Part& part,
                                             float2 of_tokens) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      sums[i] = fmaf(part[i], i % 4 < 2 ? of_tokens.x : of_tokens.y, sums[i]);
    }
  }
  __device__ __forceinline__ void add_grouped(unsigned stage, int panel,
                                              float (&sums)[kColumns / 2], const Part& part,
                                              float2 of_tokens) const {
    const unsigned same = stage + static_cast<unsigned>(kSameAt + panel * 8);
    const float low = load_one_shared(same);
    const float high = load_one_shared(same + 4);
    // Of normal numbers the product with a power of two is exact.
    const float2 of_both = {of_tokens.x * low, of_tokens.y * low};
    const bool is_one = low == high && is_normal(of_both.x) && is_normal(of_both.y);
    if (__all_sync(0xffffffffu, is_one) != 0) {
      add(sums, part, of_both);
      return;
    }
    const unsigned scales =
        stage + static_cast<unsigned>(
                    kRowScalesAt + (panel * kWide8PanelRows + first_column() + lane % 4 * 2) * 4);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const float2 of_rows = load_two_shared(scales + static_cast<unsigned>(n * 32));
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int at = 4 * n + c;
        const float scaled = part[at] * (c < 2 ? of_tokens.x : of_tokens.y);
        sums[at] = fmaf(scaled, c % 2 == 0 ? of_rows.x : of_rows.y, sums[at]);
      }
    }
  }

  __device__ __forceinline__ void consume(Sums& sums) const {
    gated_mlp::Ring<kStages> ring;
    Part part;
#pragma unroll 1
    for (int tile = first; tile < last; tile += kUnit) {
      const unsigned stage = stage_at(ring.stage);
      barrier_wait(full(ring.stage), ring.parity);
      const unsigned scales =
          stage + static_cast<unsigned>(kScalesAt + block() * kScaleBytes + row() * 4);
      const float2 of_tokens = {load_one_shared(scales), load_one_shared(scales + 8 * 4)};
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        issue(stage, panel, part);
        gated_mlp::wgmma_wait<0>();
        gated_mlp::hold(part);
        if (!kGrouped && panel == kPanels - 1) barrier_arrive(empty(ring.stage));
        if constexpr (kGrouped) {
          add_grouped(stage, panel, sums[panel], part, of_tokens);
        } else {
          add(sums[panel], part, of_tokens);
        }
      }
      if constexpr (kGrouped) barrier_arrive(empty(ring.stage));
      ring.next();
    }
    if constexpr (!kGrouped) {
      if (first < last) scale_columns(sums);  // no columns, no scales
    }
  }
  __device__ __forceinline__ void scale_columns(Sums& sums) const {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (int i = 0; i < kColumns / kTileRows; ++i) {
        // Of the columns of two instructions' eight: scale_place.
        const auto* const from = reinterpret_cast<const float2*>(
            scales_of(panel, first_column() / kTileRows + i, 0) + lane % 4 * 4);
        const float2 even = from[0];
        const float2 odd = from[1];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sums[panel][8 * i + c] *= c % 2 == 0 ? even.x : odd.x;
          sums[panel][8 * i + 4 + c] *= c % 2 == 0 ? even.y : odd.y;
        }
      }
    }
  }

  __device__ __forceinline__ void add_bias(float (&sums)[kColumns / 2], const void* bias,
                                           int columns) const {
    if (bias == nullptr) return;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      if (n * 8 >= columns) continue;
      const long long column = static_cast<long long>(row_block) * kWide8PanelRows +
                               first_column() + n * 8 + lane % 4 * 2;
      const float2 two = load_two<Element>(bias, column, true);
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[4 * n + c] += c % 2 == 0 ? two.x : two.y;
    }
  }

  using Hidden = unsigned[kColumns / 8][2];  // two columns of each of the two tokens

  // Zeros beyond the last row tile.
  __device__ __forceinline__ void gate_columns(Sums& sums, Hidden& hidden) const {
    const int columns = (p.row_tiles - row_block * kPanelTiles) * kTileRows - first_column();
    add_bias(sums[0], p.bias0, columns);
    add_bias(sums[1], p.bias1, columns);
    gated_mlp::with_gate(p.gating, [&](auto unit) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = 4 * n + 2 * half;
          const unsigned words =
              gated_mlp::pack_pair(unit.of(sums[0][at], sums[1][at]),
                                   unit.of(sums[0][at + 1], sums[1][at + 1]), Element{});
          hidden[n][half] = gated_mlp::bound_pair(words, p.gating.greatest, Element{});
        }
      }
    });
    if (columns >= kColumns) return;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      if (n * 8 >= columns) hidden[n][0] = hidden[n][1] = 0;
    }
  }

  // The largest finite magnitude of a token's numbers here, in either half.
  __device__ __forceinline__ static unsigned largest_of(const Hidden& hidden, int half) {
    unsigned largest = 0;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      largest = larger_pair(largest, hidden[n][half] & 0x7fff7fffu);
    }
    if (finite_pair<Element>(largest) != largest) {
      largest = 0;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        largest = larger_pair(largest, finite_pair<Element>(hidden[n][half]));
      }
    }
    return largest;
  }

  // The exponent of each token's scale: of all 128 columns.
  __device__ __forceinline__ void exponents_of(const Hidden& hidden, int (&exponents)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned largest = largest_of(hidden, half);
      largest = larger_pair(largest, largest >> 16 | largest << 16);
      largest = larger_pair(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = larger_pair(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      if constexpr (kTokenBlocks == 1) {  // the other warpgroup has the other columns
        const unsigned at = shared + kXBytes + static_cast<unsigned>((row() + half * 8) * 4);
        const unsigned other = static_cast<unsigned>(kWideBlock * 4);
        store_one_shared(at + (warp < 4 ? 0u : other), __uint_as_float(largest));
        sync_consumers();
        const float theirs = load_one_shared(at + (warp < 4 ? other : 0u));
        largest = larger_pair(largest, __float_as_uint(theirs));
      }
      const float one = gated_mlp::unpack_pair<Element>(largest).x;
      exponents[half] =
          float8_exponent(__float_as_uint(one), float8_least(!kIsSame<Element, Bfloat16>));
    }
  }

  // A token's codes of two times eight columns. A word has four neighbouring ones, of two lanes, of
  // which the first one stores that of the first eight.
  __device__ __forceinline__ void store_codes(int token, int n, unsigned first,
                                              unsigned second) const {
    const bool is_odd = lane % 2 != 0;
    const unsigned own = is_odd ? second : first;
    const unsigned got = __shfl_xor_sync(0xffffffffu, is_odd ? first : second, 1);
    const unsigned word = permuted(is_odd ? got : own, is_odd ? own : got, 0x5140u);
    const int place =
        float8_place(first_column() + n * 8) + (is_odd ? kLaneBytes : 0) + lane % 4 / 2 * 4;
    asm volatile(
        "st.shared.u32 [%0], %1;" ::"r"(
            shared + static_cast<unsigned>(block() * kWide8BlockBytes + wide8_byte(token, place))),
        "r"(word)
        : "memory");
  }

  // h, as the next product's tokens: a block of 128 columns.
  __device__ __forceinline__ void store_hidden(Sums& sums) const {
    Hidden hidden;
    gate_columns(sums, hidden);
    sync_consumers();  // all stages have been read
    int exponents[2];
    exponents_of(hidden, exponents);
    const long long blocks = (p.out_tiles + 1ll) / kUnit;
    const long long number = (token_block + block()) * blocks + row_block;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = row() + half * 8;
      if (lane % 4 == 0 && first_column() == 0) {
        p.out_scales[number * kWideBlock + token] = __uint_as_float(power_bits(exponents[half]));
      }
      const float by_scale = __uint_as_float(power_bits(-exponents[half]));
      const auto code_pair = [&](int n) {
        const float2 both = gated_mlp::unpack_pair<Element>(hidden[n][half]);
        return float8_pair(divided(both.x, by_scale), divided(both.y, by_scale));
      };
#pragma unroll
      for (int n = 0; n < kColumns / 8; n += 2)
        store_codes(token, n, code_pair(n), code_pair(n + 1));
    }
    gated_mlp::shared_writes_before_copies();
    sync_consumers();
    if (threadIdx.x >= kTokenBlocks) return;
    const int which = static_cast<int>(threadIdx.x);
    store_bulk(static_cast<unsigned char*>(p.out) +
                   ((token_block + which) * blocks + row_block) * kWide8BlockBytes,
               shared + static_cast<unsigned>(which * kWide8BlockBytes), kWide8BlockBytes);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }

  // Takes two sums at a time: of a token and two neighbouring rows of the tile's.
  template <class Take>
  __device__ __forceinline__ void for_each_pair(const Sums& sums, Take take) const {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = 4 * n + 2 * half;
          take(block() * kWideBlock + row() + half * 8,
               panel * kWide8PanelRows + first_column() + n * 8 + lane % 4 * 2,
               float2{sums[panel][at], sums[panel][at + 1]});
        }
      }
    }
  }

  __device__ __forceinline__ void store_columns(const Sums& sums) const {
    for_each_pair(sums, [&](int token, int row, float2 both) {
      quantized_mlp::finish<Element, false>(
          p, static_cast<long long>(token_block) * kWideBlock + token,
          static_cast<long long>(row_block) * kWideRows + row, both, {});
    });
  }

  __device__ __forceinline__ void finish(Sums& sums) const {
    if (split_tile >= 0) {
      const long long tokens = p.m - static_cast<long long>(token_block) * kWideBlock;
      for_each_pair(sums, [&](int token, int row, float2 both) {
        if (token < tokens) *reinterpret_cast<float2*>(sums_of(token) + row) = both;
      });
    } else if constexpr (kGated) {
      store_hidden(sums);
    } else {
      store_columns(sums);
    }
  }
};

template <class Element, bool kGated, bool kGrouped, int kTokenBlocks>
__device__ __forceinline__ void wide8(const ProductArguments& p) {
  run_wide<Wide8<Element, kGated, kGrouped, kTokenBlocks>>(p);
}

// The exponent of a scale, by the largest pair of magnitudes.
template <class Element>
__device__ __forceinline__ int exponent_of(unsigned largest) {
  const unsigned one = (largest & 0xffffu) > (largest >> 16) ? largest & 0xffffu : largest >> 16;
  return float8_exponent(__float_as_uint(gated_mlp::unpack_pair<Element>(one).x),
                         float8_least(!kIsSame<Element, Bfloat16>));
}
// Of four neighbours, in the order of float8_place.
template <class Element>
__device__ __forceinline__ unsigned four_codes(const unsigned (&words)[2], float by_scale) {
  const float2 low = gated_mlp::unpack_pair<Element>(words[0]);
  const float2 high = gated_mlp::unpack_pair<Element>(words[1]);
  return float8_pair(divided(low.x, by_scale), divided(high.x, by_scale)) |
         float8_pair(divided(low.y, by_scale), divided(high.y, by_scale)) << 16;
}

// The end of the gated product's split tiles: a warp has the 128 columns of a token's scale.
template <class Element>
__device__ __forceinline__ void sum_gated8(const ProductArguments& p) {
  TokenSums<true> one;
  if (!add_split(p, one)) return;
  unsigned words[2];
  gate_four<Element>(p, one, words);
  unsigned largest = larger_pair(finite_pair<Element>(words[0]), finite_pair<Element>(words[1]));
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    largest = larger_pair(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  const int exponent = exponent_of<Element>(largest);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int line = static_cast<int>(one.token % kWideBlock);
  const long long block =
      one.token / kWideBlock * ((p.out_tiles + 1ll) / 2) + one.row / kWide8PanelRows;
  *reinterpret_cast<unsigned*>(static_cast<unsigned char*>(p.out) + block * kWide8BlockBytes +
                               wide8_byte(line, float8_place(lane * 4))) =
      four_codes<Element>(words, __uint_as_float(power_bits(-exponent)));
  if (lane == 0) p.out_scales[block * kWideBlock + line] = __uint_as_float(power_bits(exponent));
}

// x as blocks of 64 tokens x 128 k, eight threads a token of a block.
template <class Element>
__device__ __forceinline__ void arrange8(const ArrangeArguments& p) {
  gated_mlp::wait_for_previous_kernel();
  gated_mlp::let_next_kernel_start();
  const long long number = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  const int chunk = static_cast<int>(number % 8);
  const int row = static_cast<int>(number / 8 % kWideBlock);
  const long long block = number / (8 * kWideBlock);
  const long long blocks = (p.depth_tiles + 1) / 2;
  if (block >= p.blocks * blocks) return;  // whole warps
  const long long token = block / blocks * kWideBlock + row;
  const long long first = block % blocks * kFloat8Block + chunk / 4 * kTileDepth + chunk % 4 * 8;
  unsigned words[4][2];
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      words[i][j] = load_pair(p, token, first + i / 2 * 32 + i % 2 * 4 + j * 2);
      largest = larger_pair(largest, finite_pair<Element>(words[i][j]));
    }
  }
#pragma unroll
  for (int distance = 1; distance < 8; distance *= 2) {
    largest = larger_pair(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  const int exponent = exponent_of<Element>(largest);
  const float by_scale = __uint_as_float(power_bits(-exponent));
  unsigned codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) codes[i] = four_codes<Element>(words[i], by_scale);
  *reinterpret_cast<uint4*>(static_cast<unsigned char*>(p.to) + block * kWide8BlockBytes +
                            wide8_byte(row, chunk * 16)) = {codes[0], codes[1], codes[2], codes[3]};
  if (chunk == 0) p.scales[block * kWideBlock + row] = __uint_as_float(power_bits(exponent));
}

}  // namespace quantized_mlp

using namespace quantized_mlp;

extern "C" __global__ void __launch_bounds__(256)
    arrange8_bf16(const __grid_constant__ ArrangeArguments p) {
  arrange8<Bfloat16>(p);
}
extern "C" __global__ void __launch_bounds__(256)
    arrange8_f16(const __grid_constant__ ArrangeArguments p) {
  arrange8<Float16>(p);
}

KILN_PRODUCT(sum_gated8, (256, 2), sum_gated8_bf16, Bfloat16)
KILN_PRODUCT(sum_gated8, (256, 2), sum_gated8_f16, Float16)

#define KILN_WIDE8_KERNELS(name, Element, gated)                                    \
  KILN_PRODUCT(wide8, (kWideThreads, 1), name##_rows_x1, Element, gated, false, 1)  \
  KILN_PRODUCT(wide8, (kWideThreads, 1), name##_rows_x2, Element, gated, false, 2)  \
  KILN_PRODUCT(wide8, (kWideThreads, 1), name##_blocks_x1, Element, gated, true, 1) \
  KILN_PRODUCT(wide8, (kWideThreads, 1), name##_blocks_x2, Element, gated, true, 2)
KILN_WIDE8_KERNELS(wide8_gated_bf16, Bfloat16, true)
KILN_WIDE8_KERNELS(wide8_gated_f16, Float16, true)
KILN_WIDE8_KERNELS(wide8_plain_bf16, Bfloat16, false)
KILN_WIDE8_KERNELS(wide8_plain_f16, Float16, false)
