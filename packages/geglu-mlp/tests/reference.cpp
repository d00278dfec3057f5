// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "numbers.hpp"

namespace geglu_mlp_test {
namespace {

constexpr double kCubic = 0.044715;
constexpr double kAlpha = 1.702;

double sigmoid(double z) {
  return 1.0 / (1.0 + std::exp(-z));
}

double clamped(double g) {
  return std::min(g, kCheckedLimit);
}

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
        return round(round(activate(values.activation, gate)) *
                     round(factor(values.activation, up)));
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

/// Square root of the sum of all (g u down)^2, where g and u are as large as the rows of x and of
/// the weights make them on average.
double uncancelled_size(const MlpValues& values, const std::vector<std::int64_t>& rows,
                        const std::vector<double>& squares) {
  const auto d = static_cast<std::size_t>(values.d);
  if (d == 0) return 0;
  const auto square_of = [d](const std::vector<double>& matrix, std::size_t row) {
    return dot(matrix.data() + row * d, matrix.data() + row * d, d);
  };
  double of_x = 0;
  for (const std::int64_t row : rows) {
    of_x += std::pow(square_of(values.x, static_cast<std::size_t>(row)), 2);
  }
  double of_weights = 0;
  for (std::size_t j = 0; j < squares.size(); ++j) {
    of_weights += square_of(values.gate, j) * square_of(values.up, j) * squares[j];
  }
  return std::sqrt(of_x * of_weights) / static_cast<double>(d);
}

}  // namespace

double activate(Gate gate, double g) {
  switch (gate) {
    case Gate::kGeluTanh:
      // 0.5 (1 + tanh z) = 1 / (1 + exp(-2 z)): the same, exact at negative z too.
      return g * sigmoid(2.0 * tanh_argument(g));
    case Gate::kGelu:
      return 0.5 * g * std::erfc(-g / std::numbers::sqrt2);
    case Gate::kSilu:
      return g * sigmoid(g);
    case Gate::kRelu:
      return std::max(g, 0.0);
    case Gate::kSigmoid:
      return sigmoid(g);
    case Gate::kSiluClamped:
      return clamped(g) * sigmoid(kAlpha * clamped(g));
  }
  return 0;
}

Slope activation_slope(Gate gate, double g) {
  const auto of_terms = [](double a, double b) { return Slope{a + b, std::abs(a) + std::abs(b)}; };
  // Of g sigmoid(z): beyond double's own saturation the second term is 0, and not a NaN.
  const auto of_product = [&of_terms](double x, double z, double z_slope) {
    const double rest = sigmoid(-z);
    const bool saturated = sigmoid(z) * rest == 0;
    return of_terms(sigmoid(z), saturated ? 0.0 : x * sigmoid(z) * rest * z_slope);
  };
  switch (gate) {
    case Gate::kGeluTanh:
      return of_product(g, 2.0 * tanh_argument(g),
                        2.0 * std::sqrt(2.0 / std::numbers::pi) * (1.0 + 3.0 * kCubic * g * g));
    case Gate::kGelu: {
      const double density = std::exp(-0.5 * g * g) / std::sqrt(2.0 * std::numbers::pi);
      return of_terms(0.5 * std::erfc(-g / std::numbers::sqrt2), g * density);
    }
    case Gate::kSilu:
      return of_product(g, g, 1.0);
    case Gate::kRelu:
      return of_terms(g > 0 ? 1.0 : 0.0, 0.0);
    case Gate::kSigmoid:
      return of_terms(sigmoid(g) * sigmoid(-g), 0.0);
    case Gate::kSiluClamped:
      return g > kCheckedLimit ? Slope{} : of_product(g, kAlpha * g, kAlpha);
  }
  return {};
}

double factor(Gate gate, double u) {
  return gate == Gate::kSiluClamped ? std::clamp(u, -kCheckedLimit, kCheckedLimit) + 1.0 : u;
}

double factor_slope(Gate gate, double u) {
  return gate == Gate::kSiluClamped && std::abs(u) > kCheckedLimit ? 0.0 : 1.0;
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
  result.uncancelled_size = uncancelled_size(values, rows, squares);
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
