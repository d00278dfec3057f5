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
KILN_WIDEST_VECTORS double dot(const double* a, const double* b, std::int64_t count) {
  constexpr std::int64_t kSums = 16;
  std::array<double, kSums> sums{};
  std::int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (std::int64_t lane = 0; lane < kSums; ++lane) {
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

// Calls function(first, last) for pieces of [0, count) on all CPUs.
template <class Function>
void for_pieces(std::int64_t count, const Function& function) {
  constexpr std::int64_t kPiece = 16;
  parallel_for((count + kPiece - 1) / kPiece, [&](std::int64_t piece) {
    function(piece * kPiece, std::min(count, (piece + 1) * kPiece));
  });
}

/// The asked rows of h; `round` is applied to the result of every operation. A thread keeps to some
/// columns and takes all rows, so that each weight comes from memory once.
template <class Round>
std::vector<double> hidden_of(const MlpValues& values, const std::vector<std::int64_t>& rows,
                              const Round& round) {
  const std::int64_t d = values.d;
  const std::int64_t h = values.h;
  std::vector<double> hidden(rows.size() * static_cast<std::size_t>(h));
  for_pieces(h, [&](std::int64_t first, std::int64_t last) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const double* x = values.x.data() + rows[i] * d;
      for (std::int64_t j = first; j < last; ++j) {
        const double gate =
            round(dot(x, values.gate.data() + j * d, d) + bias_at(values.gate_bias, j));
        const double up = round(dot(x, values.up.data() + j * d, d) + bias_at(values.up_bias, j));
        hidden[i * static_cast<std::size_t>(h) + static_cast<std::size_t>(j)] =
            round(round(gelu(gate, values.exact)) * up);
      }
    }
  });
  return hidden;
}
template <class Round>
std::vector<double> outputs_of(const MlpValues& values, const std::vector<double>& hidden,
                               std::size_t rows, const Round& round) {
  const std::int64_t d = values.d;
  const std::int64_t h = values.h;
  std::vector<double> y(rows * static_cast<std::size_t>(d));
  for_pieces(d, [&](std::int64_t first, std::int64_t last) {
    for (std::size_t i = 0; i < rows; ++i) {
      const double* row = hidden.data() + static_cast<std::int64_t>(i) * h;
      for (std::int64_t j = first; j < last; ++j) {
        y[i * static_cast<std::size_t>(d) + static_cast<std::size_t>(j)] =
            round(dot(row, values.down.data() + j * h, h) + bias_at(values.down_bias, j));
      }
    }
  });
  return y;
}

/// Of each column of h the sum of its weights' squares in down.
std::vector<double> squares_of_down(const MlpValues& values) {
  std::vector<double> squares(static_cast<std::size_t>(values.h));
  for_pieces(values.h, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t j = 0; j < values.d; ++j) {
      const double* down = values.down.data() + j * values.h;
      for (std::int64_t k = first; k < last; ++k) {
        squares[static_cast<std::size_t>(k)] += down[k] * down[k];
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
