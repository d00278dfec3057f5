// SPDX-License-Identifier: Apache-2.0
//
// The persistent kernels for SM 9.0 as large shapes run them: every tile of prefill and of the
// gradients, pinned (host/pins.h), with one, two and three or more tiles for each cluster, with one
// to three blocks of k, with ragged edges; so that both consumer warpgroups work, the ring goes on
// from one tile to the next, and strips alternate across tiles. All of y and all gradients are
// compared.
#include <cstdio>

#include "forward_case.hpp"
#include "sm90/sm90_plan.h"

namespace gated_mlp_test {
namespace {

using gated_mlp::GradientKind;
using gated_mlp::Sm90Tile;

/// Rows and columns of tiles, as near to a square as their number allows.
struct TileGrid {
  std::int64_t rows, columns;
};
TileGrid grid_of(std::int64_t tiles) {
  std::int64_t rows = 1;
  while ((rows + 1) * (rows + 1) <= tiles) ++rows;
  return {rows, (tiles + rows - 1) / rows};
}

/// Of clusters' tiles: fewer than there are clusters; some clusters get a second one; all get a
/// second and some a third, an odd number for one warpgroup; four for some. Of the swapped tiles of
/// a last wave, six, three, one and six pieces.
std::vector<std::int64_t> tile_counts(std::int64_t clusters) {
  return {5, clusters + clusters / 3, 2 * clusters + clusters / 2 + 1, 3 * clusters + 1};
}

/// Extents that end inside of the last tile: by a few columns, and by rows so that the second CTA
/// of the last cluster has few or none.
std::int64_t ragged(std::int64_t tiles, std::int64_t extent, std::int64_t left_out) {
  return tiles * extent - left_out;
}

/// k of one to three blocks, the last one partly there.
constexpr std::int64_t kDepths[] = {56, 128, 168};

struct Walk {
  Variant& variant;
  const Options& options;
  std::int64_t clusters;
  std::uint64_t number = 0;  // of the case: seeds, and what takes turns
  std::size_t kernel = 0;    // how many were walked over

  kiln::DType next_dtype() const {
    return number % 2 == 0 ? kiln::DType::kBFloat16 : kiln::DType::kFloat16;
  }
  Gate next_gate() const {
    const std::vector<Gate>& gates = variant.package.gates;
    return gates[number / 2 % gates.size()];
  }

  /// Calls visit(rows, columns, k) for each number of tiles of rows x columns, and each k; `brief`:
  /// for one of them.
  template <class Visit>
  void each_shape(std::int64_t tile_rows, std::int64_t tile_columns, bool brief,
                  const Visit& visit) {
    const std::vector<std::int64_t> counts = tile_counts(clusters);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const TileGrid grid = grid_of(counts[i]);
      for (std::size_t j = 0; j < std::size(kDepths); ++j) {
        if ((options.light || brief) && (i != 1 || j != 2)) continue;
        // The reference of the most tiles costs a second: of k they have one of the three, in
        // turns.
        if (i >= 2 && j != (kernel + i) % std::size(kDepths)) continue;
        const std::int64_t few_rows = number % 2 == 0 ? tile_rows - 5 : tile_rows / 2 - 9;
        visit(ragged(grid.rows, tile_rows, few_rows),
              ragged(grid.columns, tile_columns, 8 * (1 + static_cast<std::int64_t>(number % 3))),
              kDepths[j]);
        ++number;
      }
    }
    ++kernel;
  }
};

MlpData data_of(const Walk& walk, const Shape& shape, const std::string& kernels) {
  MlpData data = random_mlp(shape, walk.next_dtype(), walk.number % 3 != 0, walk.number);
  data.kernels = kernels;
  return data;
}

void check_forward_by(Walk& walk, const Shape& shape, const std::string& kernels) {
  MlpData data = data_of(walk, shape, kernels);
  if (walk.number % 4 == 1) add_residual(data, walk.number);
  MlpValues values = values_of(data);
  values.activation = walk.next_gate();
  std::vector<std::int64_t> rows(static_cast<std::size_t>(shape.m));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
  const MlpReference reference = mlp_reference(values, rows);
  check_forward_case(walk.variant, {.data = data,
                                    .gate = values.activation,
                                    .shift = {},
                                    .reference = reference,
                                    .rows = rows,
                                    .twice = true,
                                    .each = true});
}

/// Of gate and up's product, of down's, or of that of training_forward, each with its own columns.
void check_prefills(Walk& walk, bool gated) {
  for (int i = 0; i < gated_mlp::sm90_tile_count(gated); ++i) {
    const Sm90Tile& tile = gated_mlp::sm90_tile(gated, i);
    if (tile.family != gated_mlp::Sm90Family::kPrefill) continue;
    for (const bool across : {false, true}) {
      if (across && !can_lie_across(tile)) continue;
      const std::string kernels =
          std::string(gated ? "gated=" : "down=") + tile.name + (across ? ",across" : "");
      const std::int64_t columns = gated ? tile.columns / 2 : tile.columns;
      // Swapped tiles differ by their number of tokens alone: the least, the most and one between.
      const bool brief = tile.swapped && tile.rows != gated_mlp::kFewestSwapped &&
                         tile.rows != gated_mlp::kMostSwapped && tile.rows != 136;
      walk.each_shape(tile.rows * (across ? 1 : 2), columns * (across ? 2 : 1), brief,
                      [&](std::int64_t m, std::int64_t n, std::int64_t k) {
                        check_forward_by(walk, gated ? Shape{m, k, n} : Shape{m, n, k}, kernels);
                      });
    }
  }
}

void check_kept(Walk& walk) {
  for (const Sm90Tile& tile : gated_mlp::kGatedTiles) {
    if (keeping_place(tile) == gated_mlp::kKeepingTileCount) continue;
    for (const bool across : {false, true}) {
      const std::string kernels = std::string("gated=") + tile.name + (across ? ",across" : "");
      walk.each_shape(tile.rows * (across ? 1 : 2), tile.columns / 2 * (across ? 2 : 1), false,
                      [&](std::int64_t m, std::int64_t n, std::int64_t k) {
                        check_pinned_training(walk.variant, data_of(walk, {m, k, n}, kernels),
                                              walk.next_gate());
                      });
    }
  }
}

void check_gradients(Walk& walk, GradientKind kind) {
  for (int i = 0; i < gradient_tile_count(kind); ++i) {
    const Sm90Tile& tile = gradient_tile(kind, i);
    const std::string kernels = kind == GradientKind::kGated ? std::string()
                                : kind == GradientKind::kTokens
                                    ? std::string("grad_x=") + tile.name
                                    : std::string("grad_weights=") + tile.name;
    walk.each_shape(2 * tile.rows, tile.columns, false,
                    [&](std::int64_t rows, std::int64_t columns, std::int64_t k) {
                      const Shape shape = kind == GradientKind::kGated ? Shape{rows, k, columns}
                                          : kind == GradientKind::kTokens
                                              ? Shape{rows, columns, k}
                                              : Shape{k, columns, rows / 8 * 8};
                      check_pinned_backward(walk.variant, data_of(walk, shape, kernels),
                                            walk.next_gate(), walk.number);
                    });
  }
}

}  // namespace

void check_tiles(std::vector<Variant>& variants, const Options& options) {
  for (Variant& variant : variants) {
    if (!variant.memory.is_gpu() || family_of(variant) != KernelFamily::kSm90) continue;
    Walk walk = {variant, options, variant.memory.limits().multiprocessors / 2};
    for (const bool gated : {true, false}) check_prefills(walk, gated);
    check_kept(walk);
    for (const GradientKind kind :
         {GradientKind::kTokens, GradientKind::kWeights, GradientKind::kGated}) {
      check_gradients(walk, kind);
    }
  }
}

}  // namespace gated_mlp_test
