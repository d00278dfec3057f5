// SPDX-License-Identifier: Apache-2.0
//
// The double reference of backward against the differences of its forward: an element of an input
// moves up and down, and the loss, the sum of y * grad_y, follows the gradient. And that of forward
// with a residual against the one without.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "numbers.hpp"
#include "reference.hpp"

namespace gated_mlp_test {
namespace {

constexpr std::int64_t kRows = 5;
constexpr std::int64_t kWidth = 7;   // D
constexpr std::int64_t kHidden = 9;  // H

struct Sample {
  MlpValues values;
  std::vector<double> grad_y;
};

Sample random_sample(Gate gate, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto draw = [&](std::int64_t count) {
    std::vector<double> numbers(static_cast<std::size_t>(count));
    for (double& number : numbers) number = normal(random);
    return numbers;
  };
  Sample sample;
  sample.values.x = draw(kRows * kWidth);
  sample.values.gate = draw(kHidden * kWidth);
  sample.values.up = draw(kHidden * kWidth);
  sample.values.down = draw(kWidth * kHidden);
  sample.values.gate_bias = draw(kHidden);
  sample.values.up_bias = draw(kHidden);
  sample.values.down_bias = draw(kWidth);
  sample.values.d = kWidth;
  sample.values.h = kHidden;
  sample.values.activation = gate;
  sample.grad_y = draw(kRows * kWidth);
  return sample;
}

std::vector<std::int64_t> all(std::int64_t count) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(i);
  return all;
}

double loss(const Sample& sample) {
  const std::vector<double> y = mlp_reference(sample.values, all(kRows)).y;
  double sum = 0;
  for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * sample.grad_y[i];
  return sum;
}

/// The central difference of the loss in one element of `input`, which is one of sample.values.
double difference(const Sample& sample, std::vector<double> MlpValues::*input,
                  std::size_t element) {
  constexpr double kStep = 1e-5;
  Sample beside = sample;
  double& moved = (beside.values.*input)[element];
  const double middle = moved;
  moved = middle + kStep;
  const double above = loss(beside);
  moved = middle - kStep;
  const double below = loss(beside);
  return (above - below) / (2 * kStep);
}

void check_gradient(const Sample& sample, std::vector<double> MlpValues::*input,
                    const std::vector<double>& gradient) {
  REQUIRE(gradient.size() == (sample.values.*input).size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double expected = difference(sample, input, i);
    CHECK(std::abs(gradient[i] - expected) <= 1e-6 * (1 + std::abs(expected)));
  }
}

/// grad_down as down lies: the reference has its columns one after the other.
std::vector<double> transposed(const std::vector<double>& columns) {
  std::vector<double> rows(columns.size());
  for (std::size_t i = 0; i < columns.size(); ++i) {
    rows[i % kWidth * kHidden + i / kWidth] = columns[i];
  }
  return rows;
}

}  // namespace

TEST_CASE("reference: each gradient is the slope of the loss, for every gate") {
  for (const Gate gate : {Gate::kGeluTanh, Gate::kGelu, Gate::kSilu, Gate::kRelu, Gate::kSigmoid,
                          Gate::kSiluClamped}) {
    CAPTURE(gated_mlp::name_of(gate));
    const Sample sample = random_sample(gate, 1);
    const MlpGradientReference gradients =
        mlp_gradient_reference(sample.values, sample.grad_y, {all(kRows), all(kHidden)}, 0);
    check_gradient(sample, &MlpValues::x, gradients.x.values);
    check_gradient(sample, &MlpValues::gate, gradients.gate.values);
    check_gradient(sample, &MlpValues::up, gradients.up.values);
    check_gradient(sample, &MlpValues::down, transposed(gradients.down.values));
    check_gradient(sample, &MlpValues::gate_bias, gradients.gate_bias.values);
    check_gradient(sample, &MlpValues::up_bias, gradients.up_bias.values);
    check_gradient(sample, &MlpValues::down_bias, gradients.down_bias.values);
  }
}

TEST_CASE("reference: a sample has the rows and columns that were asked for") {
  const Sample sample = random_sample(Gate::kSilu, 2);
  const MlpGradientReference whole =
      mlp_gradient_reference(sample.values, sample.grad_y, {all(kRows), all(kHidden)}, 0);
  const MlpGradientReference part =
      mlp_gradient_reference(sample.values, sample.grad_y, {{3, 0}, {8, 2}}, 0);
  const auto check_rows = [](const Gradient& some, const Gradient& every,
                             const std::vector<std::size_t>& rows, std::size_t width) {
    REQUIRE(some.values.size() == rows.size() * width);
    for (std::size_t i = 0; i < some.values.size(); ++i) {
      CHECK(some.values[i] == every.values[rows[i / width] * width + i % width]);
    }
  };
  check_rows(part.x, whole.x, {3, 0}, kWidth);
  check_rows(part.gate, whole.gate, {8, 2}, kWidth);
  check_rows(part.up, whole.up, {8, 2}, kWidth);
  check_rows(part.down, whole.down, {8, 2}, kWidth);
  check_rows(part.gate_bias, whole.gate_bias, {8, 2}, 1);
  check_rows(part.up_bias, whole.up_bias, {8, 2}, 1);
  CHECK(part.down_bias.values == whole.down_bias.values);
}

TEST_CASE("reference: y with a residual is y without one and that row of the residual") {
  Sample sample = random_sample(Gate::kSilu, 4);
  const std::vector<std::int64_t> rows = {3, 0};
  const MlpProducts products = mlp_products(sample.values, rows);
  const MlpReference without = mlp_reference(sample.values, rows, products);
  const std::vector<double> rounded_without =
      mlp_eager(sample.values, rows, products, kiln::DType::kBFloat16);
  sample.values.residual = sample.grad_y;
  const MlpReference with = mlp_reference(sample.values, rows, products);
  const std::vector<double> rounded =
      mlp_eager(sample.values, rows, products, kiln::DType::kBFloat16);
  REQUIRE(with.y.size() == rows.size() * kWidth);
  double squares = without.natural_size * without.natural_size;
  for (std::size_t i = 0; i < with.y.size(); ++i) {
    const std::size_t row = static_cast<std::size_t>(rows[i / kWidth]);
    const double residual = sample.grad_y[row * kWidth + i % kWidth];
    CHECK(with.y[i] == without.y[i] + residual);
    // Eager adds in an operation of its own.
    unsigned char element[8];
    encode(kiln::DType::kBFloat16, rounded_without[i] + residual, element);
    CHECK(rounded[i] == decode(kiln::DType::kBFloat16, element));
    squares += residual * residual;
  }
  CHECK(with.natural_size == doctest::Approx(std::sqrt(squares)));
}

TEST_CASE("reference: only inputs beside a jump of a slope may be off") {
  Sample sample = random_sample(Gate::kRelu, 3);
  const auto off = [&] {
    return mlp_gradient_reference(sample.values, sample.grad_y, {all(kRows), all(kHidden)}, 0)
        .gate_bias.at_jumps;
  };
  CHECK(off() == 0);
  // Row 0's product with gate's first row becomes 0.
  double product = 0;
  for (std::size_t i = 0; i < kWidth; ++i) product += sample.values.x[i] * sample.values.gate[i];
  sample.values.gate_bias[0] = -product;
  CHECK(off() > 0);
  sample.values.activation = Gate::kSilu;
  CHECK(off() == 0);
}

}  // namespace gated_mlp_test
