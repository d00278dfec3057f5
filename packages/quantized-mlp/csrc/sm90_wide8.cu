// SPDX-License-Identifier: Apache-2.0
//
// The two products of the MLP for many tokens on SM 9.0, where both weights and activations are
// numbers of e4m3, by wgmma: the weights' codes are its 64 rows as they are, from registers, tokens
// its columns, from shared memory. Rows, tokens and warps are those of sm90_wide.cu.
//
// wgmma adds products of e4m3 with about 14 bits, so the sums of a block of 128 columns are added
// to others in fp32, times the token's scale in that block and, where weights have groups of 128,
// the row's. While one warpgroup adds, the other one multiplies. An instruction has all of the
// CTA's tokens: what it takes for its operand in registers does not depend on how many they are.
//
//   tokens in memory    blocks of 64 tokens x 128 k, as a stage has them: [block][block of k], 64
//                       lines of 128 bytes in wgmma's swizzle, in which k has the order that a
//                       lane's codes have (float8_place); and [block][block of k] scales of 64
//                       tokens. arrange8 writes those of x, the gated kernel those of h: its CTA
//                       has 128 columns of h, a block
//   a stage             | blocks of tokens | of each warpgroup, panel, warp: two tiles' codes |
//                       | scales of tokens |
//   it is filled        by bulk copies, a block of k; full counts their bytes. Where k ends with
//                       one tile, the second one's codes are not there
//   it is free          when each consumer's warp has said so on empty, after its last sums
#include "float8.h"
#include "kernels.cuh"
#include "sm90_wide.cuh"

namespace quantized_mlp {

__device__ __forceinline__ float2 load_two_shared(unsigned address) {
  float2 two;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(two.x), "=f"(two.y)
               : "r"(address)
               : "memory");
  return two;
}

// sums = A B^T or, where it adds, += A B^T, A in registers as mma.sync has it.
#define KILN_WIDE8(columns, a_number, a_next, a_third, a_last, b_number, add_number)         \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #add_number                        \
               ", 0;\n"                                                                      \
               "wgmma.mma_async.sync.aligned.m64n" #columns                                  \
               "k32.f32.e4m3.e4m3"                                                           \
               " {" KILN_NUMBERS_##columns "}, {%" #a_number ", %" #a_next ", %" #a_third    \
                                           ", %" #a_last "}, %" #b_number ", adds, 1, 1;\n}" \
               : KILN_SUMS_##columns(0)                                                      \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdds))
template <int kAdds>
__device__ __forceinline__ void multiply_wide8(float (&d)[32], const unsigned (&a)[4],
                                               unsigned long long b) {
  KILN_WIDE8(64, 32, 33, 34, 35, 36, 37);
}
template <int kAdds>
__device__ __forceinline__ void multiply_wide8(float (&d)[64], const unsigned (&a)[4],
                                               unsigned long long b) {
  KILN_WIDE8(128, 64, 65, 66, 67, 68, 69);
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
  const bool is_finite = (__float_as_uint(value) & 0x7fffffffu) < 0x7f800000u;
  return is_finite ? value * by_scale : __uint_as_float(0x7fc00000u);
}

template <int kTokenBlocks>
struct Wide8Layout {
  static constexpr int kUnit = 2;  // tiles of k of a stage
  static constexpr int kCodeBytes = kUnit * tile_bytes(Codes::kE4m3);
  static constexpr int kXBytes = kTokenBlocks * kWide8BlockBytes;
  static constexpr int kScalesAt = kXBytes + kWideRowTiles * kCodeBytes;
  static constexpr int kStageBytes = wide8_stage_bytes(kTokenBlocks);
  static constexpr int kStageStep = wide8_stage_step(kTokenBlocks);
  static constexpr int kStages = wide8_stages(kTokenBlocks);
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;
};

template <class Element, bool kGated, bool kGrouped, int kTokenBlocks>
struct Wide8 : WideStages<kGated, kTokenBlocks, Wide8Layout<kTokenBlocks>> {
  using Base = WideStages<kGated, kTokenBlocks, Wide8Layout<kTokenBlocks>>;
  using Base::codes_at;
  using Base::empty;
  using Base::first;
  using Base::full;
  using Base::kCodeBytes;
  using Base::kPanels;
  using Base::kScalesAt;
  using Base::kStageBytes;
  using Base::kStages;
  using Base::kTokens;
  using Base::kUnit;
  using Base::kXBytes;
  using Base::lane;
  using Base::last;
  using Base::p;
  using Base::readable;
  using Base::row_block;
  using Base::row_tile;
  using Base::shared;
  using Base::stage_at;
  using Base::token_block;
  using Base::warp;
  using typename Base::Sums;

  static constexpr int kScaleBytes = kWideBlock * 4;

  using Base::Base;

  // Four warps share out the copies of a stage, and one thread of each issues them: row tiles of
  // consumer warps `by` and `by` + 4, a block of tokens or its scales.
  __device__ __forceinline__ void produce(int by) const {
    if (!gated_mlp::elect_one()) return;
    const long long blocks = (p.depth_tiles + 1) / kUnit;
    const int block = by % 2;
    const auto* const tokens =
        static_cast<const unsigned char*>(p.a) + (token_block + block) * blocks * kWide8BlockBytes;
    const float* const scales = p.token_scales + (token_block + block) * blocks * kWideBlock;
    gated_mlp::Ring<kStages> ring;
    for (int tile = first; tile < last; tile += kUnit) {
      const bool is_half = tile + 1 == p.depth_tiles;
      const unsigned bytes = is_half ? kCodeBytes / 2 : kCodeBytes;
      const unsigned to = stage_at(ring.stage);
      barrier_wait(empty(ring.stage), ring.parity ^ 1);
      if (by == 0) {
        gated_mlp::barrier_expect(
            full(ring.stage), is_half ? kStageBytes - kWideRowTiles * kCodeBytes / 2 : kStageBytes);
      }
      if (block < kTokenBlocks && by < 2) {
        copy_bulk(to + static_cast<unsigned>(block * kWide8BlockBytes),
                  tokens + static_cast<long long>(tile / kUnit) * kWide8BlockBytes,
                  kWide8BlockBytes, full(ring.stage));
      }
      if (block < kTokenBlocks && by >= 2) {
        copy_bulk(to + static_cast<unsigned>(kScalesAt + block * kScaleBytes),
                  scales + static_cast<long long>(tile / kUnit) * kWideBlock, kScaleBytes,
                  full(ring.stage));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int of = half * 4 + by;
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          const unsigned char* const from =
              p.b[kGated ? panel : 0].codes +
              (static_cast<long long>(readable(row_tile(of, panel))) * p.depth_tiles + tile) *
                  (kCodeBytes / kUnit);
          copy_bulk(to + codes_at(of, panel), from, bytes, full(ring.stage));
        }
      }
      ring.next();
    }
  }

  using Part = float[kTokens / 2];  // of one panel and a block of k
  using Numbers = unsigned[4][4];   // of a panel and a block of k

  // Zeros beyond the last tile.
  __device__ __forceinline__ void load_numbers(unsigned stage, int panel, bool is_half,
                                               Numbers& a) const {
    const unsigned from =
        stage_at(stage) + codes_at(warp, panel) + static_cast<unsigned>(lane * kLaneBytes);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint4 words = {};
      if (i < 2 || !is_half) words = load_shared(from + i * kStepBytes);
      a[i][0] = permuted(words.x, words.y, 0x6420u);
      a[i][1] = permuted(words.x, words.y, 0x7531u);
      a[i][2] = permuted(words.z, words.w, 0x6420u);
      a[i][3] = permuted(words.z, words.w, 0x7531u);
    }
  }
  // Numbers that a wgmma reads are in no other use until it has ended.
  __device__ __forceinline__ static void hold_numbers(Numbers& a) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(a[i][j]));
    }
  }

  // part = a times the stage's tokens, on its way.
  __device__ __forceinline__ void issue(unsigned stage, Part& part, const Numbers& a) const {
    const unsigned long long tokens = gated_mlp::matrix_at(stage_at(stage));
    gated_mlp::hold(part);
    gated_mlp::wgmma_fence();
    multiply_wide8<0>(part, a[0], tokens);
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      multiply_wide8<1>(part, a[i], tokens + static_cast<unsigned>(i) * gated_mlp::kNextK16);
    }
    gated_mlp::wgmma_commit();
  }

  // Scales of this lane's two rows.
  __device__ __forceinline__ float2 row_scales(int panel, int group) const {
    const MatrixArguments& b = p.b[kGated ? panel : 0];
    const long long row = static_cast<long long>(readable(row_tile(warp, panel))) * p.groups;
    return reinterpret_cast<const float2*>(b.scales)[(row + group) * (kTileRows / 2) + lane / 4];
  }

  // sums += part, with its scales; `scales`: of the stage's tokens.
  __device__ __forceinline__ void add(float (&sums)[kTokens / 2], const Part& part, unsigned scales,
                                      float2 of_rows) const {
    const unsigned from = scales + static_cast<unsigned>(lane % 4 * 8);
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      const float2 token = load_two_shared(from + static_cast<unsigned>(n * 32));
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int at = 4 * n + c;
        const float scale = c % 2 == 0 ? token.x : token.y;
        if constexpr (kGrouped) {
          sums[at] = fmaf(part[at] * scale, c < 2 ? of_rows.x : of_rows.y, sums[at]);
        } else {
          sums[at] = fmaf(part[at], scale, sums[at]);
        }
      }
    }
  }

  __device__ __forceinline__ void consume(Sums& sums) const {
    if (first >= last) return;
    gated_mlp::Ring<kStages> ring;
    Numbers a[kPanels];
    Part part;
    float2 of_rows[kPanels] = {};
    if constexpr (kGrouped) {
      of_rows[0] = row_scales(0, first / kUnit);
      of_rows[1] = row_scales(1, first / kUnit);
    }
    barrier_wait(full(0), 0);
    load_numbers(0, 0, first + 1 == p.depth_tiles, a[0]);
#pragma unroll 1
    for (int tile = first; tile < last; tile += kUnit) {
      const unsigned stage = ring.stage;
      const bool goes_on = tile + kUnit < last;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        issue(stage, part, a[panel]);
        if (panel == 0) {
          load_numbers(stage, 1, tile + 1 == p.depth_tiles, a[1]);
        } else if (goes_on) {
          ring.next();
          barrier_wait(full(ring.stage), ring.parity);
          load_numbers(ring.stage, 0, tile + kUnit + 1 == p.depth_tiles, a[0]);
        }
        gated_mlp::wgmma_wait<0>();
        gated_mlp::hold(part);
        hold_numbers(a[panel]);
        add(sums[panel], part, stage_at(stage) + kScalesAt, of_rows[panel]);
        // Those of the next block, which are used after two groups of instructions.
        if constexpr (kGrouped) {
          const int next = tile / kUnit + 1;
          of_rows[panel] = row_scales(panel, next < p.groups ? next : p.groups - 1);
        }
      }
      __syncwarp();  // the other lanes have read their tokens' scales, too
      if (lane == 0) barrier_arrive(empty(stage));
    }
  }

  __device__ __forceinline__ void scale_rows(Sums& sums) const {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const float2 scales = row_scales(panel, 0);
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sums[panel][i] *= i % 4 < 2 ? scales.x : scales.y;
    }
  }

  // h, as the next product's tokens: a block of 128 columns.
  __device__ __forceinline__ void store_hidden(Sums& sums) const {
    const bool is_there = row_tile(warp, 0) < p.row_tiles;
    const int row = lane / 4;
    const long long column = static_cast<long long>(row_tile(warp, 0)) * kTileRows + row;
    float2 gate_bias = {};
    float2 up_bias = {};
    if (is_there) {
      const auto bias = [&](const void* from) {
        const auto* const numbers = static_cast<const Element*>(from);
        return float2{gated_mlp::load_float(numbers[column]),
                      gated_mlp::load_float(numbers[column + 8])};
      };
      if (p.bias0 != nullptr) gate_bias = bias(p.bias0);
      if (p.bias1 != nullptr) up_bias = bias(p.bias1);
    }
    unsigned hidden[kTokens / 8][2];  // two tokens of one row
    gated_mlp::with_gate(p.gating, [&](auto unit) {
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = 4 * n + 2 * half;
          const float of_gate = half == 0 ? gate_bias.x : gate_bias.y;
          const float of_up = half == 0 ? up_bias.x : up_bias.y;
          unsigned both = gated_mlp::pack_pair(
              unit.of(sums[0][at] + of_gate, sums[1][at] + of_up),
              unit.of(sums[0][at + 1] + of_gate, sums[1][at + 1] + of_up), Element{});
          both = gated_mlp::bound_pair(both, p.gating.greatest, Element{});
          hidden[n][half] = is_there ? both : 0u;
        }
      }
    });
    sync_consumers();  // all stages have been read
    // The largest of a token in a warp, in the CTA, and the scales of it.
    constexpr unsigned kPairs = kTokens / 2;
    const unsigned largest_at = shared + kXBytes;  // [warp][pair of tokens]
    const unsigned scales_at = largest_at + kWideConsumers * kPairs * 4;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      unsigned largest =
          larger_pair(finite_pair<Element>(hidden[n][0]), finite_pair<Element>(hidden[n][1]));
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        largest = larger_pair(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
      }
      if (lane < 4) {
        asm volatile(
            "st.shared.u32 [%0], %1;" ::"r"(
                largest_at +
                (static_cast<unsigned>(warp) * kPairs + static_cast<unsigned>(n * 4 + lane)) * 4),
            "r"(largest)
            : "memory");
      }
    }
    sync_consumers();
    if (threadIdx.x < kPairs) {
      unsigned largest = 0;
#pragma unroll
      for (unsigned w = 0; w < kWideConsumers; ++w) {
        unsigned other;
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(other)
                     : "r"(largest_at + (w * kPairs + threadIdx.x) * 4)
                     : "memory");
        largest = larger_pair(largest, other);
      }
      const float2 both = gated_mlp::unpack_pair<Element>(largest);
      constexpr int kLeast = float8_least(!kIsSame<Element, Bfloat16>);
      const int first_exponent = float8_exponent(__float_as_uint(both.x), kLeast);
      const int second_exponent = float8_exponent(__float_as_uint(both.y), kLeast);
      gated_mlp::store_shared(scales_at + threadIdx.x * 8,
                              __uint_as_float(power_bits(-first_exponent)),
                              __uint_as_float(power_bits(-second_exponent)));
      const unsigned token = 2 * threadIdx.x;
      const long long block = (token_block + static_cast<int>(token / kWideBlock)) *
                                  static_cast<long long>((p.out_tiles + 1) / kUnit) +
                              row_block;
      *reinterpret_cast<float2*>(p.out_scales + block * kWideBlock + token % kWideBlock) = {
          __uint_as_float(power_bits(first_exponent)),
          __uint_as_float(power_bits(second_exponent))};
    }
    sync_consumers();
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      const float2 by_scale =
          load_two_shared(scales_at + static_cast<unsigned>(n * 4 + lane % 4) * 8);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 both = gated_mlp::unpack_pair<Element>(hidden[n][half]);
        const unsigned codes =
            float8_pair(divided(both.x, by_scale.x), divided(both.y, by_scale.y));
        const int place = float8_place(warp * kTileRows + half * 8 + row);
        const int token = n * 8 + lane % 4 * 2;
        const int block = token / kWideBlock * kWide8BlockBytes;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          asm volatile("st.shared.u8 [%0], %1;" ::"r"(
                           shared + static_cast<unsigned>(
                                        block + wide8_byte((token + i) % kWideBlock, place))),
                       "r"(codes >> (8 * i))
                       : "memory");
        }
      }
    }
    gated_mlp::shared_writes_before_copies();
    sync_consumers();
    if (threadIdx.x >= kTokenBlocks) return;
    const int block = static_cast<int>(threadIdx.x);
    const long long to =
        (token_block + block) * static_cast<long long>((p.out_tiles + 1) / kUnit) + row_block;
    store_bulk(static_cast<unsigned char*>(p.out) + to * kWide8BlockBytes,
               shared + static_cast<unsigned>(block * kWide8BlockBytes), kWide8BlockBytes);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }

  __device__ __forceinline__ void store(Sums& sums) const {
    if constexpr (!kGrouped) scale_rows(sums);
    if constexpr (kGated) {
      store_hidden(sums);
    } else {
      this->template store_plain<Element>(sums);
    }
  }
};

template <class Element, bool kGated, bool kGrouped, int kTokenBlocks>
__device__ __forceinline__ void wide8(const ProductArguments& p) {
  run_wide<Wide8<Element, kGated, kGrouped, kTokenBlocks>>(p);
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
  const long long first = block % blocks * kFloat8Block + chunk / 2 * 32 + chunk % 2 * 4;
  unsigned words[4][2];
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      words[i][j] = load_pair(p, token, first + i * 8 + j * 2);
      largest = larger_pair(largest, finite_pair<Element>(words[i][j]));
    }
  }
#pragma unroll
  for (int distance = 1; distance < 8; distance *= 2) {
    largest = larger_pair(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  const unsigned one = (largest & 0xffffu) > (largest >> 16) ? largest & 0xffffu : largest >> 16;
  const int exponent = float8_exponent(__float_as_uint(gated_mlp::unpack_pair<Element>(one).x),
                                       float8_least(!kIsSame<Element, Bfloat16>));
  const float by_scale = __uint_as_float(power_bits(-exponent));
  unsigned codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 low = gated_mlp::unpack_pair<Element>(words[i][0]);
    const float2 high = gated_mlp::unpack_pair<Element>(words[i][1]);
    codes[i] = float8_pair(divided(low.x, by_scale), divided(low.y, by_scale)) |
               float8_pair(divided(high.x, by_scale), divided(high.y, by_scale)) << 16;
  }
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

#define KILN_WIDE8_KERNELS(name, Element, gated)                                    \
  KILN_PRODUCT(wide8, (kWideThreads, 1), name##_rows_x1, Element, gated, false, 1)  \
  KILN_PRODUCT(wide8, (kWideThreads, 1), name##_rows_x2, Element, gated, false, 2)  \
  KILN_PRODUCT(wide8, (kWideThreads, 1), name##_blocks_x1, Element, gated, true, 1) \
  KILN_PRODUCT(wide8, (kWideThreads, 1), name##_blocks_x2, Element, gated, true, 2)
KILN_WIDE8_KERNELS(wide8_gated_bf16, Bfloat16, true)
KILN_WIDE8_KERNELS(wide8_gated_f16, Float16, true)
KILN_WIDE8_KERNELS(wide8_plain_bf16, Bfloat16, false)
KILN_WIDE8_KERNELS(wide8_plain_f16, Float16, false)
