// SPDX-License-Identifier: Apache-2.0
//
// Plan: which kernels a call of forward launches. Pure: of extents, and of which kernels for many
// tokens the GPU has; the workspace has room for any plan, so that it is known before a GPU is.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <iterator>

#include "arguments.h"

namespace quantized_mlp {

// Kernel numbers, in the order of gpu.cpp's list: decode [gated, plain][bf16, f16][Codes][8, 16
// tokens], tiled [gated, plain][bf16, f16][Codes], the others, and wide [gated, plain][bf16,
// f16][Codes][kWideTokens], wide8 [gated, plain][bf16, f16][scales of rows, of blocks][64, 128
// tokens]; decode normed [bf16, f16][Codes].
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
inline constexpr int kWideSizes = static_cast<int>(std::size(kWideTokens));
inline constexpr int kArrange8 = kWideKernels + 4 * kCodes * kWideSizes;  // bf16, f16
inline constexpr int kWide8Kernels = kArrange8 + 2;
inline constexpr int kRound8 = kWide8Kernels + 4 * 2 * 2;  // bf16, f16
inline constexpr int kSums = kRound8 + 2;  // gated, plain, gated of wide8 [bf16, f16]
inline constexpr int kNormedKernels = kSums + 6;
inline constexpr int kNormRows = kNormedKernels + 2 * kCodes;      // bf16, f16
inline constexpr int kExpand = kNormRows + 2;                      // [bf16, f16][Codes]
inline constexpr int kExpandedKernels = kExpand + 2 * kCodes;      // [gated, plain][bf16, f16]
inline constexpr int kSm90ExpandedKernels = kExpandedKernels + 4;  // the same
inline constexpr int kKernels = kSm90ExpandedKernels + 4;

enum class Road { kDecode, kTiled, kWide, kWide8, kExpanded };

inline bool is_wide(Road road) {
  return road == Road::kWide || road == Road::kWide8;
}

struct ProductPlan {
  bool gated;
  Road road;
  int tokens;  // of a CTA
  int64_t token_blocks;
  int64_t row_blocks;  // decode: at most; fewer CTAs share them out
  int splits;          // parts of k
  int64_t whole;       // wide: this many tiles of outputs are not split
};

// Up to so many tokens go to decode, whose blocks of 16 read the same weights, most of them from
// the L2 cache; NOTES.md has the times. `weights`: of one matrix.
inline int64_t most_decoded(Road many, int64_t weights) {
  if (many == Road::kWide8) return weights >= 32'000'000 ? 8 : 16;
  return many == Road::kWide && weights >= 20'000'000 ? 16 : 32;
}

// CTAs that run at once, one a multiprocessor: of the GPUs that the wide kernels are for.
inline constexpr int64_t kCtas = 132;

// What the wide kernels take on an H200, in microseconds: `wide` in the mean of the kinds of codes.
// NOTES.md has the fit.
struct WideCosts {
  double of_tile[kWideSizes];  // of k, in a CTA of kWideTokens; of 32 `wide` alone
  double of_sums;              // where k is split: to add the parts,
  double of_part;              // each of them,
  double of_tokens;            // and each 64 tokens of a tile that a part has sums of
  double of_cta = 3.6;
};
inline WideCosts costs_of(Road road) {
  return road == Road::kWide8 ? WideCosts{{0, 0.26, 0.40}, 2.2, 0.35, 0.028}
                              : WideCosts{{0.55, 0.63, 0.86}, 0.26, 0.07, 0.032};
}

// CTAs of so many tokens take wave after wave of tiles, and in a last wave that is not full
// several may share a tile: whichever takes the least time.
inline ProductPlan plan_wide(bool gated, int64_t m, int64_t row_tiles, int64_t depth_tiles,
                             Road road) {
  constexpr int64_t kLeastTiles = 4;  // of k, that a part should have
  constexpr int64_t kMostSplits = 16;
  const WideCosts costs = costs_of(road);
  const int64_t rows = parts_of(row_tiles, gated ? kWideRowTiles / 2 : kWideRowTiles);
  ProductPlan best = {};
  double least = 0;
  const int least_size = road == Road::kWide && m <= kWideTokens[0] ? 0 : 1;
  for (int size = least_size; size < kWideSizes; ++size) {
    const int tokens = kWideTokens[size];
    if (size > least_size && m <= kWideTokens[size - 1]) break;
    const int64_t token_blocks = parts_of(m, tokens);
    const int64_t tiles = token_blocks * rows;
    const double of_k = costs.of_tile[size];
    const auto cta = [&](int64_t depth) {
      return costs.of_cta + of_k * static_cast<double>(depth);
    };
    const auto take = [&](int64_t splits, int64_t whole, double time) {
      if (best.splits != 0 && time >= least) return;
      least = time;
      best = {gated, road, tokens, token_blocks, rows, static_cast<int>(splits), whole};
    };
    const double wave = cta(depth_tiles);
    take(1, tiles, wave * static_cast<double>(parts_of(tiles, kCtas)));
    const int64_t last = tiles % kCtas;
    if (last == 0) continue;
    // The more parts, the less of k each of them has, and the more sums there are to add.
    const double of_part =
        costs.of_part + costs.of_tokens * static_cast<double>(last * tokens) / kWideBlock;
    const double before = wave * static_cast<double>(tiles / kCtas) + costs.of_sums;
    const int64_t most = std::min({kCtas / last, depth_tiles / kLeastTiles, kMostSplits});
    for (int64_t splits = 2; splits <= most; ++splits) {
      const int64_t depth = parts_of(parts_of(depth_tiles, kWideUnit), splits) * kWideUnit;
      take(splits, tiles - last, before + cta(depth) + of_part * static_cast<double>(splits));
    }
  }
  return best;
}

// From so many tokens on weights are made numbers of 16 bits first, where `many` would take the
// codes; NOTES.md has the times.
inline int64_t fewest_expanded(Road many, Codes codes) {
  if (many == Road::kTiled) return 512;
  return codes == Codes::kInt4 ? 1280 : 1024;
}

// Beyond these a grid might be too large. H is not 0.
inline bool can_expand(int64_t m, int64_t width, int64_t hidden) {
  constexpr int64_t kMostWidth = 1 << 24;
  return m <= 1 << 20 && width <= kMostWidth && hidden > 0 && hidden <= kMostWidth;
}

// Expanded: chunks of the outputs' columns, whose weights are in the workspace while they are
// multiplied.
struct Chunks {
  int64_t columns;
  int64_t bytes;   // of weights
  int64_t number;  // of chunks
  double time;     // of all, on an H200, in microseconds
};
struct ExpandedPlan {
  int64_t first;  // columns of h's first chunk
  Chunks h;
  Chunks y;
};
// Of a chunk, unless a tile has more. Beside another one so many are enough where they fill a wave.
inline constexpr int64_t kMostExpandedBytes = 128 << 20;
inline constexpr int64_t kBesideBytes = 64 << 20;
inline constexpr int64_t kExpandedTile = 256;  // rows of weights, tokens
inline constexpr int64_t kExpandedPairs = kCtas / 2;

// As many chunks as fill the waves of pairs of CTAs best: of tiles of 256 rows of weights by 256
// tokens, of which a CTA of other GPUs than SM 9.0 has half. `beside`: while one chunk is
// multiplied, the next one's weights are made.
inline Chunks plan_chunks(int64_t rows, int64_t n, int64_t columns, int64_t k, bool beside) {
  constexpr double kOfWave = 1, kOfBlock = 0.79, kOfChunk = 2, kOfByte = 0.65e-6;
  const int64_t tiles = parts_of(n, columns);
  const int64_t bytes = 2 * kExpandedTile * k;  // of a tile
  const int64_t of_wave = parts_of(kExpandedPairs, rows);
  int64_t most = kMostExpandedBytes / bytes;
  if (beside) most = std::min(most, std::max(kBesideBytes / bytes, of_wave));
  const int64_t least = parts_of(tiles, std::max<int64_t>(1, most));
  const double wave = kOfWave + kOfBlock * static_cast<double>(parts_of(k, kTileDepth));
  Chunks best = {};
  for (int64_t number = least; number <= std::min(2 * least, tiles); ++number) {
    const int64_t of = parts_of(tiles, number);
    const auto waves = static_cast<double>(parts_of(rows * of, kExpandedPairs));
    const double multiplied = kOfChunk + wave * waves;
    const double expanded = beside ? kOfByte * static_cast<double>(of * bytes) : 0;
    const int64_t chunks = parts_of(tiles, of);
    const double time = static_cast<double>(chunks) * std::max(multiplied, expanded);
    if (best.number == 0 || time < best.time) best = {of * columns, of * bytes, chunks, time};
  }
  return best;
}
inline ExpandedPlan plan_expanded(int64_t m, int64_t width, int64_t hidden, bool beside) {
  const int64_t rows = parts_of(m, kExpandedTile);
  constexpr int64_t kColumns = kExpandedTile / 2;  // gated
  const Chunks h = plan_chunks(rows, hidden, kColumns, width, beside);
  const Chunks y = plan_chunks(rows, width, kExpandedTile, hidden, beside);
  if (!beside) return {h.columns, h, y};
  // Beside the making of the first one's weights nothing is multiplied.
  const int64_t first = std::max<int64_t>(1, kExpandedPairs / rows) * kColumns;
  return {std::min(first, h.columns), h, y};
}

// m tokens by `row_tiles` of each matrix and `depth_tiles` of k.
inline ProductPlan plan_product(bool gated, int64_t m, int64_t row_tiles, int64_t depth_tiles,
                                Road road) {
  constexpr int64_t kCtasWanted = 128;  // of a GPU with about as many multiprocessors
  constexpr int64_t kLeastTiles = 8;    // of k, that a part should have
  if (is_wide(road)) return plan_wide(gated, m, row_tiles, depth_tiles, road);
  if (road == Road::kDecode) {
    const int tokens = m <= 8 ? 8 : 16;
    return {gated, road, tokens, parts_of(m, tokens), row_tiles, 1, 0};
  }
  const int64_t token_blocks = parts_of(m, kTiledTokens);
  const int64_t row_blocks = parts_of(row_tiles, gated ? kTiledWarps : 2 * kTiledWarps);
  const int64_t ctas = std::max<int64_t>(1, token_blocks * row_blocks);
  const int64_t splits = gated ? 1 : std::min(kCtasWanted / ctas, depth_tiles / kLeastTiles);
  const int parts = static_cast<int>(std::max<int64_t>(1, splits));
  return {gated, road, kTiledTokens, token_blocks, row_blocks, parts, 0};
}

// Tiles of the wide kernels that are split.
inline int64_t split_tiles(const ProductPlan& plan) {
  return plan.token_blocks * plan.row_blocks - plan.whole;
}

// Bytes of the sums of parts: [splits, m, n], or of the wide kernels all of their tiles.
inline int64_t bytes_of_sums(const ProductPlan& plan, int64_t m, int64_t n) {
  if (plan.splits == 1) return 0;
  if (!is_wide(plan.road)) return 4 * plan.splits * m * n;
  return 4 * split_tiles(plan) * plan.splits * plan.tokens * kWideRows;
}

inline int kernel_of(const ProductPlan& plan, bool float16, Codes codes, bool has_groups) {
  if (plan.road == Road::kWide8) {
    const int type = (plan.gated ? 0 : 2) + (float16 ? 1 : 0);
    return kWide8Kernels + (type * 2 + (has_groups ? 1 : 0)) * 2 + (plan.tokens > kWideBlock);
  }
  const int row = ((plan.gated ? 0 : 2) + (float16 ? 1 : 0)) * kCodes + static_cast<int>(codes);
  if (plan.road == Road::kWide) {
    const auto* const size = std::find(std::begin(kWideTokens), std::end(kWideTokens), plan.tokens);
    return kWideKernels + row * kWideSizes + static_cast<int>(size - kWideTokens);
  }
  if (plan.road == Road::kTiled) return kTiledKernels + row;
  return row * 2 + (plan.tokens > 8);
}

// Tokens of `columns` columns that decode has room to norm.
inline int64_t normed_tokens(Codes codes, int64_t columns) {
  const int64_t room = kNormedBytes - normed_room_at(bits_of(codes));
  const int64_t last = 2 * normed_columns(columns);  // without what is beside it
  return room < last ? 0 : std::min<int64_t>(8, 1 + (room - last) / normed_stride(columns));
}

// Whether the kernel of the gated product norms x itself.
inline bool norms_in_decode(Road road, bool rounds, Codes codes, int64_t m, int64_t columns) {
  return road == Road::kDecode && !rounds && columns <= kMostNormed &&
         m <= normed_tokens(codes, columns);
}
inline int normed_kernel_of(bool float16, Codes codes) {
  return kNormedKernels + (float16 ? kCodes : 0) + static_cast<int>(codes);
}

inline int expand_kernel_of(bool float16, Codes codes) {
  return kExpand + (float16 ? kCodes : 0) + static_cast<int>(codes);
}
// `kernels`: kExpandedKernels or kSm90ExpandedKernels.
inline int expanded_kernel_of(int kernels, bool gated, bool float16) {
  return kernels + (gated ? 0 : 2) + (float16 ? 1 : 0);
}

// The kernel that adds the parts of k.
inline int sums_kernel_of(const ProductPlan& plan, bool float16) {
  const int type = float16 ? 1 : 0;
  if (plan.road == Road::kTiled) return kFinish + type;
  const int of = !plan.gated ? 1 : plan.road == Road::kWide ? 0 : 2;
  return kSums + 2 * of + type;
}

}  // namespace quantized_mlp
