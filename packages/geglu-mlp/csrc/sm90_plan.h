// SPDX-License-Identifier: Apache-2.0
//
// Sm90_plan: shape and device facts -> which sm_90a kernel runs each GEMM, with which grid; or why
// none does and the portable kernels of plan.h run. Pure, as plan.h. The constants of the time
// model are fitted to bench/results/nvidia-h200-gemms.json; geglu_mlp_plan checks its choices
// against that file.
#pragma once

#include "plan.h"
#include "sm90_arguments.h"

namespace geglu_mlp {

enum class Sm90Family : int32_t {
  kPrefill,  // large M; a row's bits do not depend on M
  kDecode,   // M up to kDecodeRows; k is split as M asks for
  kStream,   // M up to one tile
};

// What orders the choices, in microseconds and terabytes a second. Fitted by random search so that
// the choices lose least against the best of the measured ones; the single constants are no
// measurements. What all choices cost, a launch, is not in them.
struct Sm90Step {
  int64_t rows;
  int64_t columns;
  double time;
};
struct Sm90Times {
  Sm90Step prefill[9] = {{128, 96, 0.3174},  {128, 112, 0.3381}, {128, 128, 0.361},
                         {128, 144, 0.3821}, {128, 160, 0.4296}, {128, 192, 0.5017},
                         {128, 224, 0.6247}, {128, 256, 0.6847}, {256, 192, 0.973}};
  double prefill_epilogue = 3.869;  // of 192 columns
  double memory_rate = 2.985;
  double memory_latency = 1.646;  // of what is in the ring of a decode CTA
  double cache_rate = 9.131;
  double decode_step = 0.2706;  // least time of one stage of 64 rows
  double decode_split = 2.271;
  double decode_row = 0.02286;
  double decode_alone =
      0.9506;  // of CTAs that have their multiprocessor alone, a share of the time
  // Of the CTAs that fit, where they come in clusters of 4 or 8: with one and with two CTAs on a
  // multiprocessor.
  double cluster_share_one = 0.8863;
  double cluster_share_two = 0.8419;
  double stream_rate = 4.138;   // of memory
  double stream_step = 0.1054;  // least time of one block of k
  double stream_end_gated = 4.093;
  double stream_end_plain = 0.1669;
};
inline constexpr Sm90Times kSm90Times = {};

constexpr double prefill_step(int64_t rows, int64_t columns) {
  for (const Sm90Step& step : kSm90Times.prefill) {
    if (step.rows == rows && step.columns == columns) return step.time;
  }
  return 0;
}

struct Sm90Tile {
  Sm90Family family;
  const char* name;
  int64_t rows;     // of a CTA
  int64_t columns;  // of accumulators
  uint32_t threads;
  uint32_t shared_bytes;
  int64_t ctas = 1;        // that share a multiprocessor
  int64_t store_rows = 0;  // prefill: of a box of the output
  double step = 0;         // prefill: microseconds of one block of k
  int64_t ring_bytes = 0;  // decode: of the weights in a CTA's ring
};

template <class T>
constexpr Sm90Tile prefill_tile(const char* name) {
  Sm90Tile tile = {Sm90Family::kPrefill, name, T::kRows, T::kColumns, T::kThreads, T::kSharedBytes};
  tile.store_rows = T::kWarpgroupRows;
  tile.step = prefill_step(T::kRows, T::kColumns);
  return tile;
}
template <class T>
constexpr Sm90Tile decode_tile(const char* name) {
  Sm90Tile tile = {Sm90Family::kDecode, name,        T::kTokens,
                   T::kColumns,         T::kThreads, T::kSharedBytes};
  tile.ctas = T::kCtas;
  tile.ring_bytes = T::kStages * T::kBBytes;
  return tile;
}
template <class T>
constexpr Sm90Tile stream_tile(const char* name) {
  return {Sm90Family::kStream, name, T::kTokens, T::kColumns, T::kThreads, T::kSharedBytes};
}

// A tile is known by its place in one of these.
#define KILN_TILE(family, shape, Tile) family##_tile<Tile>(#family "_" #shape),
inline constexpr Sm90Tile kGatedTiles[] = {KILN_GATED_TILES(KILN_TILE)};
inline constexpr Sm90Tile kPlainTiles[] = {KILN_PLAIN_TILES(KILN_TILE)};
#undef KILN_TILE
inline constexpr int kGatedTileCount = sizeof(kGatedTiles) / sizeof(kGatedTiles[0]);
inline constexpr int kPlainTileCount = sizeof(kPlainTiles) / sizeof(kPlainTiles[0]);

constexpr int sm90_tile_count(bool gated) {
  return gated ? kGatedTileCount : kPlainTileCount;
}
constexpr const Sm90Tile& sm90_tile(bool gated, int tile) {
  return gated ? kGatedTiles[tile] : kPlainTiles[tile];
}

// Kernel numbers follow those of plan.h: for gated bf16, gated f16, plain bf16 and plain f16 the
// tiles in their order.
inline constexpr int kSm90Kernels = 2 * (kGatedTileCount + kPlainTileCount);
inline constexpr int kAllKernels = kKernels + kSm90Kernels;

constexpr int sm90_kernel(bool gated, Element element, int tile) {
  const int half = element == Element::kFloat16 ? 1 : 0;
  return kKernels + (gated ? 0 : 2 * kGatedTileCount) + half * sm90_tile_count(gated) + tile;
}

// Above this, only prefill kernels run, and a row's bits do not depend on M.
inline constexpr int64_t kDecodeRows = 512;

// What a plan is free to choose.
struct Sm90Choice {
  int tile = 0;
  int64_t parts = 1;    // decode: of k
  bool across = false;  // prefill: the CTAs of a cluster lie side by side, not below each other
  bool operator==(const Sm90Choice&) const = default;
};

struct Sm90Plan {
  const char* refused = nullptr;  // why the portable kernels run instead; nothing below then counts
  Sm90Choice choice;
  int kernel = 0;
  uint32_t cluster = 1;  // decode: the parts of k
  uint32_t tiles_m = 0;
  uint32_t tiles_n = 0;
  uint32_t panel = 1;
  uint32_t ctas = 0;
  uint32_t a_rows = 0;    // of a box of a
  uint32_t b_rows = 0;    // of a box of b0 and of b1
  uint32_t out_rows = 0;  // of a box of out; 0: the kernel writes by itself
  uint32_t out_columns = 0;
  bool operator==(const Sm90Plan&) const = default;
};

constexpr double sm90_ceil(double value) {
  const auto whole = static_cast<double>(static_cast<int64_t>(value));
  return whole < value ? whole + 1 : whole;
}

// Of the output, in tiles of a prefill cluster's two CTAs.
struct Sm90ClusterTiles {
  int64_t m;
  int64_t n;
};
constexpr Sm90ClusterTiles cluster_tiles(const GemmShape& shape, const Sm90Tile& tile,
                                         bool across) {
  const int64_t out_columns = shape.gated ? tile.columns / 2 : tile.columns;
  return {tiles_of(shape.m, tile.rows * (across ? 1 : 2)),
          tiles_of(shape.n, out_columns * (across ? 2 : 1))};
}

constexpr double prefill_time(const GemmShape& shape, const Sm90Tile& tile, bool across,
                              double weights, const GpuFacts& gpu) {
  const Sm90Times& t = kSm90Times;
  const double memory_time = weights / t.memory_rate * 1e-6;
  const Sm90ClusterTiles grid = cluster_tiles(shape, tile, across);
  const double tiles = static_cast<double>(grid.m) * static_cast<double>(grid.n);
  const int clusters = gpu.multiprocessors / 2;
  const double waves = sm90_ceil(tiles / clusters);
  const double work = waves * static_cast<double>(tiles_of(shape.k, kDepth)) * tile.step;
  return (work > memory_time ? work : memory_time) +
         t.prefill_epilogue * static_cast<double>(tile.columns) / 192;
}

constexpr double decode_time(const GemmShape& shape, const Sm90Tile& tile, int64_t parts,
                             double weights, const GpuFacts& gpu) {
  const Sm90Times& t = kSm90Times;
  const int64_t out_columns = shape.gated ? tile.columns / 2 : tile.columns;
  const auto ctas =
      static_cast<double>(tiles_of(shape.m, tile.rows) * tiles_of(shape.n, out_columns) * parts);
  const double share = tile.ctas == 1 ? t.cluster_share_one : t.cluster_share_two;
  const double slots = static_cast<double>(static_cast<int64_t>(
      static_cast<double>(gpu.multiprocessors * tile.ctas) * (parts >= 4 ? share : 1)));
  const double waves = sm90_ceil(ctas / slots);
  const double at_once = ctas < slots ? ctas : slots;
  const double rate = static_cast<double>(tile.ring_bytes) * at_once / t.memory_latency * 1e-6;
  const double memory_time = weights / (rate < t.memory_rate ? rate : t.memory_rate) * 1e-6;
  const auto rows = static_cast<double>(shape.m < tile.rows ? shape.m : tile.rows);
  const auto columns = static_cast<double>(tile.columns);
  // One stage: its bytes through the L2 cache, or what a stage takes however small it is.
  const double move = (rows + columns) * kDepth * kHalfBytes * at_once / t.cache_rate * 1e-6;
  const double root = tile.rows == 64 ? 1 : 1.414;
  const double least = t.decode_step * root * (tile.columns > 64 ? 1 : 0.8);
  const double step = move > least ? move : least;
  const double work =
      waves * static_cast<double>(tiles_of(tiles_of(shape.k, kDepth), parts)) * step;
  const double end = (parts > 1 ? t.decode_split : 0) + t.decode_row * rows * columns / 128;
  const double factor = tile.ctas == 1 ? t.decode_alone : 1;
  return ((work > memory_time ? work : memory_time) + waves * end) * factor;
}

constexpr double stream_time(const GemmShape& shape, const Sm90Tile& tile, double weights) {
  const Sm90Times& t = kSm90Times;
  const int64_t out_columns = shape.gated ? tile.columns / 2 : tile.columns;
  const auto ctas = static_cast<double>(tiles_of(shape.n, out_columns));
  const auto rows = static_cast<double>(tiles_of(shape.m, 8) * 8);
  const auto columns = static_cast<double>(tile.columns);
  const double move = (rows + columns) * kDepth * kHalfBytes * ctas / t.cache_rate * 1e-6;
  const double step = move > t.stream_step ? move : t.stream_step;
  const double work = static_cast<double>(tiles_of(shape.k, kDepth)) * step;
  const double memory_time = weights / t.stream_rate * 1e-6;
  return (work > memory_time ? work : memory_time) +
         (shape.gated ? t.stream_end_gated : t.stream_end_plain);
}

// The expected time of one choice; tests and the search use the same.
constexpr double sm90_time(const GemmShape& shape, const Sm90Choice& choice, const GpuFacts& gpu) {
  const Sm90Tile& facts = sm90_tile(shape.gated, choice.tile);
  const double weights = static_cast<double>(shape.n) * static_cast<double>(shape.k) * kHalfBytes *
                         (shape.gated ? 2 : 1);
  if (facts.family == Sm90Family::kPrefill)
    return prefill_time(shape, facts, choice.across, weights, gpu);
  if (facts.family == Sm90Family::kStream) return stream_time(shape, facts, weights);
  return decode_time(shape, facts, choice.parts, weights, gpu);
}

// The narrowest stream tile that needs one wave; -1: all need more.
constexpr int stream_tile_of(bool gated, int64_t n, const GpuFacts& gpu) {
  for (int tile = 0; tile < sm90_tile_count(gated); ++tile) {
    const Sm90Tile& facts = sm90_tile(gated, tile);
    if (facts.family != Sm90Family::kStream) continue;
    if (tiles_of(n, gated ? facts.columns / 2 : facts.columns) <= gpu.multiprocessors) return tile;
  }
  return -1;
}

constexpr bool can_lie_across(const Sm90Tile& tile) {
  return tile.family == Sm90Family::kPrefill && tile.rows == 128;
}

// Calls visit for each choice that a shape has.
template <class Visit>
constexpr void each_sm90_choice(const GemmShape& shape, const GpuFacts& gpu, Visit&& visit) {
  const bool one_tile = shape.m <= 64;  // of 64 tokens
  for (int tile = 0; tile < sm90_tile_count(shape.gated); ++tile) {
    const Sm90Tile& facts = sm90_tile(shape.gated, tile);
    if (facts.family == Sm90Family::kPrefill && !one_tile) {
      visit(Sm90Choice{tile, 1, false});
      // Where that spares a CTA in two of the last row of tiles. Narrow tiles are up to a tenth
      // faster so at other M too, but wide ones are faster still.
      if (can_lie_across(facts) && tiles_of(shape.m, facts.rows) % 2 == 1) {
        visit(Sm90Choice{tile, 1, true});
      }
    }
    if (facts.family == Sm90Family::kDecode && shape.m <= kDecodeRows &&
        (facts.rows == 64 ? shape.m <= 192 : !one_tile)) {
      for (int64_t parts = 1; parts <= 8; parts *= 2) visit(Sm90Choice{tile, parts, false});
    }
  }
  const int stream = one_tile ? stream_tile_of(shape.gated, shape.n, gpu) : -1;
  if (stream >= 0) visit(Sm90Choice{stream, 1, false});
}

// Null, or why the fast kernels cannot take this GEMM. `mapped`: every tensor is 16-byte aligned.
constexpr const char* sm90_refusal(const GemmShape& shape, bool mapped, const GpuFacts& gpu) {
  if (gpu.multiprocessors < 2) return "a cluster needs two multiprocessors";
  if (shape.k <= 0) return "k is 0";
  if (shape.k % 8 != 0 || shape.n % 8 != 0) return "D or H is not a multiple of 8";
  if (!mapped) return "a tensor is not 16-byte aligned";
  // Coordinates of the copy engine are 32-bit, and a tile may reach past the end.
  constexpr int64_t kMost = INT32_MAX - 4096;
  if (shape.m > kMost || shape.n > kMost || shape.k > kMost) return "an extent is near 2^31";
  const int64_t tiles_n = tiles_of(shape.n, 32);  // of the smallest tile; 8 is the most parts of k
  if (tiles_n > 0 && tiles_of(shape.m, 64) > INT32_MAX / 8 / tiles_n)
    return "there are too many tiles";
  return nullptr;
}

constexpr Sm90Choice choose_sm90(const GemmShape& shape, const GpuFacts& gpu) {
  Sm90Choice best;
  double best_time = 0;
  each_sm90_choice(shape, gpu, [&](const Sm90Choice& choice) {
    const double time = sm90_time(shape, choice, gpu);
    if (best_time != 0 && time >= best_time) return;
    best_time = time;
    best = choice;
  });
  return best;
}

constexpr Sm90Plan plan_sm90(const GemmShape& shape, bool mapped, const GpuFacts& gpu) {
  Sm90Plan plan;
  plan.refused = sm90_refusal(shape, mapped, gpu);
  if (plan.refused != nullptr || shape.m <= 0 || shape.n <= 0) return plan;
  plan.choice = choose_sm90(shape, gpu);
  const auto [tile_number, parts, across] = plan.choice;
  const Sm90Tile& tile = sm90_tile(shape.gated, tile_number);
  const int64_t out_columns = shape.gated ? tile.columns / 2 : tile.columns;
  plan.kernel = sm90_kernel(shape.gated, shape.element, tile_number);
  if (tile.family == Sm90Family::kPrefill) {
    const Sm90ClusterTiles grid = cluster_tiles(shape, tile, across);
    plan.cluster = 2;
    plan.tiles_m = static_cast<uint32_t>(grid.m);
    plan.tiles_n = static_cast<uint32_t>(grid.n);
    // As in plan_gemm: the tiles of a wave then read the fewest distinct rows. A tile across is
    // twice as wide.
    const uint32_t widest = across ? 4 : 8;
    plan.panel = plan.tiles_n < widest ? plan.tiles_n : widest;
    const uint32_t tiles = plan.tiles_m * plan.tiles_n;
    const auto clusters = static_cast<uint32_t>(gpu.multiprocessors / 2);
    plan.ctas = 2 * (tiles < clusters ? tiles : clusters);
    plan.a_rows = static_cast<uint32_t>(across ? tile.rows / 2 : tile.rows);
    plan.b_rows = static_cast<uint32_t>(tile.columns / 2);
    plan.out_rows = static_cast<uint32_t>(tile.store_rows);
    plan.out_columns = static_cast<uint32_t>(panel_columns(static_cast<int>(out_columns)));
  } else {
    plan.cluster = static_cast<uint32_t>(parts);
    plan.tiles_m = static_cast<uint32_t>(tiles_of(shape.m, tile.rows));
    plan.tiles_n = static_cast<uint32_t>(tiles_of(shape.n, out_columns));
    plan.ctas = plan.tiles_m * plan.tiles_n * plan.cluster;
    const int64_t rows = tiles_of(shape.m, 8) * 8;
    plan.a_rows = static_cast<uint32_t>(rows < tile.rows ? rows : tile.rows);
    plan.b_rows = static_cast<uint32_t>(out_columns);
  }
  return plan;
}

inline int describe(const Sm90Plan& plan, bool gated, char* text, size_t size) {
  if (plan.refused != nullptr) return snprintf(text, size, "portable kernels: %s", plan.refused);
  return snprintf(text, size, "%s%s: kernel %d, %u x %u tiles, panel %u, %u CTAs in clusters of %u",
                  sm90_tile(gated, plan.choice.tile).name, plan.choice.across ? " across" : "",
                  plan.kernel, plan.tiles_m, plan.tiles_n, plan.panel, plan.ctas, plan.cluster);
}

}  // namespace geglu_mlp
