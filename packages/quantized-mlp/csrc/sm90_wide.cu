// SPDX-License-Identifier: Apache-2.0
//
// The two products of the MLP for many tokens on SM 9.0, by wgmma: the weights are its 64 rows,
// which a warp makes of codes in registers, tokens its columns, which it reads from shared memory.
// Unlike the other kernels this one rounds a weight, scale * (code - zero), to x's dtype, once.
//
// A CTA has 64 or 128 tokens and 16 row tiles: gated, 8 of gate and the same 8 of up. A warp of
// a consumer has two, its panels, one of each matrix or four apart; it makes numbers of a tile's
// codes between the instructions that multiply the one before.
//
//   threads of a CTA    role
//   warps 0 to 7        two warpgroups of consumers
//   warps 8 to 11       producers: a thread of each copies four row tiles, and some a block of
//                       tokens
//
//   tokens in memory    blocks of 64 tokens x 64 k, as a stage has them: [block][tile of k], 64
//                       lines of 128 bytes in wgmma's swizzle, in which k has the order that a
//                       lane's codes have (place_of_column). arrange writes those of x, the gated
//                       kernel and sum_gated those of h: a copy is one piece of memory
//   a stage             | blocks of tokens | of each warpgroup, panel, warp: a tile's codes |
//   it is filled        by bulk copies, a tile of k; full counts their bytes
//   it is read          codes by loads, tokens by wgmma; scales and zeros come from global memory,
//                       a tile ahead
//   it is free          when each consumer's warp has said so on empty, after its last wgmma there
//   h                   registers -> the first stages' memory, once all have been read -> a bulk
//                       copy a block and tile of k
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
__device__ __forceinline__ void multiply_wide(float (&d)[32], const unsigned (&a)[4],
                                              unsigned long long b, Bfloat16) {
  KILN_WIDE(64, "bf16", 32, 33, 34, 35, 36);
}
__device__ __forceinline__ void multiply_wide(float (&d)[32], const unsigned (&a)[4],
                                              unsigned long long b, Float16) {
  KILN_WIDE(64, "f16", 32, 33, 34, 35, 36);
}
__device__ __forceinline__ void multiply_wide(float (&d)[64], const unsigned (&a)[4],
                                              unsigned long long b, Bfloat16) {
  KILN_WIDE(128, "bf16", 64, 65, 66, 67, 68);
}
__device__ __forceinline__ void multiply_wide(float (&d)[64], const unsigned (&a)[4],
                                              unsigned long long b, Float16) {
  KILN_WIDE(128, "f16", 64, 65, 66, 67, 68);
}

// Scales and zeros of rows g and g + 8 in both 32 columns of a tile.
template <Codes kCodes>
struct WideGroups {
  unsigned scales[2];
  unsigned zeros[2];
};
template <>
struct WideGroups<Codes::kE4m3> {
  float2 scales[2];
};

template <Codes kCodes, int kTokenBlocks>
struct WideLayout {
  static constexpr int kUnit = 1;  // tiles of k of a stage
  static constexpr int kCodeBytes = tile_bytes(kCodes);
  static constexpr int kXBytes = kTokenBlocks * kWideBlockBytes;
  static constexpr int kStageBytes = wide_stage_bytes(bits_of(kCodes), kTokenBlocks);
  static constexpr int kStageStep = kStageBytes;
  static constexpr int kStages = wide_stages(bits_of(kCodes), kTokenBlocks);
  static constexpr int kArrivals = 1;  // of the copies' bytes
  static constexpr int kFreeing = 1;   // lanes of each consumer's warp
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  static_assert(kStageBytes == kXBytes + kWideRowTiles * kCodeBytes);
};

template <class Element, Codes kCodes, bool kGated, int kTokenBlocks>
struct Wide : WideStages<kGated, kTokenBlocks, WideLayout<kCodes, kTokenBlocks>> {
  using Base = WideStages<kGated, kTokenBlocks, WideLayout<kCodes, kTokenBlocks>>;
  using Base::empty;
  using Base::first;
  using Base::full;
  using Base::kCodeBytes;
  using Base::kPanels;
  using Base::kStageBytes;
  using Base::kStages;
  using Base::kTokens;
  using Base::kXBytes;
  using Base::lane;
  using Base::last;
  using Base::p;
  using Base::readable;
  using Base::row_block;
  using Base::shared;
  using Base::stage_at;
  using Base::token_block;
  using Base::warp;
  using typename Base::Sums;

  static constexpr int kBits = bits_of(kCodes);
  static constexpr bool kIsE4m3 = kCodes == Codes::kE4m3;
  using Groups = WideGroups<kCodes>;
  static constexpr int kLoads = kBits / 4;

  using Base::Base;

  // The row tile that consumer warp `of` has in a panel: among the CTA's, and in its matrix.
  __device__ __forceinline__ static int tile_of(int of, int panel) {
    return kGated ? panel * 8 + of : of / 4 * 8 + panel * 4 + of % 4;
  }
  __device__ __forceinline__ int row_tile(int of, int panel) const {
    return kGated ? row_block * 8 + of : row_block * 16 + tile_of(of, panel);
  }
  // Of a row tile, in a stage.
  __device__ __forceinline__ static unsigned codes_at(int of, int panel) {
    return static_cast<unsigned>(kXBytes + ((of / 4 * kPanels + panel) * 4 + of % 4) * kCodeBytes);
  }

  // Four warps share out the copies of a stage, and one thread of each issues them.
  __device__ __forceinline__ void produce(int by) const {
    if (!gated_mlp::elect_one()) return;
    const auto* const tokens =
        static_cast<const unsigned char*>(p.a) +
        static_cast<long long>(token_block + by) * p.depth_tiles * kWideBlockBytes;
    gated_mlp::Ring<kStages> ring;
    for (int tile = first; tile < last; ++tile) {
      const unsigned to = stage_at(ring.stage);
      barrier_wait(empty(ring.stage), ring.parity ^ 1);
      if (by == 0) gated_mlp::barrier_expect(full(ring.stage), kStageBytes);
      if (by < kTokenBlocks) {
        copy_bulk(to + static_cast<unsigned>(by * kWideBlockBytes),
                  tokens + static_cast<long long>(tile) * kWideBlockBytes, kWideBlockBytes,
                  full(ring.stage));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int of = half * 4 + by;
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          copy_bulk(
              to + codes_at(of, panel),
              p.b[kGated ? panel : 0].codes +
                  (static_cast<long long>(readable(row_tile(of, panel))) * p.depth_tiles + tile) *
                      kCodeBytes,
              kCodeBytes, full(ring.stage));
        }
      }
      ring.next();
    }
  }

  // Scales and zeros of this lane's rows in one panel.
  struct Panel {
    const unsigned char* scales;
    const unsigned char* zeros;  // or null
  };
  __device__ __forceinline__ Panel panel_of(int panel) const {
    const MatrixArguments& b = p.b[kGated ? panel : 0];
    const long long row = static_cast<long long>(readable(row_tile(warp, panel))) * p.groups;
    const long long at = row * kTileRows + lane / 4 * 2;
    return {b.scales + at * scale_bytes(kCodes), b.zeros == nullptr ? nullptr : b.zeros + at};
  }

  // Beyond the last tile, those of the last group.
  __device__ __forceinline__ void load_groups(int tile, const Panel& from, Groups& groups) const {
    constexpr unsigned kMiddle = 0x101u * middle_of(kCodes);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      int group = (tile * kTileDepth + step * 32) >> p.shift;
      group = group < p.groups ? group : p.groups - 1;
      const unsigned char* const scales = from.scales + group * (16ll * scale_bytes(kCodes));
      if constexpr (kIsE4m3) {
        groups.scales[step] = *reinterpret_cast<const float2*>(scales);
      } else {
        groups.scales[step] = *reinterpret_cast<const unsigned*>(scales);
        groups.zeros[step] =
            from.zeros != nullptr
                ? *reinterpret_cast<const unsigned short*>(from.zeros + group * 16ll)
                : kMiddle;
      }
    }
  }

  struct TileCodes {
    uint4 words[kLoads];
  };
  __device__ __forceinline__ void load_codes(unsigned stage, int panel, TileCodes& codes) const {
    const unsigned from =
        stage_at(stage) + codes_at(warp, panel) + static_cast<unsigned>(lane_byte<kCodes>(lane));
#pragma unroll
    for (int i = 0; i < kLoads; ++i) codes.words[i] = load_shared(from + i * kStepBytes);
  }

  // The numbers of instruction `number` of a tile's four.
  __device__ __forceinline__ static void make(const TileCodes& codes, const Groups& groups,
                                              int number, unsigned (&a)[4]) {
    const int step = number / 2;
    if constexpr (kIsE4m3) {
      const uint4& low = codes.words[0];
      const uint4& high = codes.words[1];
      const uint4 words =
          step == 0 ? uint4{low.x, high.x, low.y, high.y} : uint4{low.z, high.z, low.w, high.w};
      Dequantizer<Element, kCodes>({}).run(words, number % 2, a);
      const float of_rows[2] = {groups.scales[step].x, groups.scales[step].y};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 both = gated_mlp::unpack_pair<Element>(a[i]);
        a[i] = gated_mlp::pack_pair(both.x * of_rows[i % 2], both.y * of_rows[i % 2], Element{});
      }
      return;
    } else {
      const uint4& words = codes.words[kBits == 8 ? step : 0];
      const Dequantizer<Element, kCodes> numbers(
          {groups.zeros[step] & 0xffu, groups.zeros[step] >> 8 & 0xffu});
      numbers.run(words, kBits == 4 ? number : number % 2, a);
      const unsigned scales[2] = {permuted(groups.scales[step], 0, 0x1010u),
                                  permuted(groups.scales[step], 0, 0x3232u)};
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

  // Multiplies the tile whose numbers are `a`, and makes those of the next one between its
  // instructions: after the last tile, those of the last one again.
  __device__ __forceinline__ void multiply(gated_mlp::Ring<kStages>& ring, int tile,
                                           const Panel (&panels)[kPanels],
                                           Groups (&groups)[kPanels], Sums& sums, Numbers& a,
                                           Numbers& next) const {
    const unsigned stage = ring.stage;
    const unsigned long long tokens = gated_mlp::matrix_at(stage_at(stage));
    if (tile + 1 < last) ring.next();
    barrier_wait(full(ring.stage), ring.parity);
    TileCodes codes[kPanels];
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) load_codes(ring.stage, panel, codes[panel]);
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
        make(codes[panel], groups[panel], i, next[panel][i]);
      }
    }
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      load_groups(tile + 2, panels[panel], groups[panel]);
    }
    hold_all(sums);
    gated_mlp::wgmma_wait<0>();
    hold_all(sums);
    hold_numbers(a);
    __syncwarp();  // the other lanes have read their codes, too
    if (lane == 0) barrier_arrive(empty(stage));
  }

  __device__ __forceinline__ void consume(Sums& sums) const {
    if (first >= last) return;
    gated_mlp::Ring<kStages> ring;
    const Panel panels[kPanels] = {panel_of(0), panel_of(1)};
    Groups groups[kPanels];
    Numbers a;
    Numbers b;
    barrier_wait(full(ring.stage), ring.parity);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      TileCodes codes;
      load_codes(ring.stage, panel, codes);
      load_groups(first, panels[panel], groups[panel]);
#pragma unroll
      for (int i = 0; i < 4; ++i) make(codes, groups[panel], i, a[panel][i]);
      load_groups(first + 1, panels[panel], groups[panel]);
    }
#pragma unroll 1
    for (int tile = first; tile < last; tile += 2) {
      multiply(ring, tile, panels, groups, sums, a, b);
      if (tile + 1 < last) multiply(ring, tile + 1, panels, groups, sums, b, a);
    }
  }

  // Takes two sums at a time: of a token and two neighbouring rows of the tile's.
  template <class Take>
  __device__ __forceinline__ void for_each_pair(const Sums& sums, Take take) const {
    const bool odd_row = lane / 4 % 2 != 0;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < kPanels; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = 4 * n + 2 * half;
          take(n * 8 + lane % 4 * 2 + (odd_row ? 1 : 0),
               tile_of(warp, i) * kTileRows + half * 8 + lane / 8 * 2,
               turned(sums[i][at], sums[i][at + 1], odd_row));
        }
      }
    }
  }

  __device__ __forceinline__ void store_plain(const Sums& sums) const {
    for_each_pair(sums, [&](int token, int row, float2 both) {
      const long long column = static_cast<long long>(row_block) * kWideRows + row;
      if (column >= static_cast<long long>(p.row_tiles) * kTileRows) return;
      finish<Element, false>(p, static_cast<long long>(token_block) * kWideBlock + token, column,
                             both, {});
    });
  }

  // h, as the next product's tokens.
  __device__ __forceinline__ void store_hidden(const float (&sums)[kPanels][kTokens / 2]) const {
    sync_consumers();  // all stages have been read
    const bool odd_row = lane / 4 % 2 != 0;
    const bool is_there = row_tile(warp, 0) < p.row_tiles;
    const unsigned tile = stage_at(0) + static_cast<unsigned>(warp / 4 * kXBytes);
    gated_mlp::with_gate(p.gating, [&](auto unit) {
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = 4 * n + 2 * half;
          float2 both[kPanels];
#pragma unroll
          for (int i = 0; i < kPanels; ++i) both[i] = turned(sums[i][at], sums[i][at + 1], odd_row);
          const int row = half * 8 + lane / 8 * 2;
          const long long column = static_cast<long long>(row_tile(warp, 0)) * kTileRows + row;
          const int token = n * 8 + lane % 4 * 2 + (odd_row ? 1 : 0);
          unsigned words = 0;
          if (is_there) {
            if (p.bias0 != nullptr) both[0] = plus_two<Element>(both[0], p.bias0, column);
            if (p.bias1 != nullptr) both[1] = plus_two<Element>(both[1], p.bias1, column);
            words = gated_mlp::pack_pair(unit.of(both[0].x, both[1].x),
                                         unit.of(both[0].y, both[1].y), Element{});
            words = gated_mlp::bound_pair(words, p.gating.greatest, Element{});
          }
          const int place = place_of_column(warp % 4 * kTileRows + row);
          const unsigned to = tile + static_cast<unsigned>(token / kWideBlock * kWideBlockBytes +
                                                           wide_byte(token % kWideBlock, place));
          asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(words) : "memory");
        }
      }
    });
    gated_mlp::shared_writes_before_copies();
    sync_consumers();
    if (threadIdx.x >= 2 * kTokenBlocks) return;
    const int which = static_cast<int>(threadIdx.x) / kTokenBlocks;
    const int block = static_cast<int>(threadIdx.x) % kTokenBlocks;
    const int k_tile = row_block * 2 + which;
    if (k_tile >= p.out_tiles) return;
    const long long to = static_cast<long long>(token_block + block) * p.out_tiles + k_tile;
    store_bulk(static_cast<unsigned char*>(p.out) + to * kWideBlockBytes,
               stage_at(0) + static_cast<unsigned>(which * kXBytes + block * kWideBlockBytes),
               kWideBlockBytes);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }

  __device__ __forceinline__ void store(const Sums& sums) const {
    if constexpr (kGated) {
      store_hidden(sums);
    } else {
      store_plain(sums);
    }
  }
};

template <class Element, Codes kCodes, bool kGated, int kTokenBlocks>
__device__ __forceinline__ void wide(const ProductArguments& p) {
  run_wide<Wide<Element, kCodes, kGated, kTokenBlocks>>(p);
}

// The end of the gated product's split tiles, and of the plain one's.
template <class Element>
__device__ __forceinline__ void sum_gated(const ProductArguments& p) {
  SplitToken<true> one;
  if (!add_split(p, one)) return;
  unsigned words[2];
  gate_split<Element>(p, one, words);
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
__device__ __forceinline__ void sum_plain(const ProductArguments& p) {
  SplitToken<false> one;
  if (!add_split(p, one)) return;
  const float(&sums)[4] = one.sums[0];
  finish<Element, false>(p, one.token, one.row, {sums[0], sums[1]}, {});
  finish<Element, false>(p, one.token, one.row + 2, {sums[2], sums[3]}, {});
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

KILN_PRODUCTS(wide, (kWideThreads, 1))
KILN_PRODUCT(sum_gated, (256, 2), sum_gated_bf16, Bfloat16)
KILN_PRODUCT(sum_gated, (256, 2), sum_gated_f16, Float16)
KILN_PRODUCT(sum_plain, (256, 2), sum_plain_bf16, Bfloat16)
KILN_PRODUCT(sum_plain, (256, 2), sum_plain_f16, Float16)
