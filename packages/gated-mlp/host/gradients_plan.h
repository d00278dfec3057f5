// SPDX-License-Identifier: Apache-2.0
//
// Gradients_plan: which kernel of sm90_gradients.cu computes products of backward, with which grid.
// Pure, as sm90_plan.h, by whose time model it chooses. Every output is one accumulator that runs
// through k in order: the bits are the same in every tile.
#pragma once

#include "sm90/sm90_plan.h"

namespace gated_mlp {

struct GradientExtents {  // of a product's output
  int64_t m = 0;
  int64_t n = 0;
};

struct GradientsQuestion {
  GradientKind kind = GradientKind::kTokens;  // whose products add up; of weights side by side
  Element element = Element::kBFloat16;
  int64_t k = 0;  // of one product
  int count = 0;
  GradientExtents products[kMostGradientProducts];
  int pinned = -1;  // the tile, where it is not the plan's
};

struct GradientsPlan {
  const Sm90Tile* tile = nullptr;
  int kernel = 0;
  uint32_t ctas = 0;
  uint32_t k_blocks = 0;
  struct Grid {
    uint32_t tiles_m = 0;
    uint32_t tiles_n = 0;
    uint32_t panel = 0;
  } grids[kMostGradientProducts];
};

constexpr GemmShape gradient_shape(const GradientsQuestion& q, int product) {
  const GradientExtents& out = q.products[product];
  return {false, q.element, out.m, out.n, q.k, true};
}

// Of clusters.
constexpr int64_t gradient_tiles(const GradientsQuestion& q, const Sm90Tile& tile) {
  int64_t tiles = 0;
  for (int i = 0; i < (q.kind == GradientKind::kWeights ? q.count : 1); ++i) {
    const Sm90ClusterTiles grid = cluster_tiles(gradient_shape(q, i), tile, false);
    tiles += grid.m * grid.n;
  }
  return tiles;
}

constexpr int64_t gradient_ctas(const GradientsQuestion& q, const Sm90Tile& tile,
                                const GpuFacts& gpu) {
  const int64_t tiles = gradient_tiles(q, tile);
  const int64_t clusters = gpu.multiprocessors / 2;
  return 2 * (tiles < clusters ? tiles : clusters);
}

// What orders the tiles, in microseconds and terabytes a second: fitted to
// bench/results/nvidia-h100-backward-tiles.json, for these kernels alone.
struct GradientTimes {
  double narrow = 0.3764;  // a block of k of 128 x 128
  double middle = 0.513;   // 128 x 192
  double wide = 0.7087;    // 128 x 256
  double tall = 1.093;     // 256 x 192
  double cache_rate = 15.29;
  double copies = 1.075;  // as much of the copies' time comes on top of the products'
  double end = 0.2266;    // of 128 x 192, a wave of cooperative tiles
};
constexpr double gradient_step(const Sm90Tile& tile) {
  constexpr GradientTimes kTimes = {};
  if (tile.rows == 256) return kTimes.tall;
  return tile.columns == 128 ? kTimes.narrow : tile.columns == 192 ? kTimes.middle : kTimes.wide;
}

constexpr double gradients_time(const GradientsQuestion& q, const Sm90Tile& tile,
                                const GpuFacts& gpu) {
  constexpr GradientTimes kTimes = {};
  const int64_t links = q.kind == GradientKind::kWeights ? 1 : q.count;
  const int64_t blocks = tiles_of(q.k, kDepth) * links;
  const double moved = static_cast<double>(tile.rows) + static_cast<double>(tile.columns) / 2;
  const auto ctas = static_cast<double>(gradient_ctas(q, tile, gpu));
  const double step =
      gradient_step(tile) + kTimes.copies * copy_time(moved, ctas, kTimes.cache_rate);
  // In ping-pong two tiles hide each other's ends.
  const double shown = !tile.cooperative
                           ? 0
                           : kTimes.end * static_cast<double>(tile.rows * tile.columns) /
                                 static_cast<double>(128 * 192);
  const double waves = sm90_ceil(static_cast<double>(gradient_tiles(q, tile)) * 2 / ctas);
  return waves * (static_cast<double>(blocks) * step + shown);
}

// Of at least one product with outputs.
constexpr GradientsPlan plan_gradients(const GradientsQuestion& q, const GpuFacts& gpu) {
  GradientsPlan plan;
  double least = 0;
  for (int i = 0; i < gradient_tile_count(q.kind); ++i) {
    const Sm90Tile& tile = gradient_tile(q.kind, i);
    if (q.pinned >= 0 && i != q.pinned) continue;
    const double time = gradients_time(q, tile, gpu);
    if (plan.tile != nullptr && time >= least) continue;
    least = time;
    plan.tile = &tile;
    plan.kernel = gradient_kernel(q.kind, q.element, i);
  }
  const Sm90Tile& tile = *plan.tile;
  plan.ctas = static_cast<uint32_t>(gradient_ctas(q, tile, gpu));
  plan.k_blocks = static_cast<uint32_t>(tiles_of(q.k, kDepth));
  for (int i = 0; i < q.count; ++i) {
    const GemmShape shape = gradient_shape(q, i);
    const Sm90ClusterTiles grid = cluster_tiles(shape, tile, false);
    const auto tiles_n = static_cast<uint32_t>(grid.n);
    plan.grids[i] = {static_cast<uint32_t>(grid.m), tiles_n,
                     prefill_panel(shape, tile, false, tiles_n)};
  }
  return plan;
}

// Whether the kernels can read backward's matrices as they lie; `mapped`: all are 16-byte aligned.
constexpr bool gradients_lie_well(int64_t m, int64_t d, int64_t h, bool mapped,
                                  const GpuFacts& gpu) {
  if (m <= 0) return false;
  const GemmShape shapes[] = {{false, Element::kBFloat16, m, h, d, true},
                              {false, Element::kBFloat16, h, d, 8, true},
                              {false, Element::kBFloat16, m, d, h, true}};
  for (const GemmShape& shape : shapes) {
    if (sm90_refusal(shape, mapped, gpu) != nullptr) return false;
  }
  return true;
}

}  // namespace gated_mlp
