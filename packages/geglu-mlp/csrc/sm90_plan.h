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

// Prefill kernels first. A decode tile is named by tokens x weights.
enum class Sm90Tile : int32_t {
  kPrefill128x192,
  kPrefill128x128,
  kPrefill128x256,  // plain only
  kDecode64x64,
  kDecode64x128,
  kDecode128x64,
  kDecode128x128,
};
inline constexpr int kSm90Tiles = 7;

struct Sm90TileFacts {
  const char* name;
  int64_t rows;     // of a CTA; prefill: a cluster has two of them
  int64_t columns;  // of accumulators
  uint32_t threads;
  uint32_t stages;
  uint32_t shared_bytes;
  int64_t store_rows;  // prefill: of a box of the output
  int64_t ctas;        // that share a multiprocessor
};

template <class T>
constexpr Sm90TileFacts prefill_facts(const char* name) {
  return {name,       T::kRows,        T::kColumns,       T::kThreads,
          T::kStages, T::kSharedBytes, T::kWarpgroupRows, 1};
}
template <class T>
constexpr Sm90TileFacts decode_facts(const char* name) {
  return {name, T::kTokens, T::kColumns, T::kThreads, T::kStages, T::kSharedBytes, 0, T::kCtas};
}

// The 128 x 128 decode tile differs: the gated one shares its multiprocessor, the plain one has all
// of it and twice the stages.
constexpr Sm90TileFacts sm90_tile_facts(bool gated, Sm90Tile tile) {
  switch (tile) {
    case Sm90Tile::kPrefill128x192:
      return prefill_facts<Prefill128x192>("prefill_128x192");
    case Sm90Tile::kPrefill128x128:
      return prefill_facts<Prefill128x128>("prefill_128x128");
    case Sm90Tile::kPrefill128x256:
      return prefill_facts<Prefill128x256>("prefill_128x256");
    case Sm90Tile::kDecode64x64:
      return decode_facts<Decode64x64>("decode_64x64");
    case Sm90Tile::kDecode64x128:
      return decode_facts<Decode64x128>("decode_64x128");
    case Sm90Tile::kDecode128x64:
      return decode_facts<Decode128x64>("decode_128x64");
    case Sm90Tile::kDecode128x128:
      return gated ? decode_facts<Decode128x128>("decode_128x128")
                   : decode_facts<Decode128x128Deep>("decode_128x128");
  }
  return {};
}

constexpr bool is_prefill(Sm90Tile tile) {
  return tile <= Sm90Tile::kPrefill128x256;
}

// Kernel numbers follow those of plan.h: for gated bf16, gated f16, plain bf16 and plain f16 the
// tiles in their order; the place of the gated 128 x 256 stays empty.
inline constexpr int kSm90Kernels = 4 * kSm90Tiles;
inline constexpr int kAllKernels = kKernels + kSm90Kernels;

constexpr int sm90_kernel(bool gated, Element element, Sm90Tile tile) {
  const int row = (gated ? 0 : 2) + (element == Element::kFloat16 ? 1 : 0);
  return kKernels + row * kSm90Tiles + static_cast<int>(tile);
}

// Up to here the decode kernels, which split k as M asks for, may run; above, a row's bits do not
// depend on M.
inline constexpr int64_t kDecodeRows = 512;

struct Sm90Plan {
  const char* refused = nullptr;  // why the portable kernels run instead; nothing below then counts
  Sm90Tile tile = Sm90Tile::kPrefill128x192;
  int kernel = 0;
  uint32_t cluster = 1;  // decode: the parts of k
  uint32_t tiles_m = 0;
  uint32_t tiles_n = 0;
  uint32_t panel = 1;
  uint32_t ctas = 0;
  uint32_t a_rows = 0;    // of a box of a
  uint32_t b_rows = 0;    // of a box of b0 and of b1
  uint32_t out_rows = 0;  // of a box of out; 0: the kernel writes by itself
  bool operator==(const Sm90Plan&) const = default;
};

// What orders the choices, in microseconds and terabytes a second. Fitted by random search so that
// the choices lose least against the best of the measured ones; the single constants are no
// measurements.
struct Sm90Times {
  double launch = 3.0;
  double prefill_step_128x192 = 0.4206;  // one stage of a wave
  double prefill_step_128x128 = 0.2964;
  double prefill_step_128x256 = 0.547;
  double prefill_epilogue = 6.134;  // of 192 columns
  double prefill_wave = 0.811;
  double memory_rate = 3.8;
  double memory_rate_of_cta = 0.0621;
  double cache_rate = 10.96;
  double decode_latency = 0.3141;   // least time of one stage
  double decode_multiply = 0.8855;  // of the tensor cores' nominal time
  double decode_cta = 0.2145;
  double decode_split = 1.758;
  double decode_row = 0.0403;
  double cluster_share_one =
      0.6455;  // of the CTAs that fit, where they come in clusters of 4 or 8:
  double cluster_share_two = 0.8814;  // with one and with two CTAs on a multiprocessor
};
inline constexpr Sm90Times kSm90Times = {};

constexpr double sm90_ceil(double value) {
  const auto whole = static_cast<double>(static_cast<int64_t>(value));
  return whole < value ? whole + 1 : whole;
}

constexpr double prefill_time(const GemmShape& shape, Sm90Tile tile, double weights,
                              const GpuFacts& gpu) {
  const Sm90Times& t = kSm90Times;
  const double memory_time = weights / t.memory_rate * 1e-6;
  const Sm90TileFacts facts = sm90_tile_facts(shape.gated, tile);
  const int64_t out_columns = shape.gated ? facts.columns / 2 : facts.columns;
  const auto tiles = static_cast<double>(tiles_of(shape.m, 2 * facts.rows)) *
                     static_cast<double>(tiles_of(shape.n, out_columns));
  const double waves = sm90_ceil(tiles / static_cast<double>(gpu.multiprocessors / 2));
  const double step = tile == Sm90Tile::kPrefill128x192   ? t.prefill_step_128x192
                      : tile == Sm90Tile::kPrefill128x128 ? t.prefill_step_128x128
                                                          : t.prefill_step_128x256;
  const double work = waves * static_cast<double>(tiles_of(shape.k, kDepth)) * step;
  return t.launch + (work > memory_time ? work : memory_time) +
         t.prefill_epilogue * static_cast<double>(facts.columns) / 192 +
         t.prefill_wave * (waves - 1);
}

constexpr double decode_time(const GemmShape& shape, Sm90Tile tile, int64_t parts, double weights,
                             const GpuFacts& gpu) {
  const Sm90Times& t = kSm90Times;
  const Sm90TileFacts facts = sm90_tile_facts(shape.gated, tile);
  const int64_t out_columns = shape.gated ? facts.columns / 2 : facts.columns;
  const auto ctas =
      static_cast<double>(tiles_of(shape.m, facts.rows) * tiles_of(shape.n, out_columns) * parts);
  const double share = facts.ctas == 1 ? t.cluster_share_one : t.cluster_share_two;
  const double slots = static_cast<double>(static_cast<int64_t>(
      static_cast<double>(gpu.multiprocessors * facts.ctas) * (parts >= 4 ? share : 1)));
  const double waves = sm90_ceil(ctas / slots);
  const double at_once = ctas < slots ? ctas : slots;
  const double sharing = ctas <= slots ? sm90_ceil(ctas / static_cast<double>(gpu.multiprocessors))
                                       : static_cast<double>(facts.ctas);
  const double rate = t.memory_rate_of_cta * at_once;
  const double memory_time = weights / (rate < t.memory_rate ? rate : t.memory_rate) * 1e-6;
  const auto rows = static_cast<double>(shape.m < facts.rows ? shape.m : facts.rows);
  const auto columns = static_cast<double>(facts.columns);
  // One stage: the tensor cores' 2048 multiply-adds a cycle at 1.7 GHz; its bytes through the L2
  // cache; or what a stage takes however small it is.
  const double multiply = sharing * static_cast<double>(facts.rows) * columns * kDepth /
                          (2048 * 1.7e3) * t.decode_multiply;
  const double move = (rows + columns) * 128 * at_once / t.cache_rate * 1e-6;
  const double root = facts.rows == 64 ? 1 : 1.414;
  const double latency = t.decode_latency * root * (facts.columns > 64 ? 1 : 0.8);
  double step = multiply > move ? multiply : move;
  step = step > latency ? step : latency;
  const double work =
      waves * static_cast<double>(tiles_of(tiles_of(shape.k, kDepth), parts)) * step;
  return t.launch + (work > memory_time ? work : memory_time) +
         waves * (t.decode_cta + (parts > 1 ? t.decode_split : 0) +
                  t.decode_row * rows * columns / 128);
}

// The expected time of one choice; tests and the search use the same.
constexpr double sm90_time(const GemmShape& shape, Sm90Tile tile, int64_t parts,
                           const GpuFacts& gpu) {
  const double weights = static_cast<double>(shape.n) * static_cast<double>(shape.k) * kHalfBytes *
                         (shape.gated ? 2 : 1);
  return is_prefill(tile) ? prefill_time(shape, tile, weights, gpu)
                          : decode_time(shape, tile, parts, weights, gpu);
}

constexpr bool sm90_offers(const GemmShape& shape, Sm90Tile tile, int64_t parts) {
  if (is_prefill(tile)) {
    return parts == 1 && !(shape.gated && tile == Sm90Tile::kPrefill128x256);
  }
  if (shape.m > kDecodeRows) return false;
  const int64_t rows = sm90_tile_facts(shape.gated, tile).rows;
  return rows == (shape.m <= 64 ? 64 : 128);
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

constexpr Sm90Plan plan_sm90(const GemmShape& shape, bool mapped, const GpuFacts& gpu) {
  Sm90Plan plan;
  plan.refused = sm90_refusal(shape, mapped, gpu);
  if (plan.refused != nullptr || shape.m <= 0 || shape.n <= 0) return plan;
  double best = 0;
  for (int i = 0; i < kSm90Tiles; ++i) {
    for (int64_t parts = 1; parts <= 8; parts *= 2) {
      const auto tile = static_cast<Sm90Tile>(i);
      if (!sm90_offers(shape, tile, parts)) continue;
      const double time = sm90_time(shape, tile, parts, gpu);
      if (best != 0 && time >= best) continue;
      best = time;
      plan.tile = tile;
      plan.cluster = static_cast<uint32_t>(parts);
    }
  }
  const Sm90TileFacts facts = sm90_tile_facts(shape.gated, plan.tile);
  const int64_t out_columns = shape.gated ? facts.columns / 2 : facts.columns;
  plan.kernel = sm90_kernel(shape.gated, shape.element, plan.tile);
  plan.tiles_n = static_cast<uint32_t>(tiles_of(shape.n, out_columns));
  if (is_prefill(plan.tile)) {
    plan.cluster = 2;  // neighbours in M
    plan.tiles_m = static_cast<uint32_t>(tiles_of(shape.m, 2 * facts.rows));
    // As in plan_gemm: the tiles of a wave then read the fewest distinct rows.
    plan.panel = plan.tiles_n < 8 ? plan.tiles_n : 8;
    const uint32_t tiles = plan.tiles_m * plan.tiles_n;
    const auto clusters = static_cast<uint32_t>(gpu.multiprocessors / 2);
    plan.ctas = 2 * (tiles < clusters ? tiles : clusters);
    plan.a_rows = static_cast<uint32_t>(facts.rows);
    plan.b_rows = static_cast<uint32_t>(facts.columns / 2);
    plan.out_rows = static_cast<uint32_t>(facts.store_rows);
  } else {
    plan.tiles_m = static_cast<uint32_t>(tiles_of(shape.m, facts.rows));
    plan.ctas = plan.tiles_m * plan.tiles_n * plan.cluster;
    const int64_t rows = tiles_of(shape.m, 8) * 8;
    plan.a_rows = static_cast<uint32_t>(rows < facts.rows ? rows : facts.rows);
    plan.b_rows = static_cast<uint32_t>(out_columns);
  }
  return plan;
}

inline int describe(const Sm90Plan& plan, bool gated, char* text, size_t size) {
  if (plan.refused != nullptr) return snprintf(text, size, "portable kernels: %s", plan.refused);
  return snprintf(text, size, "%s: kernel %d, %u x %u tiles, panel %u, %u CTAs in clusters of %u",
                  sm90_tile_facts(gated, plan.tile).name, plan.kernel, plan.tiles_m, plan.tiles_n,
                  plan.panel, plan.ctas, plan.cluster);
}

}  // namespace geglu_mlp
