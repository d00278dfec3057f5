// SPDX-License-Identifier: Apache-2.0
//
// Plan: which kernels a call of forward launches. Pure: of extents, and of which kernels for many
// tokens the GPU has; the workspace has room for either plan, so that it is known before a GPU is.
#pragma once

#include <stdint.h>

#include "arguments.h"

namespace quantized_mlp {

// Kernel numbers, in the order of gpu.cpp's list: decode [gated, plain][bf16, f16][Codes][8, 16
// tokens], tiled [gated, plain][bf16, f16][Codes], the others, and wide [gated, plain][bf16,
// f16][Codes][64, 128 tokens], wide8 [gated, plain][bf16, f16][scales of rows, of blocks][64, 128
// tokens].
inline constexpr int kCodes = 3;
inline constexpr int kTiledKernels = 4 * kCodes * 2;
inline constexpr int kFinish = kTiledKernels + 4 * kCodes;  // bf16, f16
inline constexpr int kPackCodes = kFinish + 2;
inline constexpr int kPackGroups = kFinish + 3;
inline constexpr int kUnpackCodes = kFinish + 4;
inline constexpr int kUnpackGroups = kFinish + 5;
inline constexpr int kKernelsWait = kFinish + 6;
inline constexpr int kArrange = kFinish + 7;
inline constexpr int kWideKernels = kFinish + 8;
inline constexpr int kArrange8 = kWideKernels + 4 * kCodes * 2;  // bf16, f16
inline constexpr int kWide8Kernels = kArrange8 + 2;
inline constexpr int kRound8 = kWide8Kernels + 4 * 2 * 2;  // bf16, f16
inline constexpr int kKernels = kRound8 + 2;

enum class Road { kDecode, kTiled, kWide, kWide8 };

inline bool is_wide(Road road) {
  return road == Road::kWide || road == Road::kWide8;
}

struct ProductPlan {
  Road road;
  int token_tiles;  // decode: of 8 tokens, wide: of 64; 1 or 2
  int64_t token_blocks;
  int64_t row_blocks;  // decode: at most; fewer CTAs share them out
  int splits;
};

// Up to so many tokens go to decode, whose blocks of 16 read the same weights, most of them from
// the L2 cache; NOTES.md has the times. `weights`: of one matrix.
inline int64_t most_decoded(Road many, bool is_e4m3, int64_t weights) {
  constexpr int64_t kLarge = 32'000'000;
  const int64_t most = many == Road::kWide8 ? 16 : 32;
  const bool ends_early = many == Road::kWide8 || (many == Road::kWide && !is_e4m3);
  return ends_early && weights >= kLarge ? most / 2 : most;
}

// Blocks of tokens of a CTA: two where they take less time, by waves of CTAs, of which one with a
// single block takes about two thirds of one with two.
inline int wide_tiles(int64_t m, int64_t row_tiles, bool gated) {
  constexpr int64_t kCtas = 132;
  const int64_t rows = parts_of(row_tiles, gated ? kWideRowTiles / 2 : kWideRowTiles);
  const int64_t blocks = parts_of(m, kWideBlock);
  return 2 * parts_of(blocks * rows, kCtas) <= 3 * parts_of(parts_of(blocks, 2) * rows, kCtas) ? 1
                                                                                               : 2;
}

// m tokens by `row_tiles` of each matrix and `depth_tiles` of k.
inline ProductPlan plan_product(bool gated, int64_t m, int64_t row_tiles, int64_t depth_tiles,
                                Road road) {
  constexpr int64_t kCtasWanted = 128;  // of a GPU with about as many multiprocessors
  constexpr int64_t kLeastTiles = 8;    // of k, that a part should have
  if (road == Road::kDecode) {
    const int tiles = m <= 8 ? 1 : 2;
    return {road, tiles, parts_of(m, 8 * tiles), row_tiles, 1};
  }
  static_assert(kTiledTokens == kWideBlock && 2 * kTiledWarps == kWideRowTiles);
  const int token_tiles = road != Road::kTiled ? wide_tiles(m, row_tiles, gated) : 1;
  ProductPlan plan{road, token_tiles, parts_of(m, kWideBlock * token_tiles),
                   parts_of(row_tiles, gated ? kTiledWarps : 2 * kTiledWarps), 1};
  const int64_t ctas = plan.token_blocks * plan.row_blocks;
  if (gated || ctas == 0 || ctas >= kCtasWanted) return plan;
  int64_t splits = kCtasWanted / ctas;
  if (splits > depth_tiles / kLeastTiles) splits = depth_tiles / kLeastTiles;
  plan.splits = splits > 1 ? static_cast<int>(splits) : 1;
  return plan;
}

inline int kernel_of(const ProductPlan& plan, bool gated, bool float16, Codes codes,
                     bool has_groups) {
  if (plan.road == Road::kWide8) {
    const int type = (gated ? 0 : 2) + (float16 ? 1 : 0);
    return kWide8Kernels + (type * 2 + (has_groups ? 1 : 0)) * 2 + plan.token_tiles - 1;
  }
  const int row = ((gated ? 0 : 2) + (float16 ? 1 : 0)) * kCodes + static_cast<int>(codes);
  if (plan.road == Road::kWide) return kWideKernels + row * 2 + plan.token_tiles - 1;
  if (plan.road == Road::kTiled) return kTiledKernels + row;
  return row * 2 + plan.token_tiles - 1;
}

}  // namespace quantized_mlp
