// SPDX-License-Identifier: Apache-2.0
#include "forward_case.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace gated_mlp_test {
namespace {

constexpr std::int64_t kAllRows = 256;     // above, the reference is computed for a sample of rows
constexpr std::int64_t kSampledRows = 48;  // of them
// Values of y that are compared; the roundings of fewer do not average to the expected error. Rows
// of few columns count for less than their number, since a few large rows make most of the
// sum: 2.64e-3 was seen in bfloat16 at M = 186, D = 8. Three times the bound is then accepted,
// nearly the worst that the two roundings of a value can do: 2^-8 each in bfloat16, 2^-11 in
// float16. (5.4e-3 was seen at M = 6, D = H = 2.)
constexpr std::int64_t kLarge = 4096;
constexpr double kFewFactor = 3;

bool is_large(const ForwardCase& test) {
  const auto rows = static_cast<std::int64_t>(test.rows.size());
  return rows * std::min(test.data.shape.d, test.data.shape.h) >= kLarge;
}

/// Relative L2 error of the case's rows; `row` gives the values found for the i-th.
template <class Row>
double error_of(const ForwardCase& test, const Row& row) {
  const auto d = static_cast<std::size_t>(test.data.shape.d);
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < test.rows.size(); ++i) {
    const double* found = row(i);
    const double* expected = test.reference.y.data() + i * d;
    for (std::size_t j = 0; j < d; ++j) {
      difference += (found[j] - expected[j]) * (found[j] - expected[j]);
      size += expected[j] * expected[j];
    }
  }
  double scale = std::max(std::sqrt(size), test.reference.natural_size);
  // Half precision rounds what a sum came to; float32's error is of the sum's terms.
  if (!is_large(test) && test.data.dtype == kiln::DType::kFloat32) {
    scale = std::max(scale, test.reference.uncancelled_size);
  }
  if (scale == 0) return difference == 0 ? 0 : std::numeric_limits<double>::infinity();
  return std::sqrt(difference) / scale;
}

/// Infinite for a value that is not finite anywhere in y (no input here is large enough for that).
double error_of_call(const ForwardCase& test, const Bytes& bytes) {
  const std::vector<double> y = decode_all(test.data.dtype, bytes);
  if (!std::all_of(y.begin(), y.end(), [](double value) { return std::isfinite(value); })) {
    return std::numeric_limits<double>::infinity();
  }
  return error_of(test, [&](std::size_t i) { return y.data() + test.rows[i] * test.data.shape.d; });
}

constexpr double kElementRoundings = 16;

/// The greatest error of an element, its own rounding taken off, in roundings of its row's size.
double worst_element(const ForwardCase& test, const Bytes& bytes) {
  const std::vector<double> y = decode_all(test.data.dtype, bytes);
  const auto d = static_cast<std::size_t>(test.data.shape.d);
  const double rounding = std::ldexp(1.0, test.data.dtype == kiln::DType::kFloat16 ? -11 : -8);
  const double natural =
      test.reference.natural_size / std::sqrt(static_cast<double>(test.rows.size() * d));
  double worst = 0;
  for (std::size_t i = 0; i < test.rows.size(); ++i) {
    const double* const found = y.data() + static_cast<std::size_t>(test.rows[i]) * d;
    const double* const expected = test.reference.y.data() + i * d;
    double square = 0;
    for (std::size_t j = 0; j < d; ++j) square += expected[j] * expected[j];
    const double size = std::max(std::sqrt(square / static_cast<double>(d)), natural);
    for (std::size_t j = 0; j < d; ++j) {
      const double off = std::abs(found[j] - expected[j]) - rounding * std::abs(expected[j]);
      worst = std::max(worst, off / (rounding * size));
    }
  }
  return worst;
}

double error_of_eager(const ForwardCase& test) {
  return error_of(test, [&](std::size_t i) {
    return test.eager->data() + static_cast<std::int64_t>(i) * test.data.shape.d;
  });
}

std::string describe(const ForwardCase& test) {
  const MlpData& data = test.data;
  const Shape shape = data.shape;
  return "forward M=" + std::to_string(shape.m) + " D=" + std::to_string(shape.d) +
         " H=" + std::to_string(shape.h) + " " + name_of(data.dtype) + " " + name_of(test.gate) +
         (data.biased ? " bias" : "") + (data.has_residual ? " residual" : "") +
         (test.shift.all != 0 ? " shifted" : "") +
         (data.kernels.empty() ? "" : " " + data.kernels) +
         (test.shift.residual != test.shift.all
              ? ", the residual by " + std::to_string(test.shift.residual)
              : "");
}

}  // namespace

void check_forward_case(Variant& variant, const ForwardCase& test) {
  const MlpData& data = test.data;
  try {
    MlpBuffers buffers(variant, data, test.gate, test.shift);
    buffers.run();
    variant.memory.synchronize();
    const Bytes y = buffers.read_y();
    const double error = error_of_call(test, y);
    const bool large = is_large(test);
    const bool aligned = test.shift.all == 0 && (!data.has_residual || test.shift.residual == 0);
    const bool by_cublaslt = is_by_cublaslt(variant, data.shape, aligned);
    double bound = by_cublaslt ? bound_of_cublaslt(data.dtype) : bound_of(data.dtype);
    if (!large) bound *= kFewFactor;
    if (large && error <= bound) {
      double& worst = variant.tally.worst[name_of(data.dtype)];
      worst = std::max(worst, error);
    }
    if (large && test.eager != nullptr) bound = std::min(bound, error_of_eager(test));
    std::string damage = buffers.damage();
    if (test.each && worst_element(test, y) > kElementRoundings) {
      damage += "; an element is more than 16 roundings of its row's size off";
    }
    if (test.twice) {
      buffers.poison();
      variant.memory.synchronize();
      buffers.run();
      variant.memory.synchronize();
      if (buffers.read_y() != y) damage += "; the second call gives other bits";
    }
    char numbers[96];
    std::snprintf(numbers, sizeof(numbers), ": error %.3g, at most %.3g", error, bound);
    report(variant, error <= bound && damage.empty(), describe(test) + numbers + damage);
  } catch (const std::exception& error) {
    report(variant, false, describe(test) + ": " + error.what());
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
  if (data.has_residual) values.residual = decode_all(data.dtype, data.residual);
  values.d = data.shape.d;
  values.h = data.shape.h;
  return values;
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

}  // namespace gated_mlp_test
