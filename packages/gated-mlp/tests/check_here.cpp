// SPDX-License-Identifier: Apache-2.0
//
// The check that travels with a package of the family, for users' machines (docs/TESTED.md): every
// op, gate and dtype against the double reference, on kiln::testing's arrays. It is linked in the
// place of check_main.cpp and all that this has: no CUDA toolkit, no options, no records.
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kiln/testing.hpp"
#include "package.hpp"
#include "reference.hpp"

namespace gated_mlp_test {
namespace {

using kiln::DType;
using kiln::testing::Array;
using kiln::testing::Check;
using Values = std::vector<double>;

struct Shape {
  std::int64_t m, d, h;
};

struct MlpCase {
  DType dtype;
  Gate gate;
  Shape shape;
  bool whole;  ///< with biases and a residual
};

/// Against a value and the size that it has if nothing cancels: twice what CPUs have, those that
/// round h to the dtype as GPUs do among them. `weights`: of their gradients, whose elements differ
/// in size more than others' do.
double bound_of(DType dtype, bool weights) {
  const double bound = dtype == DType::kFloat32 ? 8e-6 : dtype == DType::kFloat16 ? 2.5e-3 : 2e-2;
  return weights ? 3 * bound : bound;
}

/// One rounding of the largest value, and float32's below it.
double bound_of_gated(DType dtype) {
  return dtype == DType::kFloat32 ? 1e-6 : dtype == DType::kFloat16 ? 5e-4 : 4e-3;
}

std::string name_of(const std::string& what, Gate gate, DType dtype) {
  const char* const word = dtype == DType::kFloat32   ? " float32"
                           : dtype == DType::kFloat16 ? " float16"
                                                      : " bfloat16";
  return what + " " + gated_mlp::name_of(gate) + word;
}

Values normal(std::size_t count, double deviation, std::mt19937& engine) {
  std::normal_distribution<double> distribution(0, deviation);
  Values values(count);
  for (double& value : values) value = distribution(engine);
  return values;
}

/// [D,H] of [H,D].
Values transposed(const Values& columns, std::int64_t d, std::int64_t h) {
  Values rows(columns.size());
  for (std::int64_t j = 0; j < h; ++j) {
    for (std::int64_t i = 0; i < d; ++i) {
      rows[static_cast<std::size_t>(i * h + j)] = columns[static_cast<std::size_t>(j * d + i)];
    }
  }
  return rows;
}

class MlpCheck {
 public:
  MlpCheck(Check& check, const Package& package, const MlpCase& c)
      : check_(check), package_(package), c_(c), engine_(static_cast<unsigned>(c.shape.m)) {}

  void run() {
    const auto [m, d, h] = c_.shape;
    const double of_d = 1 / std::sqrt(static_cast<double>(d));
    const double of_h = 1 / std::sqrt(static_cast<double>(h));
    Array x = filled({m, d}, 1), residual = filled({m, d}, 1);
    Array gate = filled({h, d}, of_d), up = filled({h, d}, of_d), down = filled({d, h}, of_h);
    Array gate_bias = filled({h}, 1), up_bias = filled({h}, 1), down_bias = filled({d}, 1);
    const auto given = [&](const Array& array) {
      return c_.whole ? array.tensor() : kiln::Tensor();
    };
    MlpWeights weights;
    weights.gate = gate.tensor();
    weights.up = up.tensor();
    weights.down = down.tensor();
    weights.gate_bias = given(gate_bias);
    weights.up_bias = given(up_bias);
    weights.down_bias = given(down_bias);
    MlpValues values;
    values.x = x.values();
    values.gate = gate.values();
    values.up = up.values();
    values.down = down.values();
    values.d = d;
    values.h = h;
    values.activation = c_.gate;
    if (c_.whole) {
      values.gate_bias = gate_bias.values();
      values.up_bias = up_bias.values();
      values.down_bias = down_bias.values();
      values.residual = residual.values();
    }
    const MlpLayer layer = package_.mlp(check_.kernel(), weights, c_.gate);
    const MlpInput input{x.tensor(), given(residual)};
    std::vector<std::int64_t> rows(static_cast<std::size_t>(m));
    std::iota(rows.begin(), rows.end(), 0);
    const MlpReference reference = mlp_reference(values, rows);

    kiln::OwnedWorkspace workspace(check_.kernel().device());
    Array y = empty({m, d}), kept_y = empty({m, d});
    Array gate_out = empty({m, h}), up_out = empty({m, h});
    layer.forward(input, y.tensor(), workspace.reserve(layer.workspace_bytes(x.tensor())), nullptr);
    compare("forward", y, reference.y, reference.natural_size, 0, false);
    const MlpKept kept{gate_out.tensor(), up_out.tensor()};
    layer.training_forward(input, kept_y.tensor(), kept,
                           workspace.reserve(layer.training_workspace_bytes(x.tensor(), kept)),
                           nullptr);
    compare("training_forward", kept_y, reference.y, reference.natural_size, 0, false);
    check_backward(layer, x, kept, values, rows, workspace);
  }

 private:
  Array filled(std::vector<std::int64_t> shape, double deviation) {
    Array array(check_.kernel().device(), c_.dtype, std::move(shape));
    array.set(normal(array.size(), deviation, engine_));
    return array;
  }
  Array empty(std::vector<std::int64_t> shape) {
    return {check_.kernel().device(), c_.dtype, std::move(shape)};
  }

  /// `size`: of all values together, if nothing cancelled.
  void compare(const char* what, const Array& found, const Values& expected, double size,
               double at_jumps, bool weights) {
    const double bound = bound_of(c_.dtype, weights);
    const double each = size / std::sqrt(static_cast<double>(expected.size())) + at_jumps / bound;
    Values terms(expected.size());
    for (std::size_t i = 0; i < terms.size(); ++i) terms[i] = each + std::abs(expected[i]);
    check_.compare(name_of(what, c_.gate, c_.dtype), found, expected, bound, terms);
  }

  void check_backward(const MlpLayer& layer, const Array& x, const MlpKept& kept,
                      const MlpValues& values, const std::vector<std::int64_t>& rows,
                      kiln::OwnedWorkspace& workspace) {
    const auto [m, d, h] = c_.shape;
    Array grad_y = filled({m, d}, 1);
    std::vector<std::int64_t> columns(static_cast<std::size_t>(h));
    std::iota(columns.begin(), columns.end(), 0);
    const MlpGradientReference expected =
        mlp_gradient_reference(values, grad_y.values(), {rows, columns}, bound_of_gated(c_.dtype));
    Array of_x = empty({m, d}), of_gate = empty({h, d}), of_up = empty({h, d});
    Array of_down = empty({d, h}), of_gate_bias = empty({h}), of_up_bias = empty({h});
    Array of_down_bias = empty({d});
    MlpGradients gradients;
    gradients.x = of_x.tensor();
    gradients.gate = of_gate.tensor();
    gradients.up = of_up.tensor();
    gradients.down = of_down.tensor();
    if (c_.whole) {
      gradients.gate_bias = of_gate_bias.tensor();
      gradients.up_bias = of_up_bias.tensor();
      gradients.down_bias = of_down_bias.tensor();
    }
    layer.backward(grad_y.tensor(), x.tensor(), kept, gradients,
                   workspace.reserve(layer.backward_workspace_bytes(grad_y.tensor(), x.tensor(),
                                                                    kept, gradients)),
                   nullptr);
    const auto agrees = [&](const char* what, const Array& found, const Gradient& gradient,
                            bool weights = false) {
      compare(what, found, gradient.values, gradient.natural_size, gradient.at_jumps, weights);
    };
    agrees("grad_x", of_x, expected.x);
    agrees("grad_gate", of_gate, expected.gate, true);
    agrees("grad_up", of_up, expected.up, true);
    compare("grad_down", of_down, transposed(expected.down.values, d, h),
            expected.down.natural_size, expected.down.at_jumps, true);
    if (!c_.whole) return;
    agrees("grad_gate_bias", of_gate_bias, expected.gate_bias);
    agrees("grad_up_bias", of_up_bias, expected.up_bias);
    agrees("grad_down_bias", of_down_bias, expected.down_bias);
  }

  Check& check_;
  const Package& package_;
  MlpCase c_;
  std::mt19937 engine_;
};

/// The two elementwise ops, rows apart.
void check_gated(Check& check, const Package& package, Gate gate, DType dtype) {
  std::mt19937 engine(7);
  const kiln::Device device = check.kernel().device();
  const auto array = [&] { return Array(device, dtype, {33, 136}, 8); };
  Array g = array(), u = array(), grad_out = array(), out = array(), grad_g = array(),
        grad_u = array();
  for (Array* each : {&g, &u, &grad_out}) each->set(normal(each->size(), 1, engine));
  const GatedLayer layer = package.gated(check.kernel(), gate);
  layer.forward(g.tensor(), u.tensor(), out.tensor(), nullptr);
  layer.backward(grad_out.tensor(), g.tensor(), u.tensor(), grad_g.tensor(), grad_u.tensor(),
                 nullptr);
  const Values gs = g.values(), us = u.values(), grads = grad_out.values();
  Values value(gs.size()), of_gate(gs.size()), of_up(gs.size());
  for (std::size_t i = 0; i < gs.size(); ++i) {
    value[i] = activate(gate, gs[i]) * factor(gate, us[i]);
    of_gate[i] = grads[i] * activation_slope(gate, gs[i]).value * factor(gate, us[i]);
    of_up[i] = grads[i] * activate(gate, gs[i]) * factor_slope(gate, us[i]);
  }
  const double bound = bound_of_gated(dtype);
  check.compare(name_of("gated", gate, dtype), out, value, bound);
  check.compare(name_of("gated gate's gradient", gate, dtype), grad_g, of_gate, bound);
  check.compare(name_of("gated up's gradient", gate, dtype), grad_u, of_up, bound);
}

}  // namespace

int check_main(int argc, char** argv, const Package& package) {
  return kiln::testing::run_check(
      argc, argv, package.name, package.version, [&package](Check& check, bool light) {
        const bool gpu = check.kernel().device().kind == kiln::Device::Kind::kCuda;
        std::vector<DType> dtypes = {DType::kBFloat16, DType::kFloat16};
        if (!gpu) dtypes.push_back(DType::kFloat32);
        std::vector<Shape> shapes = {{1, 64, 128}, {17, 33, 70}, {130, 72, 200}};
        if (!light) {
          shapes.insert(shapes.end(),
                        {{8, 768, 1536}, {64, 256, 520}, {300, 128, 264}, {513, 512, 776}});
        }
        for (const Gate gate : package.gates) {
          for (const DType dtype : dtypes) {
            for (const Shape shape : shapes) {
              for (const bool whole : {false, true}) {
                MlpCheck(check, package, {dtype, gate, shape, whole}).run();
              }
            }
            check_gated(check, package, gate, dtype);
          }
        }
        for (const Refusal& refusal : package.refusals) {
          check.refused(refusal.word, [&] { refusal.call(check.kernel()); });
        }
      });
}

}  // namespace gated_mlp_test
