// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <array>
#include <cmath>
#include <numbers>

#include "numbers.hpp"

namespace geglu_mlp_test {
namespace {

constexpr double kCubic = 0.044715;

double tanh_argument(double x) {
  return std::sqrt(2.0 / std::numbers::pi) * (x + kCubic * x * x * x);
}

// Vectors as wide as the CPU has; without function multiversioning those of every x86-64.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define KILN_WIDEST_VECTORS \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KILN_WIDEST_VECTORS
#endif

// Sixteen sums, so that the compiler may use vectors.
KILN_WIDEST_VECTORS double dot(const double* a, const double* b, std::size_t count) {
  constexpr std::size_t kSums = 16;
  std::array<double, kSums> sums{};
  std::size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (std::size_t lane = 0; lane < kSums; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  double sum = 0;
  for (; i < count; ++i) sum += a[i] * b[i];
  for (const double value : sums) sum += value;
  return sum;
}

double bias_at(const std::vector<double>& bias, std::size_t i) {
  return bias.empty() ? 0.0 : bias[i];
}

constexpr std::size_t kColumnsAtOnce = 16;

/// [rows, columns] of value(row, column). A thread keeps to some columns and takes all rows, so
/// that the weights of a column come from memory once.
template <class Value>
std::vector<double> matrix_of(std::size_t rows, std::size_t columns, const Value& value) {
  std::vector<double> matrix(rows * columns);
  parallel_pieces(columns, kColumnsAtOnce, [&](std::size_t first, std::size_t last) {
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t j = first; j < last; ++j) matrix[row * columns + j] = value(row, j);
    }
  });
  return matrix;
}

/// The asked rows of h and of y; `round` is applied to the result of every operation.
template <class Round>
std::vector<double> hidden_of(const MlpValues& values, const std::vector<std::int64_t>& rows,
                              const Round& round) {
  const auto d = static_cast<std::size_t>(values.d);
  return matrix_of(
      rows.size(), static_cast<std::size_t>(values.h), [&](std::size_t i, std::size_t j) {
        const double* x = values.x.data() + static_cast<std::size_t>(rows[i]) * d;
        const double gate =
            round(dot(x, values.gate.data() + j * d, d) + bias_at(values.gate_bias, j));
        const double up = round(dot(x, values.up.data() + j * d, d) + bias_at(values.up_bias, j));
        return round(round(gelu(gate, values.exact)) * up);
      });
}
template <class Round>
std::vector<double> outputs_of(const MlpValues& values, const std::vector<double>& hidden,
                               std::size_t rows, const Round& round) {
  const auto h = static_cast<std::size_t>(values.h);
  return matrix_of(rows, static_cast<std::size_t>(values.d), [&](std::size_t i, std::size_t j) {
    return round(dot(hidden.data() + i * h, values.down.data() + j * h, h) +
                 bias_at(values.down_bias, j));
  });
}

/// Of each column of h the sum of its weights' squares in down.
std::vector<double> squares_of_down(const MlpValues& values) {
  const auto h = static_cast<std::size_t>(values.h);
  std::vector<double> squares(h);
  parallel_pieces(h, kColumnsAtOnce, [&](std::size_t first, std::size_t last) {
    for (std::size_t row = 0; row < values.down.size(); row += h) {
      for (std::size_t k = first; k < last; ++k) {
        squares[k] += values.down[row + k] * values.down[row + k];
      }
    }
  });
  return squares;
}

}  // namespace

double gelu(double x, bool exact) {
  if (exact) return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
  // 0.5 (1 + tanh z) = 1 / (1 + exp(-2 z)): the same, exact at negative z too.
  return x / (1.0 + std::exp(-2.0 * tanh_argument(x)));
}

Slope gelu_slope(double x, bool exact) {
  const auto of_terms = [](double a, double b) { return Slope{a + b, std::abs(a) + std::abs(b)}; };
  if (exact) {
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
    return of_terms(0.5 * std::erfc(-x / std::numbers::sqrt2), x * density);
  }
  if (std::abs(x) > 50) return of_terms(x > 0 ? 1.0 : 0.0, 0.0);  // beyond double's own saturation
  const double z = tanh_argument(x);
  const double s = 1.0 / (1.0 + std::exp(-2.0 * z));
  const double rest = 1.0 / (1.0 + std::exp(2.0 * z));
  const double z_slope = std::sqrt(2.0 / std::numbers::pi) * (1.0 + 3.0 * kCubic * x * x);
  return of_terms(s, 2.0 * x * s * rest * z_slope);
}

MlpReference mlp_reference(const MlpValues& values, const std::vector<std::int64_t>& rows) {
  const auto exact = [](double value) { return value; };
  const std::vector<double> hidden = hidden_of(values, rows, exact);
  MlpReference result;
  result.y = outputs_of(values, hidden, rows.size(), exact);
  const std::vector<double> squares = squares_of_down(values);
  double sum = 0;
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    sum += hidden[i] * hidden[i] * squares[i % squares.size()];
  }
  double biases = 0;
  for (const double bias : values.down_bias) biases += bias * bias;
  result.natural_size = std::sqrt(sum + biases * static_cast<double>(rows.size()));
  return result;
}

std::vector<double> mlp_eager(const MlpValues& values, const std::vector<std::int64_t>& rows,
                              kiln::DType dtype) {
  const auto round = [dtype](double value) {
    unsigned char element[8];
    encode(dtype, value, element);
    return decode(dtype, element);
  };
  return outputs_of(values, hidden_of(values, rows, round), rows.size(), round);
}

}  // namespace geglu_mlp_test
