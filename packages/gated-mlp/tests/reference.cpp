// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

#include "numbers.hpp"

namespace gated_mlp_test {
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
// A check that travels has no runtime that asks the CPU.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(KILN_CHECK_LAYER)
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

/// The asked rows of x times the weights' rows, with their bias: [rows, h].
std::vector<double> sums_of(const MlpValues& values, const std::vector<std::int64_t>& rows,
                            const std::vector<double>& weights, const std::vector<double>& bias) {
  const auto d = static_cast<std::size_t>(values.d);
  return matrix_of(rows.size(), static_cast<std::size_t>(values.h),
                   [&](std::size_t i, std::size_t j) {
                     const double* x = values.x.data() + static_cast<std::size_t>(rows[i]) * d;
                     return dot(x, weights.data() + j * d, d) + bias_at(bias, j);
                   });
}

/// The asked rows of h and of y; `round` is applied to the result of every operation.
template <class Round>
std::vector<double> hidden_of(const MlpValues& values, const MlpProducts& products,
                              const Round& round) {
  const auto h = static_cast<std::size_t>(values.h);
  const std::size_t rows = h == 0 ? 0 : products.gate.size() / h;
  return matrix_of(rows, h, [&](std::size_t i, std::size_t j) {
    const double gate = round(products.gate[i * h + j]);
    const double up = round(products.up[i * h + j]);
    const double hidden =
        round(activate(values.activation, gate)) * round(factor(values.activation, up));
    return round(std::clamp(hidden, -values.greatest, values.greatest));
  });
}
template <class Round>
std::vector<double> outputs_of(const MlpValues& values, const std::vector<double>& hidden,
                               const std::vector<std::int64_t>& rows, const Round& round) {
  const auto d = static_cast<std::size_t>(values.d);
  const auto h = static_cast<std::size_t>(values.h);
  return matrix_of(rows.size(), d, [&](std::size_t i, std::size_t j) {
    const double y = round(dot(hidden.data() + i * h, values.down.data() + j * h, h) +
                           bias_at(values.down_bias, j));
    if (values.residual.empty()) return y;
    return round(y + values.residual[static_cast<std::size_t>(rows[i]) * d + j]);
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

/// What one element of the hidden layer multiplies a row with, and its sizes as in Gradient.
struct Coefficient {
  double value = 0;
  double natural = 0;
  double uncancelled = 0;
  double at_jump = 0;
};
struct HiddenGradients {
  Coefficient gate, up;  // the gradients of both products
  Coefficient hidden;    // h itself
};

/// Rows of a matrix of this width, and the length of each.
struct Rows {
  Rows(const std::vector<double>& matrix, std::size_t width)
      : data(matrix.data()), lengths(width == 0 ? 0 : matrix.size() / width) {
    parallel_pieces(lengths.size(), kColumnsAtOnce, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        lengths[i] = std::sqrt(dot(data + i * width, data + i * width, width));
      }
    });
  }
  const double* data;
  std::vector<double> lengths;
};

/// A sum of products, and its size were none of them to cancel.
struct Sum {
  double value;
  double size;
  double uncancelled() const { return std::max(std::abs(value), size); }
};

class HiddenLayer {
 public:
  HiddenLayer(const MlpValues& values, const std::vector<double>& grad_y, double rounding)
      : values_(values),
        rounding_(rounding),
        d_(static_cast<std::size_t>(values.d)),
        transposed_down_(transposed(values.down, static_cast<std::size_t>(values.h), d_)),
        grad_y_(grad_y, d_),
        x_(values.x, d_),
        gate_(values.gate, d_),
        up_(values.up, d_),
        down_(transposed_down_, d_) {}

  HiddenGradients at(std::size_t row, std::size_t column) const {
    const Gate kind = values_.activation;
    const Sum grad = sum_of(grad_y_, row, down_, column, 0);
    const Sum g = sum_of(x_, row, gate_, column, bias_at(values_.gate_bias, column));
    const Sum u = sum_of(x_, row, up_, column, bias_at(values_.up_bias, column));
    const double a = activate(kind, g.value);
    const double f = factor(kind, u.value);
    const Slope a_slope = activation_slope(kind, g.value);
    const double f_slope = factor_slope(kind, u.value);
    const double a_size = std::max(std::abs(a), g.size);
    const double f_size = std::max(std::abs(f), u.size);
    HiddenGradients result;
    result.gate.value = grad.value * f * a_slope.value;
    result.gate.natural = grad.value * f * a_slope.natural_size;
    result.gate.uncancelled = grad.uncancelled() * f_size * a_slope.natural_size;
    result.up.value = result.up.natural = grad.value * a * f_slope;
    result.up.uncancelled = grad.uncancelled() * a_size * f_slope;
    result.hidden.value = result.hidden.natural =
        std::clamp(a * f, -values_.greatest, values_.greatest);
    result.hidden.uncancelled = a_size * f_size;
    if (kind == Gate::kRelu && near(g, 0)) result.gate.at_jump = grad.value * f;
    if (kind == Gate::kSiluClamped) {
      const double height = activation_slope(kind, kCheckedLimit).natural_size;
      if (near(g, kCheckedLimit)) result.gate.at_jump = grad.value * f * height;
      if (near(u, kCheckedLimit) || near(u, -kCheckedLimit)) result.up.at_jump = grad.value * a;
    }
    return result;
  }

 private:
  static std::vector<double> transposed(const std::vector<double>& matrix, std::size_t columns,
                                        std::size_t rows) {
    std::vector<double> result(matrix.size());
    parallel_pieces(columns, kColumnsAtOnce, [&](std::size_t first, std::size_t last) {
      for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t j = first; j < last; ++j) {
          result[j * rows + row] = matrix[row * columns + j];
        }
      }
    });
    return result;
  }

  Sum sum_of(const Rows& a, std::size_t row, const Rows& b, std::size_t column, double bias) const {
    if (d_ == 0) return {bias, std::abs(bias)};
    const double size = a.lengths[row] * b.lengths[column] / std::sqrt(static_cast<double>(d_));
    return {dot(a.data + row * d_, b.data + column * d_, d_) + bias, size + std::abs(bias)};
  }

  bool near(const Sum& sum, double jump) const {
    constexpr double kNoise = 1e-6;  // of sums in fp32
    return std::abs(sum.value - jump) <= rounding_ * std::abs(jump) + kNoise * sum.uncancelled();
  }

  const MlpValues& values_;
  double rounding_;
  std::size_t d_;
  std::vector<double> transposed_down_;  // [h, d]
  Rows grad_y_, x_, gate_, up_, down_;
};

std::vector<std::int64_t> all_of(std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// [rows, columns] of the hidden layer.
std::vector<HiddenGradients> hidden_gradients(const HiddenLayer& layer,
                                              const std::vector<std::int64_t>& rows,
                                              const std::vector<std::int64_t>& columns) {
  std::vector<HiddenGradients> all(rows.size() * columns.size());
  parallel_pieces(columns.size(), kColumnsAtOnce, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t j = first; j < last; ++j) {
        all[i * columns.size() + j] =
            layer.at(static_cast<std::size_t>(rows[i]), static_cast<std::size_t>(columns[j]));
      }
    }
  });
  return all;
}

/// to[o, width] += the sum over i in [0, count) of coefficient(o, i) * row i of `matrix`. Sizes
/// stay squares until all is added.
template <class CoefficientAt>
void add_products(std::size_t outputs, std::size_t count, const CoefficientAt& coefficient,
                  const std::vector<double>& matrix, std::size_t width, Gradient& to) {
  to.values.resize(outputs * width);
  const Rows rows(matrix, width);
  std::vector<Coefficient> squares(outputs);
  parallel_for(static_cast<std::int64_t>(outputs), [&](std::int64_t output) {
    const auto o = static_cast<std::size_t>(output);
    double* const sum = to.values.data() + o * width;
    for (std::size_t i = 0; i < count; ++i) {
      const Coefficient by = coefficient(o, i);
      const double* row = matrix.data() + i * width;
      for (std::size_t c = 0; c < width; ++c) sum[c] += by.value * row[c];
      const double square = width == 0 ? 0 : rows.lengths[i] * rows.lengths[i];
      squares[o].natural += by.natural * by.natural * square;
      squares[o].uncancelled += by.uncancelled * by.uncancelled * square;
      squares[o].at_jump += by.at_jump * by.at_jump * square;
    }
  });
  for (const Coefficient& square : squares) {
    to.natural_size += square.natural;
    to.uncancelled_size += square.uncancelled;
    to.at_jumps += square.at_jump;
  }
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

MlpProducts mlp_products(const MlpValues& values, const std::vector<std::int64_t>& rows) {
  MlpProducts products;
  products.gate = sums_of(values, rows, values.gate, values.gate_bias);
  products.up = sums_of(values, rows, values.up, values.up_bias);
  products.squares_of_down = squares_of_down(values);
  products.uncancelled_size = uncancelled_size(values, rows, products.squares_of_down);
  return products;
}

MlpReference mlp_reference(const MlpValues& values, const std::vector<std::int64_t>& rows) {
  return mlp_reference(values, rows, mlp_products(values, rows));
}

MlpReference mlp_reference(const MlpValues& values, const std::vector<std::int64_t>& rows,
                           const MlpProducts& products) {
  const auto exact = [](double value) { return value; };
  const std::vector<double> hidden = hidden_of(values, products, exact);
  MlpReference result;
  result.y = outputs_of(values, hidden, rows, exact);
  const std::vector<double>& squares = products.squares_of_down;
  double sum = 0;
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    sum += hidden[i] * hidden[i] * squares[i % squares.size()];
  }
  for (const double bias : values.down_bias) sum += bias * bias * static_cast<double>(rows.size());
  if (!values.residual.empty()) {
    const auto d = static_cast<std::size_t>(values.d);
    for (const std::int64_t row : rows) {
      const double* residual = values.residual.data() + static_cast<std::size_t>(row) * d;
      sum += dot(residual, residual, d);
    }
  }
  result.natural_size = std::sqrt(sum);
  result.uncancelled_size = products.uncancelled_size;
  return result;
}

MlpGradientReference mlp_gradient_reference(const MlpValues& values,
                                            const std::vector<double>& grad_y,
                                            const GradientSample& sample, double rounding) {
  const HiddenLayer layer(values, grad_y, rounding);
  const auto d = static_cast<std::size_t>(values.d);
  const auto h = static_cast<std::size_t>(values.h);
  const std::size_t m = d == 0 ? 0 : values.x.size() / d;
  const std::size_t columns = sample.columns.size();
  MlpGradientReference result;

  const std::vector<HiddenGradients> wide = hidden_gradients(layer, sample.rows, all_of(values.h));
  const auto of_rows = [&](Coefficient HiddenGradients::*part) {
    return [&, part](std::size_t row, std::size_t j) { return wide[row * h + j].*part; };
  };
  add_products(sample.rows.size(), h, of_rows(&HiddenGradients::gate), values.gate, d, result.x);
  add_products(sample.rows.size(), h, of_rows(&HiddenGradients::up), values.up, d, result.x);

  const std::vector<HiddenGradients> tall =
      hidden_gradients(layer, all_of(static_cast<std::int64_t>(m)), sample.columns);
  const auto of_columns = [&](Coefficient HiddenGradients::*part) {
    return [&, part](std::size_t j, std::size_t row) { return tall[row * columns + j].*part; };
  };
  const std::vector<double> ones(m, 1.0);
  add_products(columns, m, of_columns(&HiddenGradients::gate), values.x, d, result.gate);
  add_products(columns, m, of_columns(&HiddenGradients::up), values.x, d, result.up);
  add_products(columns, m, of_columns(&HiddenGradients::hidden), grad_y, d, result.down);
  add_products(columns, m, of_columns(&HiddenGradients::gate), ones, 1, result.gate_bias);
  add_products(columns, m, of_columns(&HiddenGradients::up), ones, 1, result.up_bias);
  const auto of_grad_y = [&](std::size_t column, std::size_t row) {
    const double value = grad_y[row * d + column];
    return Coefficient{value, value, value, 0};
  };
  add_products(d, m, of_grad_y, ones, 1, result.down_bias);
  for (Gradient* each : {&result.x, &result.gate, &result.up, &result.down, &result.gate_bias,
                         &result.up_bias, &result.down_bias}) {
    each->natural_size = std::sqrt(each->natural_size);
    each->uncancelled_size = std::sqrt(each->uncancelled_size);
    each->at_jumps = std::sqrt(each->at_jumps);
  }
  return result;
}

std::vector<double> mlp_eager(const MlpValues& values, const std::vector<std::int64_t>& rows,
                              const MlpProducts& products, kiln::DType dtype) {
  const auto round = [dtype](double value) {
    unsigned char element[8];
    encode(dtype, value, element);
    return decode(dtype, element);
  };
  return outputs_of(values, hidden_of(values, products, round), rows, round);
}

}  // namespace gated_mlp_test
