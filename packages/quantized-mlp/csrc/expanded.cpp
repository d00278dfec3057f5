// SPDX-License-Identifier: Apache-2.0
//
#include "expanded.hpp"

#include <algorithm>

#include "expanded.h"

namespace kiln::package {
namespace {

using quantized_mlp::kTileRows;
using quantized_mlp::parts_of;
using quantized_mlp::ProductArguments;

constexpr uint32_t kPanel = 8;  // columns of tiles that CTAs walk over together

// A part of a product's columns, whose weights lie at `weights`: gate's, then up's.
struct Chunk {
  const Product* product;
  bool gated;
  int64_t first;
  int64_t rows;
  char* weights;

  char* up() const { return weights + 2 * rows * product->arguments.k; }
  int64_t end() const { return first + rows; }
};

quantized_mlp::ExpandArguments expand_arguments(const Chunk& chunk) {
  const ProductArguments& from = chunk.product->arguments;
  return {{from.b[0], from.b[1]},
          {chunk.weights, chunk.up()},
          from.k,
          static_cast<int>(parts_of(chunk.rows, kTileRows)),
          chunk.gated ? 2 : 1,
          chunk.product->codes,
          static_cast<int>(chunk.first / kTileRows),
          from.depth_tiles,
          from.groups,
          from.shift,
          from.bfloat16_scales};
}

int32_t expand(const sdk::OnDevice& gpu, const Chunk& chunk, void* stream, kiln_error* error) {
  quantized_mlp::ExpandArguments arguments = expand_arguments(chunk);
  constexpr int64_t kUnits = quantized_mlp::kExpandThreads / 32;  // of a CTA
  const int64_t units = quantized_mlp::expand_units(arguments.codes, arguments);
  void* pointers[] = {&arguments};
  return gpu.launch(
      quantized_mlp::expand_kernel_of(chunk.product->float16, arguments.codes),
      {.grid = {static_cast<uint32_t>(std::min<int64_t>(parts_of(units, kUnits), INT32_MAX))},
       .threads = quantized_mlp::kExpandThreads,
       .overlap = gpu.has(quantized_mlp::kKernelsWait)},
      stream, pointers, error);
}

// What both kinds of kernels take. `Tile`: of a CTA.
template <class Tile, class Arguments>
void set_product(Arguments* to, const Chunk& chunk, int64_t tile_rows) {
  const ProductArguments& from = chunk.product->arguments;
  to->bias0 = from.bias0;
  to->bias1 = from.bias1;
  to->residual = from.residual;
  to->m = from.m;
  to->n = from.n;
  to->tiles_m = static_cast<unsigned>(parts_of(from.m, tile_rows));
  const int64_t columns = chunk.gated ? Tile::kColumns / 2 : Tile::kColumns;
  to->tiles_n = static_cast<unsigned>(parts_of(chunk.rows, columns));
  to->panel = std::min(to->tiles_n, kPanel);
  to->gating = from.gating;
}

// `next`: expanded meanwhile, or null.
int32_t multiply_sm90(const sdk::OnDevice& gpu, const Chunk& chunk, const Chunk* next, void* stream,
                      kiln_error* error) {
  using Tile = quantized_mlp::Sm90ExpandedTile;
  const ProductArguments& from = chunk.product->arguments;
  const bool float16 = chunk.product->float16;
  const sdk::DType dtype = float16 ? sdk::DType::kFloat16 : sdk::DType::kBFloat16;
  const uint32_t strip =
      gated_mlp::strip_columns(chunk.gated ? Tile::kColumns / 2 : Tile::kColumns);
  quantized_mlp::Sm90ExpandedArguments arguments = {};
  const auto weights = [&](const char* data) {
    return sdk::MatrixBox{data, dtype, chunk.rows, from.k, Tile::kColumns / 2, gated_mlp::kDepth};
  };
  const struct {
    const char* name;
    sdk::MatrixBox box;
    gated_mlp::TensorMap* map;
  } matrices[] = {
      {chunk.gated ? "x" : "h",
       {from.a, dtype, from.m, from.k, gated_mlp::kTokenBox, gated_mlp::kDepth},
       &arguments.a},
      {chunk.gated ? "h" : "y",
       {from.out, dtype, from.m, from.n, Tile::kWarpgroupRows, strip},
       &arguments.out},
      {chunk.gated ? "gate" : "down", weights(chunk.weights), &arguments.b0},
      {"up", weights(chunk.up()), &arguments.b1},
  };
  for (const auto& matrix : matrices) {
    if (matrix.map == &arguments.b1 && !chunk.gated) continue;
    const int32_t status = gpu.map_matrix(matrix.box, matrix.name, matrix.map, error);
    if (status != KILN_OK) return status;
  }
  set_product<Tile>(&arguments, chunk, 2 * Tile::kRows);
  arguments.k_blocks = static_cast<unsigned>(parts_of(from.k, gated_mlp::kDepth));
  arguments.first = static_cast<int>(chunk.first);
  if (next != nullptr) arguments.next = expand_arguments(*next);
  const int64_t tiles = int64_t{arguments.tiles_m} * arguments.tiles_n;
  const int64_t clusters = std::min<int64_t>(tiles, gpu.facts().multiprocessors / 2);
  void* pointers[] = {&arguments};
  return gpu.launch(
      quantized_mlp::expanded_kernel_of(quantized_mlp::kSm90ExpandedKernels, chunk.gated, float16),
      {.grid = {static_cast<uint32_t>(2 * clusters)},
       .threads = Tile::kThreads,
       .cluster = 2,
       .overlap = gpu.has(quantized_mlp::kKernelsWait)},
      stream, pointers, error);
}

int32_t multiply(const sdk::OnDevice& gpu, const Chunk& chunk, void* stream, kiln_error* error) {
  using Tile = quantized_mlp::ExpandedTile;
  const ProductArguments& from = chunk.product->arguments;
  const int64_t skipped = 2 * chunk.first * from.k;  // bytes, to where row 0 would be
  quantized_mlp::ExpandedArguments arguments = {};
  set_product<Tile>(&arguments, chunk, Tile::kRows);
  arguments.a = from.a;
  arguments.b0 = chunk.weights - skipped;
  arguments.b1 = chunk.up() - skipped;
  arguments.out = from.out;
  arguments.k = from.k;
  arguments.first = chunk.first;
  void* pointers[] = {&arguments};
  return gpu.launch(quantized_mlp::expanded_kernel_of(quantized_mlp::kExpandedKernels, chunk.gated,
                                                      chunk.product->float16),
                    {.grid = {arguments.tiles_m * arguments.tiles_n},
                     .threads = Tile::kThreads,
                     .overlap = gpu.has(quantized_mlp::kKernelsWait)},
                    stream, pointers, error);
}

}  // namespace

int32_t launch_expanded(const sdk::OnDevice& gpu, const Product (&products)[2],
                        const quantized_mlp::ExpandedPlan& plan, size_t chunk_bytes, void* stream,
                        kiln_error* error) {
  const bool beside = gpu.has(quantized_mlp::kSm90ExpandedKernels);
  char* const first_place = reinterpret_cast<char*>(products[0].arguments.parts);
  char* const places[] = {first_place, beside ? first_place + chunk_bytes : first_place};
  const auto chunk_at = [&](bool gated, int64_t first, int number) {
    const Product& product = products[gated ? 0 : 1];
    const int64_t columns = !gated ? plan.y.columns : first == 0 ? plan.first : plan.h.columns;
    const int64_t rows = std::min<int64_t>(columns, product.arguments.n - first);
    return Chunk{&product, gated, first, rows, places[number % 2]};
  };
  Chunk chunk = chunk_at(true, 0, 0);
  int32_t status = expand(gpu, chunk, stream, error);
  for (int number = 1; status == KILN_OK; ++number) {
    const bool ends = chunk.end() == chunk.product->arguments.n;
    if (ends && !chunk.gated) {
      return beside ? multiply_sm90(gpu, chunk, nullptr, stream, error)
                    : multiply(gpu, chunk, stream, error);
    }
    const Chunk next = chunk_at(chunk.gated && !ends, ends ? 0 : chunk.end(), number);
    if (beside) {
      status = multiply_sm90(gpu, chunk, &next, stream, error);
    } else {
      status = multiply(gpu, chunk, stream, error);
      if (status == KILN_OK) status = expand(gpu, next, stream, error);
    }
    chunk = next;
  }
  return status;
}

}  // namespace kiln::package
