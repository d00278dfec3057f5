// SPDX-License-Identifier: Apache-2.0
//
// Plan: shape, dtype, alignment and device facts -> which kernel runs, with which grid. Pure: no
// I/O, no globals, no driver; gpu_ops.cpp executes it. A plan is a value that tests compare and
// `describe` prints.
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "portable/arguments.h"
#include "tile.h"

namespace gated_mlp {

enum class Element : int32_t { kFloat32, kFloat16, kBFloat16 };
inline constexpr int64_t kHalfBytes = 2;  // of float16 and bfloat16, the GEMMs' types

constexpr int64_t bytes_of(Element element) {
  return element == Element::kFloat32 ? 4 : kHalfBytes;
}

enum class TileKind : int32_t {
  kTall,
  kLarge3,
  kLarge4,
  kMedium,
  kSmall,
  kAnyAlignment,
  kDecode4,
  kDecode8
};
inline constexpr int kTileKinds = 8;
constexpr bool is_decode(TileKind tile) {
  return tile == TileKind::kDecode4 || tile == TileKind::kDecode8;
}

struct TileFacts {
  const char* name;
  int64_t rows;
  int64_t columns;  // of accumulators: a gated kernel writes half as many (is_decode: all)
  uint32_t shared_bytes;
  // Time of one accumulator step against the large tile's: small tiles read more shared memory for
  // each multiplication. Estimates from bytes through shared memory, not measured; but the tall
  // tile's is: see choose_tile().
  double cost;
  uint32_t threads;
};

template <class T>
constexpr TileFacts facts_of(const char* name, double cost) {
  return {name, T::kRows, T::kColumns, T::kSharedBytes, cost, T::kThreads};
}
inline constexpr TileFacts kTiles[kTileKinds] = {
    facts_of<TallTile>("256x128", 0.93),
    facts_of<LargeTile3>("128x128x3", 1.05),
    facts_of<LargeTile4>("128x128x4", 1.0),
    facts_of<MediumTile>("64x64", 1.3),
    facts_of<SmallTile>("32x32", 2.5),
    facts_of<MediumTile>("64x64_any", 1.3),
    {"decode4", kDecodeTokens, kDecodeColumns, 0, 0.0, 128},
    {"decode8", kDecodeTokens, kDecodeColumns, 0, 0.0, 256},
};

// Kernel numbers: 32 GEMMs (gated bf16, gated f16, plain bf16, plain f16; eight tiles each), then
// 15 elementwise kernels (of f32, bf16 and f16: the wide forward, then forward and backward, narrow
// and single), then the 5 of smxx_backward.cu in its order and the one of smxx_padded.cu.
inline constexpr int kGemmKernels = 4 * kTileKinds;
inline constexpr int kPointwiseKernels = 15;
inline constexpr int kKernels = kGemmKernels + kPointwiseKernels + 6;

// What a thread takes of each tensor: 16 bytes (forward only), 8 bytes, one element.
enum class Width : int32_t { kWide, kNarrow, kSingle };
inline constexpr int64_t kWideBytes = 16;
inline constexpr int64_t kNarrowBytes = 8;

constexpr int gemm_kernel(bool gated, Element element, TileKind tile) {
  const int row = (gated ? 0 : 2) + (element == Element::kFloat16 ? 1 : 0);
  return row * kTileKinds + static_cast<int>(tile);
}

constexpr int pointwise_kernel(bool backward, Element element, Width width) {
  const int row = element == Element::kFloat32 ? 0 : element == Element::kBFloat16 ? 1 : 2;
  if (width == Width::kWide) return kGemmKernels + row;  // forward only
  const int single = width == Width::kSingle ? 1 : 0;
  return kGemmKernels + 3 + (backward ? 6 : 0) + 2 * row + single;
}

inline constexpr int kTransposeKernel = kGemmKernels + kPointwiseKernels;
constexpr int gated_backward_kernel(Element element) {
  return kTransposeKernel + (element == Element::kFloat16 ? 2 : 1);
}
constexpr int row_sums_kernel(Element element) {
  return kTransposeKernel + (element == Element::kFloat16 ? 4 : 3);
}

inline constexpr int kPaddedKernel = kKernels - 1;

struct GpuFacts {
  int multiprocessors = 0;
  int shared_bytes_per_block = 0;
  bool operator==(const GpuFacts&) const = default;
};

// out[m, n] from a[m, k] and b[n, k]; gated: from two b.
struct GemmShape {
  bool gated = false;
  Element element = Element::kBFloat16;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool aligned = false;    // n and k are multiples of 8, all matrices are 16-byte aligned
  bool keeps = false;      // gated: both products are stored too
  bool invariant = false;  // a row's bits must not depend on m
  bool adds = false;       // plain: to an out of float32
  bool operator==(const GemmShape&) const = default;
};

struct GemmPlan {
  TileKind tile = TileKind::kMedium;
  int kernel = 0;
  uint32_t tiles_m = 0;
  uint32_t tiles_n = 0;
  uint32_t panel = 1;
  uint32_t ctas = 0;  // 0: nothing to launch
  uint32_t threads = 0;
  bool fits = true;  // false: more tiles than a grid can have
  bool operator==(const GemmPlan&) const = default;
};

constexpr int64_t tiles_of(int64_t extent, int64_t tile) {
  return extent / tile + (extent % tile != 0 ? 1 : 0);
}

constexpr int64_t out_columns(const GemmShape& shape, TileKind tile) {
  const int64_t columns = kTiles[static_cast<int>(tile)].columns;
  return shape.gated && !is_decode(tile) ? columns / 2 : columns;
}

// What the busiest multiprocessor has to do: its number of tiles times a tile's work.
constexpr double tile_cost(const GemmShape& shape, TileKind tile, const GpuFacts& gpu) {
  const TileFacts& facts = kTiles[static_cast<int>(tile)];
  const double tiles = static_cast<double>(tiles_of(shape.m, facts.rows)) *
                       static_cast<double>(tiles_of(shape.n, out_columns(shape, tile)));
  const double processors = gpu.multiprocessors > 0 ? gpu.multiprocessors : 1;
  double rounds = static_cast<double>(static_cast<int64_t>(tiles / processors));
  if (rounds * processors < tiles) rounds += 1;
  return rounds * static_cast<double>(facts.rows * facts.columns) * facts.cost;
}

// Measured on an H200: four warps a CTA read the weights faster, unless some multiprocessors then
// have nothing to read (bench/results/nvidia-h200-portable-decode.json).
constexpr TileKind choose_decode(const GemmShape& shape, const GpuFacts& gpu) {
  const bool few = tiles_of(shape.n, kDecodeColumns) <= gpu.multiprocessors;
  return few ? TileKind::kDecode8 : TileKind::kDecode4;
}

inline constexpr int64_t kTallDepth = 2048;

constexpr TileKind choose_tile(const GemmShape& shape, const GpuFacts& gpu) {
  if (!shape.aligned) return TileKind::kAnyAlignment;
  if (shape.m <= kDecodeTokens && !shape.invariant && !shape.adds) {
    return choose_decode(shape, gpu);
  }
  // Two CTAs with four stages need 2 x 65 KiB of an SM's memory: sm_80, 90 and 100 have it; on
  // sm_86, 89 and 120 (99 KiB a block) two CTAs fit with three stages.
  const bool roomy = gpu.shared_bytes_per_block >= 160 * 1024;
  TileKind best = roomy ? TileKind::kLarge4 : TileKind::kLarge3;
  constexpr TileKind kSmaller[] = {TileKind::kMedium, TileKind::kSmall};
  for (const TileKind tile : kSmaller) {
    if (tile_cost(shape, tile, gpu) < tile_cost(shape, best, gpu)) best = tile;
  }
  // One CTA has the multiprocessor: nothing runs beside its first copies and its outputs, for which
  // only a long k pays. On an H100 it takes 0.93 of the time at 2048, 2048, 8192 and at 4096, 4096,
  // 14336, and 1.08 at 8192, 768, 3072 (bench/results/nvidia-h100-tall-tile.json).
  if (shape.k >= kTallDepth && gpu.shared_bytes_per_block >= TallTile::kSharedBytes &&
      tile_cost(shape, TileKind::kTall, gpu) < tile_cost(shape, best, gpu)) {
    best = TileKind::kTall;
  }
  return best;
}

constexpr GemmPlan plan_gemm(const GemmShape& shape, const GpuFacts& gpu) {
  GemmPlan plan;
  plan.tile = choose_tile(shape, gpu);
  plan.kernel = gemm_kernel(shape.gated, shape.element, plan.tile);
  plan.threads = kTiles[static_cast<int>(plan.tile)].threads;
  if (shape.m <= 0 || shape.n <= 0) return plan;
  const int64_t tiles_m = tiles_of(shape.m, kTiles[static_cast<int>(plan.tile)].rows);
  const int64_t tiles_n = tiles_of(shape.n, out_columns(shape, plan.tile));
  if (tiles_m > INT32_MAX / tiles_n) {
    plan.fits = false;
    return plan;
  }
  plan.tiles_m = static_cast<uint32_t>(tiles_m);
  plan.tiles_n = static_cast<uint32_t>(tiles_n);
  // Eight columns of tiles: the CTAs of one wave then form a block that is about as wide as high,
  // which reads the fewest distinct rows of a and b.
  plan.panel = tiles_n < 8 ? plan.tiles_n : 8;
  plan.ctas = plan.tiles_m * plan.tiles_n;
  return plan;
}

inline int describe(const GemmPlan& plan, char* text, size_t size) {
  return snprintf(text, size, "%s: kernel %d, %u x %u tiles, panel %u, %u CTAs",
                  kTiles[static_cast<int>(plan.tile)].name, plan.kernel, plan.tiles_m, plan.tiles_n,
                  plan.panel, plan.ctas);
}

// Elementwise over tensors [rows, columns].
struct PointwiseShape {
  bool backward = false;
  Element element = Element::kBFloat16;
  int64_t rows = 0;
  int64_t columns = 0;
  bool compact = false;  // no tensor has gaps between its rows
  // Bytes, a power of two: all addresses and, where rows > 1, all row strides are multiples of it.
  int64_t alignment = 1;
};

struct PointwisePlan {
  int kernel = 0;
  int64_t rows = 0;  // after compact tensors were flattened into one row
  int64_t columns = 0;
  uint32_t grid_x = 0;  // over a row; 0: nothing to launch
  uint32_t grid_y = 1;  // times grid_z: at least the rows
  uint32_t grid_z = 1;
  // Wide, and the output is larger than the L2 cache, so that nothing there will be found.
  bool passing = false;
  bool fits = true;  // false: more CTAs than a grid can have
  bool operator==(const PointwisePlan&) const = default;
};

inline constexpr int64_t kMostGridX = INT32_MAX;
inline constexpr int64_t kMostGridY = 65535;  // and z
inline constexpr int64_t kMostSmall = 2048;   // elements a multiprocessor of a small tensor
inline constexpr int64_t kMostCacheBytes = 128 << 20;  // no GPU has a larger L2 cache

constexpr int64_t elements_of(Width width, Element element) {
  if (width == Width::kSingle) return 1;
  return (width == Width::kWide ? kWideBytes : kNarrowBytes) / bytes_of(element);
}

// Measured on an H200: wide is the fastest forward of large tensors, narrow everything else.
constexpr Width choose_width(const PointwiseShape& shape, int64_t columns, const GpuFacts& gpu) {
  const int64_t row_bytes = columns * bytes_of(shape.element);
  const bool large = shape.rows * shape.columns > kMostSmall * gpu.multiprocessors;
  if (!shape.backward && large && shape.alignment >= kWideBytes && row_bytes % kWideBytes == 0) {
    return Width::kWide;
  }
  const bool narrow = shape.alignment >= kNarrowBytes && row_bytes % kNarrowBytes == 0;
  return narrow ? Width::kNarrow : Width::kSingle;
}

constexpr PointwisePlan plan_pointwise(const PointwiseShape& shape, const GpuFacts& gpu) {
  PointwisePlan plan;
  plan.rows = shape.compact ? 1 : shape.rows;
  plan.columns = shape.compact ? shape.rows * shape.columns : shape.columns;
  const Width width = choose_width(shape, plan.columns, gpu);
  plan.kernel = pointwise_kernel(shape.backward, shape.element, width);
  if (shape.rows <= 0 || shape.columns <= 0) return plan;
  const int64_t grid_x =
      tiles_of(plan.columns, kPointwiseThreads * elements_of(width, shape.element));
  const int64_t grid_z = tiles_of(plan.rows, kMostGridY);
  if (grid_x > kMostGridX || grid_z > kMostGridY) {
    plan.fits = false;
    return plan;
  }
  plan.grid_x = static_cast<uint32_t>(grid_x);
  plan.grid_y = static_cast<uint32_t>(tiles_of(plan.rows, grid_z));  // no layer nearly empty
  plan.grid_z = static_cast<uint32_t>(grid_z);
  plan.passing = width == Width::kWide &&
                 shape.rows * shape.columns * bytes_of(shape.element) > kMostCacheBytes;
  return plan;
}

}  // namespace gated_mlp
