// SPDX-License-Identifier: Apache-2.0
//
// Forward over numbers of rows: each has its own tiles, boxes of rows and parts of k. A row's
// result does not depend on the others, so the reference of the most rows serves every number of
// them; and what eager gives for them, which no case may be worse than.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "forward_case.hpp"

namespace gated_mlp_test {
namespace {

struct RowSweep {
  std::int64_t d, h;
  kiln::DType dtype;
  bool biased, has_residual;
  Gate gate;
  std::vector<std::int64_t> row_counts;  // ascending
};

/// The reference's rows: all that a small call has, then one in seven and the last of each call.
std::vector<std::int64_t> rows_of(const RowSweep& sweep) {
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < sweep.row_counts.back(); ++row) {
    const bool last = std::binary_search(sweep.row_counts.begin(), sweep.row_counts.end(), row + 1);
    if (row < 300 || row % 7 == 0 || last) rows.push_back(row);
  }
  return rows;
}

Bytes first_of(const Bytes& bytes, std::size_t count) {
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count)};
}

void check_sweep(std::vector<Variant>& variants, const RowSweep& sweep, std::uint64_t seed) {
  MlpData most =
      random_mlp({sweep.row_counts.back(), sweep.d, sweep.h}, sweep.dtype, sweep.biased, seed);
  if (sweep.has_residual) add_residual(most, seed + 1);
  MlpValues values = values_of(most);
  values.activation = sweep.gate;
  const std::vector<std::int64_t> all_rows = rows_of(sweep);
  const MlpProducts products = mlp_products(values, all_rows);
  MlpReference reference = mlp_reference(values, all_rows, products);
  const double natural_size = reference.natural_size;
  const std::vector<double> eager = mlp_eager(values, all_rows, products, sweep.dtype);
  const std::size_t row_bytes = static_cast<std::size_t>(sweep.d) * kiln::size_of(sweep.dtype);
  MlpData data = most;
  for (const std::int64_t m : sweep.row_counts) {
    data.shape.m = m;
    const std::size_t bytes = static_cast<std::size_t>(m) * row_bytes;
    data.x = first_of(most.x, bytes);
    if (sweep.has_residual) data.residual = first_of(most.residual, bytes);
    const std::vector<std::int64_t> rows(all_rows.begin(),
                                         std::lower_bound(all_rows.begin(), all_rows.end(), m));
    reference.natural_size = natural_size * std::sqrt(static_cast<double>(rows.size()) /
                                                      static_cast<double>(all_rows.size()));
    for (Variant& variant : variants) {
      check_forward_case(variant, {.data = data,
                                   .gate = sweep.gate,
                                   .shift = {},
                                   .reference = reference,
                                   .rows = rows,
                                   .eager = &eager});
    }
  }
}

}  // namespace

void check_rows(std::vector<Variant>& variants, const Options& options) {
  if (variants.empty() || options.light) return;
  const bool gpu = variants.front().memory.is_gpu();
  const std::vector<Gate>& gates = variants.front().package.gates;
  std::mt19937_64 random(options.seed + 2);
  constexpr kiln::DType kBFloat16 = kiln::DType::kBFloat16;
  constexpr kiln::DType kFloat16 = kiln::DType::kFloat16;
  if (gpu) {
    std::vector<std::int64_t> each(301);
    std::iota(each.begin(), each.end(), 0);
    for (const RowSweep& sweep :
         {RowSweep{264, 520, kBFloat16, true, true, gates.front(), each},
          RowSweep{768, 1024, kFloat16, false, false, gates.back(), each},
          RowSweep{512, 2056, kBFloat16, false, true, gates.back(), each}}) {
      check_sweep(variants, sweep, random());
    }
  }
  // Beside the edges of tiles, where D and H leave a part of each tile empty, too.
  std::vector<std::pair<std::int64_t, std::int64_t>> widths = {{72, 136}};
  if (gpu) widths.insert(widths.end(), {{264, 1032}, {1032, 264}});
  for (const auto& [d, h] : widths) {
    for (const kiln::DType dtype : {kBFloat16, kFloat16}) {
      for (const Gate gate : gates) {
        const bool has_residual = (gate == gates.front()) == (dtype == kFloat16);
        const RowSweep sweep = {
            d, h, dtype, true, has_residual, gate, {1, 9, 17, 64, 65, 129, 257, 513, 777, 2050}};
        check_sweep(variants, sweep, random());
      }
    }
  }
}

}  // namespace gated_mlp_test
