// SPDX-License-Identifier: Apache-2.0
//
// linear_check: forward against double precision on each device: two dtypes, ragged sizes, rows
// that lie apart, with and without bias, and each tile by its name. The command line is that of
// kiln::testing::run_check.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <kiln/kiln.hpp>
#include <kiln/ops/linear.hpp>
#include <kiln/testing.hpp>
#include <random>
#include <string>
#include <vector>

namespace {

using kiln::DType;
using kiln::Tensor;
using kiln::ops::linear::Forward;
using kiln::testing::Array;
using kiln::testing::Check;
using Tile = kiln::ops::linear::ForwardAttributes::Tile;
using Values = std::vector<double>;

struct Case {
  DType dtype;
  std::int64_t m, n, k;
  bool bias;
  std::int64_t gap = 0;  ///< between rows of x and y; of 8 a GPU's copy engine reads them, too
  Tile tile = Tile::kAuto;
  bool refused = false;
};

/// Of the result, rounded to the dtype.
double rounding_of(DType dtype) {
  return dtype == DType::kFloat16 ? 4.9e-4 : 3.95e-3;
}

/// Of K sums in fp32, as a part of their terms' magnitudes.
double rounding_of_sums(std::int64_t k) {
  return 6e-8 * (2 + std::sqrt(static_cast<double>(k)));
}

void fill(Array& array, std::mt19937& engine) {
  std::normal_distribution<double> normal;
  Values values(array.size());
  std::ranges::generate(values, [&] { return normal(engine); });
  array.set(values);
}

void run(Check& check, const Case& c) {
  const kiln::Device device = check.kernel().device();
  std::mt19937 engine(static_cast<unsigned>(c.m * 10007 + c.n * 101 + c.k));
  Array x(device, c.dtype, {c.m, c.k}, c.gap);
  Array weight(device, c.dtype, {c.n, c.k});
  Array bias(device, c.dtype, {c.n});
  Array y(device, c.dtype, {c.m, c.n}, c.gap);
  for (Array* each : {&x, &weight, &bias}) fill(*each, engine);
  const Values a = x.values();
  const Values b = weight.values();
  const Values added = bias.values();

  Forward call{.x = x.tensor(), .weight = weight.tensor(), .y = y.tensor()};
  call.attributes.tile = c.tile;
  if (c.bias) call.bias = bias.tensor();
  const auto op = check.kernel().op<Forward>();
  kiln::OwnedWorkspace workspace(device);
  if (c.refused) {
    check.refused("tile", [&] { op.run(call, workspace.reserve(op.workspace_bytes(call))); });
    return;
  }
  op.run(call, workspace.reserve(op.workspace_bytes(call)));

  Values expected(y.size());
  Values terms(y.size());
  const double rounding = rounding_of(c.dtype);
  const auto n = static_cast<std::size_t>(c.n);
  const auto k = static_cast<std::size_t>(c.k);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto add = [&](double term) {
      expected[i] += term;
      terms[i] += std::abs(term);
    };
    for (std::size_t j = 0; j < k; ++j) add(a[i / n * k + j] * b[i % n * k + j]);
    if (c.bias) add(added[i % n]);
    terms[i] = std::abs(expected[i]) + terms[i] * rounding_of_sums(c.k) / rounding;
  }
  const std::string name = c.dtype == DType::kFloat16 ? "float16" : "bfloat16";
  check.compare(name, y, expected, rounding, terms);
}

// Of few rows, of more than a tile, and of rows that no descriptor has.
void run_tiles(Check& check, DType dtype) {
  constexpr std::array kTiles = {Tile::kRows16, Tile::kRows32, Tile::kFew,  Tile::kSmall,
                                 Tile::kWide,   Tile::kMiddle, Tile::kLarge};
  const bool on_hopper = check.kernel().variant().find("sm_90a") != std::string::npos;
  const bool on_gpu = check.kernel().device().kind == kiln::Device::Kind::kCuda;
  for (const Tile tile : kTiles) {
    const bool is_hopper = tile == Tile::kFew || tile == Tile::kWide || tile == Tile::kLarge;
    for (const auto& [m, n, k] :
         {std::array<std::int64_t, 3>{1, 264, 136}, {33, 264, 520}, {150, 520, 72}}) {
      const bool refused = !on_gpu || (is_hopper && !on_hopper);
      run(check, {dtype, m, n, k, true, 8, tile, refused});
      run(check, {dtype, m, n, k + 1, true, 3, tile, !on_gpu || is_hopper});
    }
  }
}

void run_all(Check& check, bool light) {
  const std::vector<std::int64_t> rows =
      light ? std::vector<std::int64_t>{0, 1, 3, 97}
            : std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 16, 33, 97, 260};
  const std::vector<std::int64_t> widths =
      light ? std::vector<std::int64_t>{1, 100} : std::vector<std::int64_t>{1, 8, 100, 257};
  const std::vector<std::int64_t> depths =
      light ? std::vector<std::int64_t>{7, 128} : std::vector<std::int64_t>{0, 1, 7, 128, 520};
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const std::int64_t m : rows) {
      for (const std::int64_t n : widths) {
        for (const std::int64_t k : depths) {
          run(check, {dtype, m, n, k, false});
          run(check, {dtype, m, n, k, true, 3});
          if (k % 8 == 0 && n % 8 == 0) run(check, {dtype, m, n, k, true, 8});
        }
      }
    }
    run_tiles(check, dtype);
    // One for each of the tiles that a GPU of Hopper takes for so much, and one or more a program.
    if (light || check.kernel().device().kind != kiln::Device::Kind::kCuda) continue;
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{20, 4000, 520},
                                  {60, 4000, 520},
                                  {20, 9000, 264},
                                  {31, 33000, 72},
                                  {60, 8440, 264},
                                  {60, 16000, 128},
                                  {100, 16000, 72},
                                  {130, 16000, 72},
                                  {130, 16904, 72},
                                  {130, 16903, 72},
                                  {260, 33000, 72}}) {
      run(check, {dtype, m, n, k, false, 8});
      run(check, {dtype, m, n, k, true});
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return kiln::testing::run_check(argc, argv, "linear", 1, run_all);
}
