// SPDX-License-Identifier: Apache-2.0
//
// Reference: the package's formulas in double, straight from their definitions; and the same with
// the roundings of a framework, to compare errors with.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "gate.h"
#include "kiln/tensor.hpp"

namespace gated_mlp_test {

using gated_mlp::Gate;

inline constexpr double kCheckedLimit = 1.25;  ///< of kSiluClamped: random inputs are on both sides

/// gate.h's a(g) and f(u), and their derivatives.
double activate(Gate gate, double g);
double factor(Gate gate, double u);
double factor_slope(Gate gate, double u);

struct Slope {
  double value;
  double natural_size;  ///< were its two terms not of opposite signs: gelu's is 0 near -0.75
};
Slope activation_slope(Gate gate, double g);

struct MlpValues {
  std::vector<double> x, gate, up, down;
  std::vector<double> gate_bias, up_bias, down_bias;  ///< empty: none
  std::vector<double> residual;                       ///< of all rows of x; empty: none
  std::int64_t d = 0;
  std::int64_t h = 0;
  Gate activation = Gate::kGeluTanh;
  double greatest = std::numeric_limits<double>::infinity();  ///< beyond it h saturates
};

struct MlpReference {
  std::vector<double> y;  ///< the asked rows, [rows, d]
  /// Square root of the sum of all (h * down)^2, biases^2 and residuals^2: the size of y if nothing
  /// cancelled. An error is measured against it where y itself is smaller.
  double natural_size = 0;
  /// The same, were each h the product of two sums in which nothing cancelled either. Of few values
  /// all of h may be one sum near 0, the others cut off by ReLU.
  double uncancelled_size = 0;
};

/// What the references of all gates share, of the asked rows: x gate^T and x up^T with their
/// biases, [rows, h], and the sizes of down and of the products.
struct MlpProducts {
  std::vector<double> gate, up;
  std::vector<double> squares_of_down;  ///< [h]: of each column of down
  double uncancelled_size = 0;
};
MlpProducts mlp_products(const MlpValues& values, const std::vector<std::int64_t>& rows);

/// `products`: those of the same values and rows; the activation and the residual may be others.
MlpReference mlp_reference(const MlpValues& values, const std::vector<std::int64_t>& rows,
                           const MlpProducts& products);
MlpReference mlp_reference(const MlpValues& values, const std::vector<std::int64_t>& rows);

/// Which part of the gradients a reference has: these rows of grad_x; and for these hidden columns
/// the rows of grad_gate and grad_up and the columns of grad_down.
struct GradientSample {
  std::vector<std::int64_t> rows, columns;
};

struct Gradient {
  std::vector<double> values;
  /// As in MlpReference: its size if its sums did not cancel; and if the sums within its terms
  /// did not cancel either.
  double natural_size = 0;
  double uncancelled_size = 0;
  /// How far off it may be since some inputs of the gate lie so near a jump of its slope (ReLU's,
  /// a clamp's) that rounding takes them across.
  double at_jumps = 0;
};

struct MlpGradientReference {
  Gradient x;                   ///< [rows, d]
  Gradient gate, up;            ///< [columns, d]
  Gradient down;                ///< [columns, d]: grad_down's columns one after the other
  Gradient gate_bias, up_bias;  ///< [columns]
  Gradient down_bias;           ///< [d]
};

/// The gradients of the sum of y * grad_y. `rounding`: the relative rounding of the products of
/// gate and up before their slopes are taken.
MlpGradientReference mlp_gradient_reference(const MlpValues& values,
                                            const std::vector<double>& grad_y,
                                            const GradientSample& sample, double rounding);

/// y[rows, d] as a framework gives it that runs one kernel an operation: both projections with
/// their biases, the activation, the product, the result and its sum with the residual are each
/// rounded to `dtype`, and to nothing else.
std::vector<double> mlp_eager(const MlpValues& values, const std::vector<std::int64_t>& rows,
                              const MlpProducts& products, kiln::DType dtype);

}  // namespace gated_mlp_test
