// SPDX-License-Identifier: Apache-2.0
//
// Sm90_plan: shape and device facts -> which sm_90a kernel runs each GEMM, with which grid; or why
// none does and the portable kernels of plan.h run. Pure, as plan.h. It chooses by a time model,
// whose constants sm90_times.h has.
#pragma once

#include "host/plan.h"
#include "sm90/sm90_arguments.h"
#include "sm90/sm90_times.h"

namespace gated_mlp {

enum class Sm90Family : int32_t {
  kPrefill,  // large M; k is not split
  kDecode,   // M up to kDecodeRows, of down up to kDownDecodeRows; k is split as M asks for
  kStream,   // M up to one tile
};

struct Sm90Tile {
  Sm90Family family;
  const char* name;
  int64_t rows;     // of a CTA
  int64_t columns;  // of accumulators
  uint32_t threads;
  uint32_t shared_bytes;
  int64_t ctas = 1;          // that share a multiprocessor
  int64_t store_rows = 0;    // prefill, not swapped: of a box of the output
  double step = 0;           // prefill, decode: of a block of k
  bool swapped = false;      // any multiple of 8 rows
  bool cooperative = false;  // prefill
  int64_t most_parts = 1;    // decode: of k, whose sums a CTA has room for
  Sm90Off off = {};
};

template <class T>
constexpr double prefill_step = kSm90Times.prefill_step[!T::kPingPong ? 1
                                                        : T::kSwapped ? 2
                                                                      : 0] +
                                kSm90Times.prefill_block* T::kRows* T::kColumns / (128 * 128);

// What a tile of every family has.
template <class T>
constexpr Sm90Tile any_tile(Sm90Family family, const char* name, int64_t rows) {
  Sm90Tile tile = {family, name, rows, T::kColumns, T::kThreads, T::kSharedBytes};
  tile.off = off_of(name);
  return tile;
}
template <class T>
constexpr Sm90Tile prefill_tile(const char* name) {
  Sm90Tile tile = any_tile<T>(Sm90Family::kPrefill, name, T::kRows);
  tile.store_rows = T::kWarpgroupRows;
  tile.cooperative = !T::kPingPong;
  tile.step = prefill_step<T>;
  return tile;
}
template <class T>
constexpr Sm90Tile swapped_tile(const char* name) {
  Sm90Tile tile = any_tile<T>(Sm90Family::kPrefill, name, T::kRows);
  tile.swapped = true;
  tile.cooperative = !T::kPingPong;
  tile.step = prefill_step<T>;
  return tile;
}
template <class T>
constexpr Sm90Tile decode_tile(const char* name) {
  constexpr double kStep = step_of(kSm90Times.decode, T::kTokens, T::kColumns);
  static_assert(kStep > 0, "kSm90Times.decode lacks this tile");
  Sm90Tile tile = any_tile<T>(Sm90Family::kDecode, name, T::kTokens);
  tile.ctas = T::kCtas;
  tile.swapped = T::kSwapped;
  tile.step = kStep;
  while (tile.most_parts < kMostParts && T::has_room(static_cast<int>(tile.most_parts) + 1)) {
    ++tile.most_parts;
  }
  return tile;
}
template <class T>
constexpr Sm90Tile stream_tile(const char* name) {
  return any_tile<T>(Sm90Family::kStream, name, T::kTokens);
}

// A tile is known by its place in one of these.
#define KILN_TILE(family, shape, Tile) family##_tile<Tile>(#family "_" #shape),
#define KILN_SWAPPED(tokens, columns) \
  swapped_tile<SwappedTile<(tokens), (columns)>>("swapped_" #tokens "x" #columns),
inline constexpr Sm90Tile kGatedTiles[] = {KILN_SWAPPED_TILES(KILN_SWAPPED)
                                               KILN_GATED_TILES(KILN_TILE)};
inline constexpr Sm90Tile kPlainTiles[] = {KILN_SWAPPED_TILES(KILN_SWAPPED)
                                               KILN_PLAIN_TILES(KILN_TILE)};
#undef KILN_TILE
#undef KILN_SWAPPED
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
// The swapped tiles, which are the first ones, have one kernel for each number of columns.
constexpr int swapped_tile_count() {
  int count = 0;
  while (kGatedTiles[count].swapped) ++count;
  return count;
}
inline constexpr int kSwappedKernels = 2;
constexpr int sm90_kernel_count(bool gated) {
  return sm90_tile_count(gated) - swapped_tile_count() + kSwappedKernels;
}
inline constexpr int kSm90Kernels = 2 * (sm90_kernel_count(true) + sm90_kernel_count(false));

constexpr int sm90_kernel(bool gated, Element element, int tile) {
  const int half = element == Element::kFloat16 ? 1 : 0;
  const int place = tile < swapped_tile_count() ? (sm90_tile(gated, tile).cooperative ? 1 : 0)
                                                : tile - swapped_tile_count() + kSwappedKernels;
  return kKernels + (gated ? 0 : 2 * sm90_kernel_count(true)) + half * sm90_kernel_count(gated) +
         place;
}

// Those of gated tiles that keep both products follow: bf16, then f16.
#define KILN_NAME(family, shape, Tile) #family "_" #shape,
inline constexpr const char* kKeepingTiles[] = {KILN_KEPT_PREFILLS(KILN_NAME)};
#undef KILN_NAME
inline constexpr int kKeepingTileCount = sizeof(kKeepingTiles) / sizeof(kKeepingTiles[0]);
inline constexpr int kKeepingKernel = kKernels + kSm90Kernels;

// kKeepingTileCount: no kernel of this tile keeps them.
constexpr int keeping_place(const Sm90Tile& tile) {
  int place = 0;
  while (place < kKeepingTileCount && !same_text(kKeepingTiles[place], tile.name)) ++place;
  return place;
}
constexpr int keeping_kernel(Element element, const Sm90Tile& tile) {
  return kKeepingKernel + (element == Element::kFloat16 ? kKeepingTileCount : 0) +
         keeping_place(tile);
}

// Those of sm90_gradients.cu follow: each kind in bf16 and f16, then the sums of columns in both.
enum class GradientKind : int { kTokens, kWeights, kGated };
#define KILN_TILE(family, shape, Tile) prefill_tile<Tile>(#family "_" #shape),
inline constexpr Sm90Tile kTokenTiles[] = {KILN_TOKEN_GRADIENTS(KILN_TILE)};
inline constexpr Sm90Tile kWeightTiles[] = {KILN_WEIGHT_GRADIENTS(KILN_TILE)};
inline constexpr Sm90Tile kGatedGradientTiles[] = {KILN_GATED_GRADIENTS(KILN_TILE)};
#undef KILN_TILE
struct Sm90Tiles {
  const Sm90Tile* tiles;
  int count;
};
inline constexpr Sm90Tiles kGradientTiles[] = {  // of each kind
    {kTokenTiles, sizeof(kTokenTiles) / sizeof(Sm90Tile)},
    {kWeightTiles, sizeof(kWeightTiles) / sizeof(Sm90Tile)},
    {kGatedGradientTiles, sizeof(kGatedGradientTiles) / sizeof(Sm90Tile)}};
inline constexpr int kGradientKernel = kKeepingKernel + 2 * kKeepingTileCount;

constexpr int gradient_tile_count(GradientKind kind) {
  return kGradientTiles[static_cast<int>(kind)].count;
}
constexpr const Sm90Tile& gradient_tile(GradientKind kind, int tile) {
  return kGradientTiles[static_cast<int>(kind)].tiles[tile];
}
constexpr int gradient_kernel(GradientKind kind, Element element, int tile) {
  int first = kGradientKernel;
  for (int before = 0; before < static_cast<int>(kind); ++before) {
    first += 2 * kGradientTiles[before].count;
  }
  return first + (element == Element::kFloat16 ? gradient_tile_count(kind) : 0) + tile;
}
constexpr int column_sums_kernel(Element element) {
  return gradient_kernel(GradientKind::kGated, Element::kFloat16,
                         gradient_tile_count(GradientKind::kGated)) +
         (element == Element::kFloat16 ? 1 : 0);
}
inline constexpr int kAllKernels = column_sums_kernel(Element::kFloat16) + 1;

// Above these, the time model knows prefill kernels only: of gate and up, and of down.
inline constexpr int64_t kDecodeRows = 768;
inline constexpr int64_t kDownDecodeRows = 1152;

inline constexpr int64_t kSm90Parts[] = {1, 2, 3, 4, 6, 8};  // of k, in a decode kernel

// What a plan is free to choose.
struct Sm90Choice {
  int tile = 0;
  int64_t parts = 1;  // decode: of k
  // Prefill: the CTAs of a cluster lie side by side, not below each other. Decode: a cluster has
  // two tiles side by side.
  bool across = false;
  bool operator==(const Sm90Choice&) const = default;
};

struct Sm90Plan {
  const char* refused = nullptr;  // why the portable kernels run instead; nothing below then counts
  Sm90Choice choice;
  int kernel = 0;
  uint32_t cluster = 1;
  uint32_t tiles_m = 0;
  uint32_t tiles_n = 0;
  uint32_t panel = 1;
  uint32_t ctas = 0;
  uint32_t tile_rows = 0;
  uint32_t tail_from = 0;  // prefill: the first tile of the tail
  uint32_t pieces = 1;     // of a tile there
  uint32_t tail_rows = 0;  // of a CTA's piece
  uint32_t tail_box_rows = 0;
  uint32_t a_rows = 0;  // of a in a stage
  uint32_t a_box_rows = 0;
  uint32_t b_rows = 0;    // of a box of b0 and of b1
  uint32_t quads = 0;     // decode: of columns, or tokens, that each part adds up
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

// Of a block of k of so many rows of a and b together, to each of the CTAs, from the L2 cache.
constexpr double copy_time(double rows, double ctas, double cache_rate) {
  return rows * kDepth * kHalfBytes * ctas * (1e-6 / cache_rate);
}

// Two things that run side by side: the longer one, and of the shorter one the less, the shorter it
// is.
constexpr double together(double a, double b, double overlap) {
  const double longer = a > b ? a : b;
  const double shorter = a > b ? b : a;
  return longer + overlap * shorter * shorter / (longer + shorter);
}

inline constexpr double kClock = 1755;  // MHz

// A wave of so many clusters of a prefill kernel, whose CTAs have so many rows of a.
constexpr double wave_time(const GemmShape& shape, const Sm90Tile& tile, bool across,
                           int64_t clusters, int64_t tile_rows) {
  const Sm90Times& t = kSm90Times;
  const auto rows = static_cast<double>(tile_rows);
  const auto columns = static_cast<double>(tile.columns);
  const double outputs = rows * columns / (128 * 192);
  const double moved = across ? rows * t.prefill_shared_tokens + columns : rows + columns / 2;
  const double copies = copy_time(moved, static_cast<double>(2 * clusters), t.prefill_cache_rate);
  // Of fewer columns than rows wgmma takes as long as it reads both from shared memory.
  const double multiplied = tile_rows < 64 ? (rows + 64) / 2 : rows;
  const double spared = static_cast<double>(tile.rows) - multiplied;
  // Cycles: of wgmma, and of shared memory, where each of its 64 rows reads both operands.
  const double wide = tile.swapped ? rows : columns;
  const double high = (tile.swapped ? columns : rows) / 64;
  const double multiply = high * 4 * wide / 2;
  const double through = high * 4 * (16 + wide / 4) + rows + columns;
  const double step =
      tile.step - t.prefill_block * spared * columns / (128 * 128) +
      (tile_rows < tile.rows ? t.piece_step * columns / 128 : 0) +
      (through > multiply ? t.prefill_shared_memory * (through - multiply) / kClock : 0);
  // In ping-pong two tiles hide each other's epilogues; a cooperative one's follows its products.
  const double shown = !tile.cooperative ? 0
                                         : (shape.gated ? t.cooperative_gated[tile.swapped][across]
                                                        : t.cooperative_plain) *
                                               outputs * (shape.keeps ? t.keeping : 1);
  return static_cast<double>(tiles_of(shape.k, kDepth)) *
             together(step, copies, t.prefill_overlap) +
         shown;
}

// How the last wave of a swapped prefill kernel is cut, where it has fewer tiles than there are
// clusters.
struct Sm90Pieces {
  int64_t count = 1;  // of a tile
  int64_t rows = 0;   // of a CTA's
  double time = 0;    // of the wave
};
constexpr Sm90Pieces pieces_of(const GemmShape& shape, const Sm90Tile& tile, bool across,
                               int64_t tiles, int64_t clusters) {
  Sm90Pieces best = {1, tile.rows, wave_time(shape, tile, across, tiles, tile.rows)};
  for (int64_t count = 2; tile.swapped && tiles > 0 && count * tiles <= clusters; ++count) {
    const int64_t rows = tiles_of(tile.rows, 8 * count) * 8;
    if (rows < kFewestPiece) break;
    const double time =
        wave_time(shape, tile, across, count * tiles, rows) + kSm90Times.cut_wave[tile.cooperative];
    if (time < best.time) best = {count, rows, time};
  }
  return best;
}

// With what the model is off by, all of it as shares of the time but for that of waves.
constexpr double with_offs(double time, bool gated, int family, double waves, double off) {
  return (time + kSm90Times.wave[gated][family] * waves) * (1 + off);
}

// What a prefill tile is off by in a product of this time, of which down has a third of a
// forward's.
constexpr double prefill_off(const Sm90Tile& tile, bool gated, bool across, double time) {
  const Sm90Times& t = kSm90Times;
  const double forward = time * (gated ? 1.5 : 3);
  const double part = (forward - t.long_from) / (t.long_all - t.long_from);
  const double share = part < 0 ? 0 : part > 1 ? 1 : part;
  return (1 - share) * tile.off.of[gated][across] + share * t.long_off[gated][tile.swapped][across];
}

constexpr double prefill_time(const GemmShape& shape, const Sm90Tile& tile, bool across,
                              double weights, const GpuFacts& gpu) {
  const Sm90Times& t = kSm90Times;
  const Sm90ClusterTiles grid = cluster_tiles(shape, tile, across);
  const int64_t tiles = grid.m * grid.n;
  const int64_t clusters = gpu.multiprocessors / 2;
  const int64_t full = tiles / clusters;  // waves
  const int64_t last = tiles % clusters;
  double work = 0;
  if (full > 0) {
    work += static_cast<double>(full) * wave_time(shape, tile, across, clusters, tile.rows);
  }
  double off = tile.cooperative ? 0 : t.ping_pong_off[shape.gated][tile.swapped][across];
  double idle = 0;
  if (last > 0) {
    const Sm90Pieces pieces = pieces_of(shape, tile, across, last, clusters);
    work += pieces.time;
    if (pieces.count > 1) off += t.pieces_off / static_cast<double>(full + 1);
    if (full == 0) {
      idle = 1 - static_cast<double>(last * pieces.count) / static_cast<double>(clusters);
      if (!tile.cooperative) off += t.single[tile.swapped ? 2 : shape.gated ? 1 : 0];
    }
  }
  const double outputs = static_cast<double>(tile.rows * tile.columns) / (128 * 192);
  const int family = tile.swapped ? 1 : 0;
  const double memory_time =
      weights * (1e-6 / t.prefill_memory_rate) * (1 + t.idle_memory[family] * idle);
  const double time = together(work, memory_time, t.prefill_memory_overlap) +
                      (shape.gated ? t.prefill_start_gated + t.prefill_end_gated * outputs : 0);
  const int64_t rows = tiles_of(shape.m, tile.rows) * tile.rows;
  const double outside =
      tile.swapped ? 0 : static_cast<double>(rows - shape.m) / static_cast<double>(rows);
  return with_offs(time * (1 + off), shape.gated, family, static_cast<double>(full + 1),
                   prefill_off(tile, shape.gated, across, time) +
                       t.idle_off[shape.gated][family] * idle +
                       t.outside_off[shape.gated] * outside);
}

// How many CTAs in clusters of this size run at once. An H200 takes 39 clusters of 3, 30 of 4, 17
// of 6 and 15 of 8 (cuOccupancyMaxActiveClusters), where a CTA has its multiprocessor alone. Where
// two share one, twice as many clusters of 3: the 80 of 5120 columns take a second wave.
constexpr double decode_slots(const Sm90Tile& tile, int64_t cluster, const GpuFacts& gpu) {
  const auto all = static_cast<double>(gpu.multiprocessors * tile.ctas);
  if (cluster <= 2) return all;
  double share = cluster == 3 ? 117 / 132.0 : kSm90Times.cluster_share_two;
  if (tile.ctas == 1 && cluster > 3) share = (cluster == 6 ? 102 : 120) / 132.0;
  return static_cast<double>(static_cast<int64_t>(all * share));
}

constexpr double decode_time(const GemmShape& shape, const Sm90Tile& tile, const Sm90Choice& choice,
                             double weights, const GpuFacts& gpu) {
  const Sm90Times& t = kSm90Times;
  const int64_t out_columns = shape.gated ? tile.columns / 2 : tile.columns;
  const int64_t sides = choice.across ? 2 : 1;
  const auto ctas = static_cast<double>(
      tiles_of(shape.m, tile.rows) * tiles_of(shape.n, out_columns * sides) * sides * choice.parts);
  const double slots = decode_slots(tile, choice.parts * sides, gpu);
  const auto all_slots = static_cast<double>(gpu.multiprocessors * tile.ctas);
  const double waves = sm90_ceil(ctas / slots);
  const double at_once = ctas < slots ? ctas : slots;
  const double idle = ctas < all_slots ? 1 - ctas / all_slots : 0;
  const double memory_time = weights * (1e-6 / t.memory_rate) * (1 + t.idle_memory[2] * idle);
  const auto rows = static_cast<double>(shape.m < tile.rows ? shape.m : tile.rows);
  const auto columns = static_cast<double>(tile.columns);
  const double moved = (choice.across ? rows / 2 : rows) + columns;
  const double step =
      together(tile.step, copy_time(moved, at_once, t.cache_rate), t.decode_overlap);
  const double work =
      waves * static_cast<double>(tiles_of(tiles_of(shape.k, kDepth), choice.parts)) * step;
  const auto parts = static_cast<double>(choice.parts);
  const double outputs = rows * columns / 128;
  const double split = t.decode_part * parts + t.decode_push * outputs * (1 - 1 / parts);
  const double end = t.decode_end * outputs + (choice.parts > 1 ? split : 0);
  const double time = together(work, memory_time, t.memory_overlap) + waves * end +
                      (shape.gated ? t.decode_start_gated : 0) +
                      (choice.across ? t.decode_across : 0);
  double off = t.parts_off[choice.parts];
  if (shape.m > 64 && !shape.gated) {
    off += choice.across && choice.parts == 1 ? t.whole_across_off : t.decode_off;
    if (ctas > all_slots) off += t.decode_waves_off;
  }
  return with_offs(time * (1 + off) + t.part[shape.gated] * parts / 4, shape.gated, 2, waves,
                   tile.off.of[shape.gated][choice.across] + t.idle_off[shape.gated][2] * idle);
}

constexpr double stream_time(const GemmShape& shape, const Sm90Tile& tile, double weights) {
  const Sm90Times& t = kSm90Times;
  const int64_t out_columns = shape.gated ? tile.columns / 2 : tile.columns;
  const auto ctas = static_cast<double>(tiles_of(shape.n, out_columns));
  const auto moved = static_cast<double>(tiles_of(shape.m, 8) * 8 + tile.columns);
  const auto blocks = static_cast<double>(tiles_of(shape.k, kDepth));
  const double work = blocks * copy_time(moved, ctas, t.stream_cache_rate);
  const double memory_time = weights * (1e-6 / t.stream_rate);
  return ((work > memory_time ? work : memory_time) +
          (shape.gated ? t.stream_end_gated : t.stream_end_plain)) *
         (1 + tile.off.of[shape.gated][0]);
}

// The expected time of one choice; tests and the search use the same.
constexpr double sm90_time(const GemmShape& shape, const Sm90Choice& choice, const GpuFacts& gpu) {
  const Sm90Tile& facts = sm90_tile(shape.gated, choice.tile);
  const double weights = static_cast<double>(shape.n) * static_cast<double>(shape.k) * kHalfBytes *
                         (shape.gated ? 2 : 1);
  if (facts.family == Sm90Family::kPrefill)
    return prefill_time(shape, facts, choice.across, weights, gpu);
  if (facts.family == Sm90Family::kStream) return stream_time(shape, facts, weights);
  return decode_time(shape, facts, choice, weights, gpu);
}

// The narrowest stream tile that needs one wave; -1: all need more. Of a small share of the
// weights, nearly all of which is in flight at once anyway, one in little more than half of the
// memory.
constexpr int stream_tile_of(bool gated, int64_t n, int64_t k, const GpuFacts& gpu) {
  constexpr int64_t kMostShare = 128 << 10;
  for (int tile = 0; tile < sm90_tile_count(gated); ++tile) {
    const Sm90Tile& facts = sm90_tile(gated, tile);
    if (facts.family != Sm90Family::kStream) continue;
    const bool small = facts.shared_bytes < kSharedMost;
    if (small && facts.columns * k * kHalfBytes > kMostShare) continue;
    if (tiles_of(n, gated ? facts.columns / 2 : facts.columns) <= gpu.multiprocessors) return tile;
  }
  return -1;
}

// Down of few rows and small weights: most of its time is the way of the first bytes and of the
// last, which the model does not know.
constexpr bool is_small_down(const GemmShape& shape) {
  return !shape.gated && !shape.invariant && shape.m <= 64 && shape.k >= 1024 &&
         shape.n * shape.k * kHalfBytes <= 8 << 20;
}

// It has k in as many parts as there may be, while a part's sums are few. Of more rows their way
// through a cluster's memory takes what the parts spare.
constexpr bool splits_most(const GemmShape& shape) {
  return is_small_down(shape) && shape.m <= 32;
}

// Whether this stream tile is faster than all other kernels wherever they were measured: a small
// one, and the narrowest of small weights.
constexpr bool streams_alone(const GemmShape& shape, const Sm90Tile& tile) {
  return tile.shared_bytes < kSharedMost || (is_small_down(shape) && tile.columns == 8);
}

constexpr bool can_lie_across(const Sm90Tile& tile) {
  return tile.family == Sm90Family::kPrefill && (tile.rows == 128 || tile.swapped);
}

// Whether a decode tile suits the rows: one of 192 or 256 has less than 64 rows of zeros, swapped
// ones less than 32.
constexpr bool decode_offers(const GemmShape& shape, const Sm90Tile& tile) {
  if (tile.swapped) return tiles_of(shape.m, tile.rows) * tile.rows - shape.m < 32;
  if (tile.rows == 64) return shape.m <= 192;
  return shape.m > (tile.rows == 128 ? 64 : tile.rows - 64);
}

// Whether no lower swapped tile needs as few rows of tiles.
constexpr bool swapped_offers(const GemmShape& shape, const Sm90Tile& tile) {
  if (shape.invariant) return false;
  return tile.rows == kFewestSwapped ||
         tiles_of(shape.m, tile.rows) < tiles_of(shape.m, tile.rows - 8);
}

// Calls visit for each choice that a shape has. Every sum of an invariant shape is one accumulator
// that runs through k in order: that gives the same bits in each tile of each family, but for
// swapped gated ones, which share a reciprocal between other outputs.
template <class Visit>
constexpr void each_sm90_choice(const GemmShape& shape, const GpuFacts& gpu, Visit&& visit) {
  const bool one_tile = shape.m <= 64;  // of 64 tokens
  const bool streams = one_tile && !shape.keeps && !splits_most(shape);
  const int stream = streams ? stream_tile_of(shape.gated, shape.n, shape.k, gpu) : -1;
  if (stream >= 0 && streams_alone(shape, sm90_tile(shape.gated, stream))) {
    visit(Sm90Choice{stream, 1, false});
    return;
  }
  for (int tile = 0; tile < sm90_tile_count(shape.gated); ++tile) {
    const Sm90Tile& facts = sm90_tile(shape.gated, tile);
    if (shape.keeps) {
      if (keeping_place(facts) < kKeepingTileCount) visit(Sm90Choice{tile, 1, false});
      continue;
    }
    if (facts.family == Sm90Family::kPrefill && !one_tile &&
        (!facts.swapped || swapped_offers(shape, facts))) {
      visit(Sm90Choice{tile, 1, false});
      // Where that spares a CTA in two of the last row of tiles. Narrow tiles are up to a tenth
      // faster so at other M too, but wide ones are faster still.
      if (facts.swapped || (can_lie_across(facts) && tiles_of(shape.m, facts.rows) % 2 == 1)) {
        visit(Sm90Choice{tile, 1, true});
      }
    }
    if (facts.family == Sm90Family::kDecode &&
        shape.m <= (shape.gated ? kDecodeRows : kDownDecodeRows) && decode_offers(shape, facts)) {
      for (const int64_t parts : kSm90Parts) {
        if (parts > (shape.invariant ? 1 : facts.most_parts)) break;
        if (parts == 1 && facts.swapped) continue;  // its sums go through a cluster's memory
        if (splits_most(shape) && (facts.rows != 64 || parts < kMostParts)) continue;
        visit(Sm90Choice{tile, parts, false});
        if (!one_tile && parts <= 4) visit(Sm90Choice{tile, parts, true});
      }
    }
  }
  if (stream >= 0) visit(Sm90Choice{stream, 1, false});
}

// Null, or why the fast kernels cannot take this GEMM. `mapped`: every tensor is 16-byte aligned.
constexpr const char* sm90_refusal(const GemmShape& shape, bool mapped, const GpuFacts& gpu) {
  if (gpu.multiprocessors < 2) return "a cluster needs two multiprocessors";
  if (shape.adds) return "it adds to what is there";
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

// Null, or why the kernels cannot compute this shape by this choice, which each_sm90_choice() need
// not visit.
constexpr const char* why_not_sm90(const GemmShape& shape, const Sm90Choice& choice) {
  const Sm90Tile& tile = sm90_tile(shape.gated, choice.tile);
  const bool splits = choice.parts > 1;
  if (shape.keeps && keeping_place(tile) == kKeepingTileCount) return "it keeps no products";
  if (shape.invariant && (splits || tile.swapped)) return "its bits depend on the number of rows";
  if (tile.family != Sm90Family::kDecode && splits) return "it does not split k";
  if (tile.family == Sm90Family::kPrefill && choice.across && !can_lie_across(tile))
    return "it does not lie across";
  if (tile.family == Sm90Family::kStream && (choice.across || shape.m > tile.rows))
    return "it takes up to 64 rows, and does not lie across";
  if (tile.family != Sm90Family::kDecode) return nullptr;
  if (choice.parts > tile.most_parts) return "a CTA has no room for the sums of so many parts";
  if (tile.swapped && !splits) return "it only splits k";
  if (choice.across && choice.parts > 4) return "a cluster has eight CTAs at most";
  return nullptr;
}

// That of the least expected time.
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

// How many tiles side by side the clusters walk down before they go on to the next ones: as many as
// have 12 MiB of weights, which the L2 cache then holds beside what passes through it. More tiles
// would read weights again and again; fewer, the other matrix, which comes from memory once for
// each panel.
constexpr uint32_t prefill_panel(const GemmShape& shape, const Sm90Tile& tile, bool across,
                                 uint32_t tiles_n) {
  constexpr int64_t kBytes = 12 << 20;
  constexpr int64_t kFewest = 12;  // else the tiles of a wave have too many different rows
  constexpr int64_t kMost = 32;
  const int64_t fit = kBytes / (tile.columns * shape.k * kHalfBytes);
  const int64_t widest = fit < kFewest ? kFewest : fit > kMost ? kMost : fit;
  const auto panel = static_cast<uint32_t>(across ? widest / 2 : widest);
  return panel < tiles_n ? panel : tiles_n;
}

// `pinned`: the choice, where it is not the plan's.
constexpr Sm90Plan plan_sm90(const GemmShape& shape, bool mapped, const GpuFacts& gpu,
                             const Sm90Choice* pinned = nullptr) {
  Sm90Plan plan;
  plan.refused = sm90_refusal(shape, mapped, gpu);
  if (plan.refused == nullptr && pinned != nullptr) plan.refused = why_not_sm90(shape, *pinned);
  if (plan.refused != nullptr || shape.m <= 0 || shape.n <= 0) return plan;
  plan.choice = pinned != nullptr ? *pinned : choose_sm90(shape, gpu);
  const auto [tile_number, parts, across] = plan.choice;
  const Sm90Tile& tile = sm90_tile(shape.gated, tile_number);
  const int64_t out_columns = shape.gated ? tile.columns / 2 : tile.columns;
  plan.kernel = shape.keeps ? keeping_kernel(shape.element, tile)
                            : sm90_kernel(shape.gated, shape.element, tile_number);
  if (tile.family == Sm90Family::kPrefill) {
    const Sm90ClusterTiles grid = cluster_tiles(shape, tile, across);
    plan.cluster = 2;
    plan.tiles_m = static_cast<uint32_t>(grid.m);
    plan.tiles_n = static_cast<uint32_t>(grid.n);
    // Rows that are fewer than the weights and stay in the L2 cache anyway: then the clusters at
    // work share the fewest tiles of weights.
    const bool stay =
        shape.m <= (shape.gated ? 2 : 1) * shape.n && shape.m * shape.k * kHalfBytes <= 20 << 20;
    plan.panel = stay ? 1 : prefill_panel(shape, tile, across, plan.tiles_n);
    const int64_t tiles = grid.m * grid.n;
    const int64_t clusters = gpu.multiprocessors / 2;
    int64_t walked = tiles;
    const auto box_rows = [across = across](int64_t rows) {
      return static_cast<uint32_t>(across ? whole_sixteens(rows) / 2 : rows);
    };
    plan.a_box_rows = tile.swapped ? box_rows(tile.rows) : kTokenBox;
    plan.tail_from = static_cast<uint32_t>(tiles);
    if (tile.swapped) {
      plan.tile_rows = static_cast<uint32_t>(tile.rows);
      const int64_t last = tiles % clusters;
      const Sm90Pieces pieces = pieces_of(shape, tile, across, last, clusters);
      if (pieces.count > 1) {
        walked += last * (pieces.count - 1);
        plan.tail_from = static_cast<uint32_t>(tiles - last);
        plan.pieces = static_cast<uint32_t>(pieces.count);
        plan.tail_rows = static_cast<uint32_t>(pieces.rows);
        plan.tail_box_rows = box_rows(pieces.rows);
      }
    }
    plan.ctas = static_cast<uint32_t>(2 * (walked < clusters ? walked : clusters));
    plan.b_rows = static_cast<uint32_t>(tile.swapped ? 64 : tile.columns / 2);
    plan.out_rows = static_cast<uint32_t>(tile.store_rows);
    plan.out_columns = static_cast<uint32_t>(strip_columns(static_cast<int>(out_columns)));
  } else {
    const int64_t sides = across ? 2 : 1;
    plan.cluster = static_cast<uint32_t>(parts * sides);
    plan.tiles_m = static_cast<uint32_t>(tiles_of(shape.m, tile.rows));
    plan.tiles_n = static_cast<uint32_t>(tiles_of(shape.n, out_columns * sides));
    plan.ctas = plan.tiles_m * plan.tiles_n * plan.cluster;
    // The same rows for each tile, so that none is nearly empty; whole groups of the swizzle.
    const int64_t rows = tiles_of(shape.m, plan.tiles_m);
    plan.tile_rows = static_cast<uint32_t>(tiles_of(rows, 8) * 8);
    plan.a_rows = static_cast<uint32_t>(tiles_of(rows, 8 * sides) * 8 * sides);
    plan.a_box_rows = tile.family == Sm90Family::kStream
                          ? static_cast<uint32_t>(shape.m)
                          : plan.a_rows / static_cast<uint32_t>(sides);
    plan.b_rows = static_cast<uint32_t>(out_columns);
    const int64_t shared = tile.swapped ? tile.rows : out_columns;
    plan.quads =
        static_cast<uint32_t>(decode_quads(static_cast<int>(shared), static_cast<int>(parts)));
  }
  return plan;
}

// Whether down lets the kernel after it start early. In a row of layers that is gate and up again,
// whose CTAs take multiprocessors as down's leave them. A grid that fills the GPU lies there as it
// would anyway; a smaller one crowds where down ends first and leaves the rest idle, which costs
// more than the early start brings, but for the fewest rows.
constexpr bool starts_next_early(const GemmShape& gated, const Sm90Plan& plan,
                                 const GpuFacts& gpu) {
  const int64_t room = sm90_tile(true, plan.choice.tile).ctas * gpu.multiprocessors;
  return gated.m <= kFewRows || int64_t{plan.ctas} * 10 >= room * 9;
}

inline int describe(const Sm90Plan& plan, bool gated, char* text, size_t size) {
  if (plan.refused != nullptr) return snprintf(text, size, "portable kernels: %s", plan.refused);
  const int written =
      snprintf(text, size, "%s%s: kernel %d, %u x %u tiles, panel %u, %u CTAs in clusters of %u",
               sm90_tile(gated, plan.choice.tile).name, plan.choice.across ? " across" : "",
               plan.kernel, plan.tiles_m, plan.tiles_n, plan.panel, plan.ctas, plan.cluster);
  const auto used = static_cast<size_t>(written);
  if (plan.pieces == 1 || written < 0 || used >= size) return written;
  return written + snprintf(text + used, size - used, ", the last %u tiles in %u pieces",
                            plan.tiles_m * plan.tiles_n - plan.tail_from, plan.pieces);
}

}  // namespace gated_mlp
