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

// Eight sums, so that the compiler may use vectors.
double dot(const double* a, const double* b, std::int64_t count) {
  std::array<double, 8> sums{};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (std::int64_t lane = 0; lane < 8; ++lane) {
      sums[static_cast<std::size_t>(lane)] += a[i + lane] * b[i + lane];
    }
  }
  double sum = 0;
  for (; i < count; ++i) sum += a[i] * b[i];
  for (const double value : sums) sum += value;
  return sum;
}

double bias_at(const std::vector<double>& bias, std::int64_t i) {
  return bias.empty() ? 0.0 : bias[static_cast<std::size_t>(i)];
}

/// One row of h; `round` is applied to the result of every operation.
template <class Round>
std::vector<double> hidden_row(const MlpValues& values, std::int64_t row, const Round& round) {
  const std::int64_t d = values.d;
  const double* x = values.x.data() + row * d;
  std::vector<double> hidden(static_cast<std::size_t>(values.h));
  for (std::int64_t j = 0; j < values.h; ++j) {
    const double gate = round(dot(x, values.gate.data() + j * d, d) + bias_at(values.gate_bias, j));
    const double up = round(dot(x, values.up.data() + j * d, d) + bias_at(values.up_bias, j));
    hidden[static_cast<std::size_t>(j)] = round(round(gelu(gate, values.exact)) * up);
  }
  return hidden;
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
  const std::int64_t d = values.d;
  const std::int64_t h = values.h;
  MlpReference result;
  result.y.resize(rows.size() * static_cast<std::size_t>(d));
  std::vector<double> squares(rows.size());
  parallel_for(static_cast<std::int64_t>(rows.size()), [&](std::int64_t i) {
    const auto index = static_cast<std::size_t>(i);
    const std::vector<double> hidden =
        hidden_row(values, rows[index], [](double value) { return value; });
    double square = 0;
    for (std::int64_t j = 0; j < d; ++j) {
      const double* down = values.down.data() + j * h;
      const double bias = bias_at(values.down_bias, j);
      result.y[index * static_cast<std::size_t>(d) + static_cast<std::size_t>(j)] =
          dot(hidden.data(), down, h) + bias;
      for (std::int64_t k = 0; k < h; ++k) {
        const double term = hidden[static_cast<std::size_t>(k)] * down[k];
        square += term * term;
      }
      square += bias * bias;
    }
    squares[index] = square;
  });
  double sum = 0;
  for (const double square : squares) sum += square;
  result.natural_size = std::sqrt(sum);
  return result;
}

std::vector<double> mlp_eager(const MlpValues& values, const std::vector<std::int64_t>& rows,
                              kiln::DType dtype) {
  const auto round = [dtype](double value) {
    unsigned char element[8];
    encode(dtype, value, element);
    return decode(dtype, element);
  };
  const std::int64_t d = values.d;
  std::vector<double> y(rows.size() * static_cast<std::size_t>(d));
  parallel_for(static_cast<std::int64_t>(rows.size()), [&](std::int64_t i) {
    const std::vector<double> hidden = hidden_row(values, rows[static_cast<std::size_t>(i)], round);
    for (std::int64_t j = 0; j < d; ++j) {
      const double* down = values.down.data() + j * values.h;
      y[static_cast<std::size_t>(i * d + j)] =
          round(dot(hidden.data(), down, values.h) + bias_at(values.down_bias, j));
    }
  });
  return y;
}

}  // namespace geglu_mlp_test
