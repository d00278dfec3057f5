// SPDX-License-Identifier: Apache-2.0
//
// Forward against the double reference: random and chosen shapes, every dtype, both GELUs, with and
// without biases, aligned and not. The reference is computed once a case and shared by the
// variants.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

#include "check.hpp"
#include "reference.hpp"

namespace geglu_mlp_test {
namespace {

constexpr std::int64_t kAllRows = 256;     // above, the reference is computed for a sample of rows
constexpr std::int64_t kSampledRows = 48;  // of them
// Values of h and of y; fewer roundings than this do not average to the expected error. (With H = 1
// all of a row shares the one rounding of its h: 2.8e-3 was seen in bfloat16, M = 27.)
constexpr std::int64_t kLarge = 1024;

std::int64_t log_uniform(std::int64_t most, std::mt19937_64& random) {
  std::uniform_real_distribution<double> exponent(0.0, std::log2(static_cast<double>(most)));
  return static_cast<std::int64_t>(std::exp2(exponent(random)));
}

std::vector<Shape> shapes_to_check(const Options& options, bool gpu) {
  std::vector<Shape> shapes = {{0, 64, 64},  {1, 1, 1},     {1, 8, 8},   {3, 0, 16},
                               {3, 16, 0},   {2, 7, 5},     {9, 0, 24},  {9, 24, 0},
                               {33, 64, 96}, {65, 72, 200}, {17, 33, 70}};
  if (options.light) return shapes;
  // Several blocks of rows on the CPU; on a GPU the shapes that fill it with the largest tile, in
  // the gated and in the plain product, and one that the medium tile gets.
  const std::vector<Shape> more =
      gpu ? std::vector<Shape>{{2061, 72, 2088},  {2061, 2056, 88}, {4100, 768, 3072},
                               {513, 512, 4112},  {1100, 8, 2056},  {700, 1032, 8},
                               {256, 3584, 1792}, {1, 1792, 7168},  {64, 768, 3072},
                               {130, 1001, 2050}}
          : std::vector<Shape>{{1009, 64, 48}, {2030, 40, 100}, {5, 768, 3072}, {64, 768, 1536}};
  shapes.insert(shapes.end(), more.begin(), more.end());
  std::mt19937_64 random(options.seed);
  while (shapes.size() < 60) {
    Shape shape = {log_uniform(400, random), log_uniform(600, random), log_uniform(600, random)};
    if (random() % 2 == 0) {  // aligned rows: the fast kernels
      shape.d = (shape.d + 7) / 8 * 8;
      shape.h = (shape.h + 7) / 8 * 8;
    }
    shapes.push_back(shape);
  }
  return shapes;
}

std::vector<std::int64_t> rows_to_check(std::int64_t m, std::mt19937_64& random) {
  std::vector<std::int64_t> rows;
  if (m <= kAllRows) {
    for (std::int64_t row = 0; row < m; ++row) rows.push_back(row);
    return rows;
  }
  rows = {0, m - 1};
  while (static_cast<std::int64_t>(rows.size()) < kSampledRows) {
    rows.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(m)));
  }
  return rows;
}

/// Relative L2 error of the rows that the reference has; infinite for a value that is not finite
/// anywhere in y (no input here is large enough for that).
double error_of(const Bytes& y_bytes, const MlpData& data, const MlpReference& reference,
                const std::vector<std::int64_t>& rows) {
  const std::vector<double> y = decode_all(data.dtype, y_bytes);
  if (!std::all_of(y.begin(), y.end(), [](double value) { return std::isfinite(value); })) {
    return std::numeric_limits<double>::infinity();
  }
  const auto d = static_cast<std::size_t>(data.shape.d);
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < d; ++j) {
      const double expected = reference.y[i * d + j];
      const double found = y[static_cast<std::size_t>(rows[i]) * d + j];
      difference += (found - expected) * (found - expected);
      size += expected * expected;
    }
  }
  const double scale = std::max(std::sqrt(size), reference.natural_size);
  if (scale == 0) return difference == 0 ? 0 : std::numeric_limits<double>::infinity();
  return std::sqrt(difference) / scale;
}

struct Case {
  const MlpData& data;
  bool exact;
  std::size_t shift;
  const MlpReference& reference;
  const std::vector<std::int64_t>& rows;
};

void check_case(Variant& variant, const Case& test) {
  const MlpData& data = test.data;
  const Shape shape = data.shape;
  const std::string text = "forward M=" + std::to_string(shape.m) +
                           " D=" + std::to_string(shape.d) + " H=" + std::to_string(shape.h) + " " +
                           name_of(data.dtype) + (test.exact ? " none" : " tanh") +
                           (data.biased ? " bias" : "") + (test.shift != 0 ? " shifted" : "");
  try {
    const MlpBuffers buffers(variant, data, test.exact, test.shift);
    buffers.run();
    variant.memory.synchronize();
    const double error = error_of(buffers.read_y(), data, test.reference, test.rows);
    const bool large = shape.m * std::min(shape.d, shape.h) >= kLarge;
    const double bound = bound_of(data.dtype) * (large ? 1 : 2);
    if (large && error <= bound) {
      double& worst = variant.tally.worst[name_of(data.dtype)];
      worst = std::max(worst, error);
    }
    const std::string damage = buffers.damage();
    char numbers[96];
    std::snprintf(numbers, sizeof(numbers), ": error %.3g, at most %.3g", error, bound);
    report(variant, error <= bound && damage.empty(), text + numbers + damage);
  } catch (const std::exception& error) {
    report(variant, false, text + ": " + error.what());
  }
}

MlpValues values_of(const MlpData& data) {
  MlpValues values;
  values.x = decode_all(data.dtype, data.x);
  values.gate = decode_all(data.dtype, data.gate);
  values.up = decode_all(data.dtype, data.up);
  values.down = decode_all(data.dtype, data.down);
  if (data.biased) {
    values.gate_bias = decode_all(data.dtype, data.gate_bias);
    values.up_bias = decode_all(data.dtype, data.up_bias);
    values.down_bias = decode_all(data.dtype, data.down_bias);
  }
  values.d = data.shape.d;
  values.h = data.shape.h;
  return values;
}

/// Every number of rows from 0 to kRowCounts: each has its own tiles, boxes of rows and parts of k.
/// The reference of the most rows serves all: a row's result does not depend on the others.
constexpr std::int64_t kRowCounts = 300;

void check_row_counts(std::vector<Variant>& variants, Shape shape, kiln::DType dtype, bool exact,
                      std::uint64_t seed) {
  shape.m = kRowCounts;
  const MlpData most = random_mlp(shape, dtype, exact, seed);
  MlpValues values = values_of(most);
  values.exact = exact;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(kRowCounts));
  std::iota(rows.begin(), rows.end(), 0);
  MlpReference reference = mlp_reference(values, rows);
  const double natural_size = reference.natural_size;
  const std::size_t row_bytes = most.x.size() / static_cast<std::size_t>(kRowCounts);
  for (std::int64_t m = 0; m <= kRowCounts; ++m) {
    MlpData data = most;
    data.shape.m = m;
    data.x.resize(static_cast<std::size_t>(m) * row_bytes);
    rows.resize(static_cast<std::size_t>(m));
    std::iota(rows.begin(), rows.end(), 0);
    reference.natural_size =
        natural_size * std::sqrt(static_cast<double>(m) / static_cast<double>(kRowCounts));
    for (Variant& variant : variants) check_case(variant, {data, exact, 0, reference, rows});
  }
}

}  // namespace

void check_forward(std::vector<Variant>& variants, const Options& options) {
  if (variants.empty()) return;
  const bool gpu = variants.front().memory.is_gpu();
  std::vector<kiln::DType> dtypes = {kiln::DType::kBFloat16, kiln::DType::kFloat16};
  if (!gpu) dtypes.push_back(kiln::DType::kFloat32);
  std::mt19937_64 random(options.seed);
  if (gpu && !options.light) {
    check_row_counts(variants, {0, 264, 520}, kiln::DType::kBFloat16, false, random());
    check_row_counts(variants, {0, 768, 1024}, kiln::DType::kFloat16, true, random());
    check_row_counts(variants, {0, 512, 2056}, kiln::DType::kBFloat16, true, random());
  }
  for (const Shape shape : shapes_to_check(options, gpu)) {
    const std::vector<std::int64_t> rows = rows_to_check(shape.m, random);
    for (const kiln::DType dtype : dtypes) {
      for (const bool biased : {false, true}) {
        const MlpData data = random_mlp(shape, dtype, biased, random());
        MlpValues values = values_of(data);
        for (const bool exact : {false, true}) {
          values.exact = exact;
          const MlpReference reference = mlp_reference(values, rows);
          const std::size_t shift = random() % 8 == 0 ? kiln::size_of(dtype) : 0;
          for (Variant& variant : variants) {
            check_case(variant, {data, exact, shift, reference, rows});
          }
        }
      }
    }
  }
}

}  // namespace geglu_mlp_test
