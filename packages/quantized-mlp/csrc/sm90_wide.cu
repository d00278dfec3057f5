// SPDX-License-Identifier: Apache-2.0
//
// The two products of the MLP for many tokens on SM 9.0, by wgmma: the weights are its 64 rows,
// which a warp makes of codes in registers, tokens its columns, which it reads from shared memory.
// Unlike the other kernels this one rounds a weight, scale * (code - zero), to x's dtype, once.
//
// A CTA has 32, 64 or 128 tokens and 16 row tiles: gated, 8 of gate and the same 8 of up. A warp of
// a consumer has two, its panels, one of each matrix or four apart; it makes numbers of a tile's
// codes between the instructions that multiply the one before.
//
//   threads of a CTA    role
//   warps 0 to 7        two warpgroups of consumers
//   warps 8 to 11       producers of four row tiles each: a thread copies their codes and, of some,
//                       a block of tokens, all copy their scales and zeros
//
//   tokens in memory    blocks of 64 tokens x 64 k, as a stage has them: [block][tile of k], 64
//                       lines of 128 bytes in wgmma's swizzle, in which k has the order that a
//                       lane's codes have (place_of_column). arrange writes those of x, the gated
//                       kernel and sum_gated those of h: a copy is one piece of memory
//   a stage, two of k   | blocks of tokens, of the first tile and of the second |
//                       | of each warpgroup, panel, warp: a TileCopy of both |
//   it is filled        by bulk copies, whose bytes full counts, and by copies of scales and zeros:
//                       each lane of a producer arrives on full with its own
//   it is read          codes, scales and zeros by loads, tokens by wgmma
//   it is free          when each consumer's warp has said so on empty, after its last wgmma there
//   sums                fp32, [token][row], where the stages were, once all have been read; a warp
//                       takes a token at a time from there
#include "kernels.cuh"
#include "sm90_wide.cuh"

namespace quantized_mlp {

// sums += A B^T, A in registers as mma.sync has it.
#define KILN_WIDE(columns, type, a_number, a_next, a_third, a_last, b_number)             \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type      \
               " {" KILN_NUMBERS_##columns "}, {%" #a_number ", %" #a_next ", %" #a_third \
                                           ", %" #a_last "}, %" #b_number ", 1, 1, 1, 0;" \
               : KILN_SUMS_##columns(0)                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define KILN_MULTIPLY_WIDE(sums, Element, ...)                                          \
  __device__ __forceinline__ void multiply_wide(float(&d)[sums], const unsigned(&a)[4], \
                                                unsigned long long b, Element) {        \
    KILN_WIDE(__VA_ARGS__);                                                             \
  }
KILN_MULTIPLY_WIDE(16, Bfloat16, 32, "bf16", 16, 17, 18, 19, 20)
KILN_MULTIPLY_WIDE(16, Float16, 32, "f16", 16, 17, 18, 19, 20)
KILN_MULTIPLY_WIDE(32, Bfloat16, 64, "bf16", 32, 33, 34, 35, 36)
KILN_MULTIPLY_WIDE(32, Float16, 64, "f16", 32, 33, 34, 35, 36)
KILN_MULTIPLY_WIDE(64, Bfloat16, 128, "bf16", 64, 65, 66, 67, 68)
KILN_MULTIPLY_WIDE(64, Float16, 128, "f16", 64, 65, 66, 67, 68)

// Arrives once what this thread has copied is there.
__device__ __forceinline__ void arrive_with_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

template <Codes kCodes, int kTokens>
struct WideLayout {
  static constexpr int kUnit = kWideUnit;
  using Copy = TileCopy<kCodes, kUnit>;
  static constexpr int kCodeBytes = tile_bytes(kCodes);
  static constexpr int kXBytes = kTokens * kTileDepth * 2;  // of a tile of k
  static constexpr int kStageStep = wide_stage_bytes(bits_of(kCodes), kTokens);
  static constexpr int kStages = wide_stages(bits_of(kCodes), kTokens);
  static constexpr int kArrivals = 1 + 4 * 32;  // of the bulk copies' bytes, of producers' lanes
  static constexpr int kFreeing = 1;            // lanes of each consumer's warp
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = 224;
  static_assert(kStageStep == kUnit * kXBytes + kWideRowTiles * Copy::kBytes);
};

// Four neighbouring numbers of h, as the next product's tokens, or of y.
template <class Element>
__device__ __forceinline__ void store_four(const ProductArguments& p, const TokenSums<true>& one) {
  unsigned words[2];
  gate_four<Element>(p, one, words);
  const long long k_tile = one.row / kTileDepth;
  if (k_tile >= p.out_tiles) return;
  unsigned char* const to = static_cast<unsigned char*>(p.out) +
                            (one.token / kWideBlock * p.out_tiles + k_tile) * kWideBlockBytes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int place = place_of_column(static_cast<int>(one.row % kTileDepth) + 2 * i);
    *reinterpret_cast<unsigned*>(to + wide_byte(static_cast<int>(one.token % kWideBlock), place)) =
        words[i];
  }
}
template <class Element>
__device__ __forceinline__ void store_four(const ProductArguments& p, const TokenSums<false>& one) {
  const float(&sums)[4] = one.sums[0];
  finish<Element, false>(p, one.token, one.row, {sums[0], sums[1]}, {});
  finish<Element, false>(p, one.token, one.row + 2, {sums[2], sums[3]}, {});
}

template <class Element, Codes kCodes, bool kGated, int kOfTokens>
struct Wide : WideStages<kGated, kOfTokens, WideLayout<kCodes, kOfTokens>> {
  using Base = WideStages<kGated, kOfTokens, WideLayout<kCodes, kOfTokens>>;
  using Base::empty;
  using Base::first;
  using Base::full;
  using Base::kCodeBytes;
  using Base::kPanels;
  using Base::kStages;
  using Base::kTokenBlocks;
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
  using typename Base::Copy;
  using typename Base::Sums;

  static constexpr bool kIsE4m3 = kCodes == Codes::kE4m3;
  using Groups = GroupWords<kCodes>;
  static constexpr int kLoads = Copy::kLoads;
  static constexpr int kBlockBytes = kXBytes / kTokenBlocks;  // of a tile of k

  using Base::Base;

  // The row tile that consumer warp `of` has in a panel: among the CTA's, and in its matrix.
  __device__ __forceinline__ static int tile_of(int of, int panel) {
    return kGated ? panel * 8 + of : of / 4 * 8 + panel * 4 + of % 4;
  }
  __device__ __forceinline__ int row_tile(int of, int panel) const {
    return kGated ? row_block * 8 + of : row_block * 16 + tile_of(of, panel);
  }
  // Of a row tile, in a stage.
  __device__ __forceinline__ static unsigned copy_at(int of, int panel) {
    return static_cast<unsigned>(kUnit * kXBytes +
                                 ((of / 4 * kPanels + panel) * 4 + of % 4) * Copy::kBytes);
  }

  // One thread's copies of a stage: codes of four row tiles, and of some warps a tile of tokens.
  __device__ __forceinline__ void copy(int by, unsigned stage, int tile) const {
    const unsigned to = stage_at(stage);
    const int tiles = last - tile < kUnit ? last - tile : kUnit;
    if (by == 0) {
      gated_mlp::barrier_expect(
          full(stage), static_cast<unsigned>(tiles * (kXBytes + kWideRowTiles * kCodeBytes)));
    }
    const int of_unit = by % kUnit;
    const int block = by / kUnit;
    if (block < kTokenBlocks && of_unit < tiles) {
      copy_bulk(to + static_cast<unsigned>(of_unit * kXBytes + block * kBlockBytes),
                static_cast<const unsigned char*>(p.a) +
                    (static_cast<long long>(token_block + block) * p.depth_tiles + tile + of_unit) *
                        kWideBlockBytes,
                kBlockBytes, full(stage));
    }
#pragma unroll
    for (int i = 0; i < 2 * kPanels; ++i) {
      const int of = i / kPanels * 4 + by;
      const int panel = i % kPanels;
      copy_bulk(to + copy_at(of, panel),
                p.b[kGated ? panel : 0].codes +
                    (static_cast<long long>(readable(row_tile(of, panel))) * p.depth_tiles + tile) *
                        kCodeBytes,
                static_cast<unsigned>(tiles * kCodeBytes), full(stage));
    }
  }

  __device__ __forceinline__ void produce(int by) const {
    gated_mlp::Ring<kStages> ring;
    RowTile<kCodes> rows[2 * kPanels];
#pragma unroll
    for (int i = 0; i < 2 * kPanels; ++i) {
      const int panel = i % kPanels;
      rows[i] = {p, p.b[kGated ? panel : 0], readable(row_tile(i / kPanels * 4 + by, panel))};
    }
#pragma unroll 1
    for (int tile = first; tile < last; tile += kUnit) {
      barrier_wait(empty(ring.stage), ring.parity ^ 1);
      if (gated_mlp::elect_one()) copy(by, ring.stage, tile);
      const long long group = group_at(p, tile, lane);
#pragma unroll
      for (int i = 0; i < 2 * kPanels; ++i) {
        const unsigned to = stage_at(ring.stage) + copy_at(i / kPanels * 4 + by, i % kPanels);
        Copy::copy_scales(to, lane, rows[i].scales + group * (kTileRows * scale_bytes(kCodes)),
                          true);
        if (!kIsE4m3 && rows[i].zeros != nullptr) {
          Copy::copy_zeros(to, lane, rows[i].zeros + group * kTileRows, true);
        }
      }
      arrive_with_copies(full(ring.stage));
      ring.next();
    }
  }

  __device__ __forceinline__ void load_codes(unsigned stage, int panel, int of_unit,
                                             TileCodes<kCodes>& codes) const {
    const unsigned from = stage_at(stage) + copy_at(warp, panel) +
                          static_cast<unsigned>(of_unit * kCodeBytes + lane_byte<kCodes>(lane));
#pragma unroll
    for (int i = 0; i < kLoads; ++i) codes.words[i] = load_shared(from + i * kStepBytes);
  }
  __device__ __forceinline__ void load_groups(unsigned stage, Groups (&groups)[kPanels]) const {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      groups[panel] = Copy::groups(stage_at(stage) + copy_at(warp, panel), lane,
                                   p.b[kGated ? panel : 0].zeros != nullptr);
    }
  }

  // The numbers of instruction `number` of a tile's four; `group`: of its 32 columns, in the stage.
  __device__ __forceinline__ static void make(const TileCodes<kCodes>& codes, const Groups& groups,
                                              int group, int number, unsigned (&a)[4]) {
    codes.run(Dequantizer<Element, kCodes>(groups.zero(group)), number, a);
    if constexpr (kIsE4m3) {
      const float2 scales = groups.scale(group, 0);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = scaled<Element>(a[i], i % 2 == 0 ? scales.x : scales.y);
    } else {
      const unsigned scales[2] = {permuted(groups.scales[group], 0, 0x1010u),
                                  permuted(groups.scales[group], 0, 0x3232u)};
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = fused(a[i], scales[i % 2], 0x80008000u, Element{});
    }
  }

  using Numbers = unsigned[kPanels][4][4];  // of a tile

  __device__ __forceinline__ static void hold_all(Sums& sums) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) gated_mlp::hold(sums[panel]);
  }
  // Numbers that a wgmma reads are in no other use until it has ended.
  __device__ __forceinline__ static void hold_numbers(Numbers& a) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(a[panel][i][j]));
      }
    }
  }

  // Multiplies tile kOfUnit of a stage, whose numbers are `a`, and makes those of the tile after it
  // between its instructions: after the last one, of what is there.
  template <int kOfUnit>
  __device__ __forceinline__ void multiply(gated_mlp::Ring<kStages>& ring, bool has_next,
                                           Groups (&groups)[kPanels], Sums& sums, Numbers& a,
                                           Numbers& next) const {
    constexpr int kNext = (kOfUnit + 1) % kUnit;
    const unsigned stage = ring.stage;
    const unsigned long long tokens =
        gated_mlp::matrix_at(stage_at(stage) + static_cast<unsigned>(kOfUnit * kXBytes));
    if constexpr (kNext == 0) {
      if (has_next) ring.next();
      barrier_wait(full(ring.stage), ring.parity);
      load_groups(ring.stage, groups);
    }
    TileCodes<kCodes> codes[kPanels];
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      load_codes(ring.stage, panel, kNext, codes[panel]);
    }
    hold_all(sums);
    gated_mlp::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        multiply_wide(sums[panel], a[panel][i],
                      tokens + static_cast<unsigned>(i) * gated_mlp::kNextK16, Element{});
      }
      if (i == 3) gated_mlp::wgmma_commit();
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        make(codes[panel], groups[panel], 2 * kNext + i / 2, i, next[panel][i]);
      }
    }
    hold_all(sums);
    gated_mlp::wgmma_wait<0>();
    hold_all(sums);
    hold_numbers(a);
    if constexpr (kNext == 0) {
      __syncwarp();  // the other lanes have read their codes, too
      if (lane == 0) barrier_arrive(empty(stage));
    }
  }

  __device__ __forceinline__ void consume(Sums& sums) const {
    if (first >= last) return;
    gated_mlp::Ring<kStages> ring;
    Groups groups[kPanels];
    Numbers a;
    Numbers b;
    barrier_wait(full(ring.stage), ring.parity);
    load_groups(ring.stage, groups);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      TileCodes<kCodes> codes;
      load_codes(ring.stage, panel, 0, codes);
#pragma unroll
      for (int i = 0; i < 4; ++i) make(codes, groups[panel], i / 2, i, a[panel][i]);
    }
#pragma unroll 1
    for (int tile = first; tile < last; tile += kUnit) {
      multiply<0>(ring, true, groups, sums, a, b);
      if (tile + 1 < last) multiply<1>(ring, tile + kUnit < last, groups, sums, b, a);
    }
  }

  // From a token to the next: lanes that store at one time do so in different banks.
  static constexpr int kSumStep = kWideRows + 4;

  __device__ __forceinline__ void put(const Sums& sums) const {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int row = tile_of(warp, panel) * kTileRows + lane / 4;
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) {
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        store_one_shared(
            shared + static_cast<unsigned>((token * kSumStep + row + i % 4 / 2 * 8) * 4),
            sums[panel][i]);
      }
    }
  }

  // Through shared memory, a token at a time: as code without a loop it was three times as long,
  // and fetching it, which a CTA does once, took a fifth of the time of 64 tokens.
  __device__ __forceinline__ void finish(const Sums& sums) const {
    sync_consumers();  // all stages have been read
    put(sums);
    sync_consumers();
    const bool is_split = split_tile >= 0;
    const int warps = is_split ? 2 : TokenSums<kGated>::kWarps;  // of a token
    const long long first_token = static_cast<long long>(token_block) * kWideBlock;
    const long long there = p.m - first_token;
    // The next product reads whole blocks of h.
    const bool of_all = (kGated && !is_split) || there > kTokens;
    const int end = warps * (of_all ? kTokens : static_cast<int>(there));
#pragma unroll 1
    for (int number = warp; number < end; number += kWideConsumers) {
      const int token = number / warps;
      const int row = number % warps * (kWideRows / 2) + lane * 4;
      const unsigned from = shared + static_cast<unsigned>((token * kSumStep + row) * 4);
      if (is_split) {
        *reinterpret_cast<float4*>(sums_of(token) + row) = gated_mlp::load_shared(from);
        continue;
      }
      TokenSums<kGated> one;
      one.token = first_token + token;
      one.row = static_cast<long long>(row_block) * (kWideRows / one.kMatrices) + row;
#pragma unroll
      for (int matrix = 0; matrix < one.kMatrices; ++matrix) {
        const float4 four = gated_mlp::load_shared(from + matrix * (kWideRows / 2 * 4));
        one.sums[matrix][0] = four.x;
        one.sums[matrix][1] = four.y;
        one.sums[matrix][2] = four.z;
        one.sums[matrix][3] = four.w;
      }
      store_four<Element>(p, one);
    }
  }
};

template <class Element, Codes kCodes, bool kGated, int kTokens>
__device__ __forceinline__ void wide(const ProductArguments& p) {
  run_wide<Wide<Element, kCodes, kGated, kTokens>>(p);
}

// The end of the gated product's split tiles, and of the plain one's.
template <class Element>
__device__ __forceinline__ void sum_gated(const ProductArguments& p) {
  TokenSums<true> one;
  if (add_split(p, one)) store_four<Element>(p, one);
}
template <class Element>
__device__ __forceinline__ void sum_plain(const ProductArguments& p) {
  TokenSums<false> one;
  if (add_split(p, one)) store_four<Element>(p, one);
}

}  // namespace quantized_mlp

using namespace quantized_mlp;

// x as blocks of 64 tokens x 64 k: a chunk of 16 bytes a thread.
extern "C" __global__ void __launch_bounds__(256)
    arrange(const __grid_constant__ ArrangeArguments p) {
  gated_mlp::wait_for_previous_kernel();
  gated_mlp::let_next_kernel_start();
  const long long number = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  const int chunk = static_cast<int>(number % 8);
  const int row = static_cast<int>(number / 8 % kWideBlock);
  const long long tile = number / (8 * kWideBlock);
  const long long token = tile / p.depth_tiles * kWideBlock + row;
  if (tile >= p.blocks * p.depth_tiles) return;
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const long long k = tile % p.depth_tiles * kTileDepth + column_of_place(chunk * 8 + 2 * i);
    words[i] = load_pair(p, token, k);
  }
  *reinterpret_cast<uint4*>(static_cast<unsigned char*>(p.to) + tile * kWideBlockBytes +
                            wide_byte(row, chunk * 8)) = {words[0], words[1], words[2], words[3]};
}

#define KILN_WIDE_OF(name, Element, codes, gated)                             \
  KILN_PRODUCT(wide, (kWideThreads, 1), name##_32, Element, codes, gated, 32) \
  KILN_PRODUCT(wide, (kWideThreads, 1), name##_64, Element, codes, gated, 64) \
  KILN_PRODUCT(wide, (kWideThreads, 1), name##_128, Element, codes, gated, 128)
#define KILN_WIDES_OF(name, Element, gated)               \
  KILN_WIDE_OF(name##_int4, Element, Codes::kInt4, gated) \
  KILN_WIDE_OF(name##_int8, Element, Codes::kInt8, gated) \
  KILN_WIDE_OF(name##_e4m3, Element, Codes::kE4m3, gated)
KILN_WIDES_OF(wide_gated_bf16, Bfloat16, true)
KILN_WIDES_OF(wide_gated_f16, Float16, true)
KILN_WIDES_OF(wide_plain_bf16, Bfloat16, false)
KILN_WIDES_OF(wide_plain_f16, Float16, false)
KILN_PRODUCT(sum_gated, (256, 2), sum_gated_bf16, Bfloat16)
KILN_PRODUCT(sum_gated, (256, 2), sum_gated_f16, Float16)
KILN_PRODUCT(sum_plain, (256, 2), sum_plain_bf16, Bfloat16)
KILN_PRODUCT(sum_plain, (256, 2), sum_plain_f16, Float16)
