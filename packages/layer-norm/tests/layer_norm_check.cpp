// SPDX-License-Identifier: Apache-2.0
//
// layer_norm_check: forward and backward against double precision on each device: three dtypes, two
// eps, odd sizes, rows that lie apart and constant ones, what may be left out left out, in place;
// and what is refused. The command line is that of kiln::testing::run_check.
#include <cmath>
#include <cstdint>
#include <kiln/kiln.hpp>
#include <kiln/ops/layer_norm.hpp>
#include <kiln/testing.hpp>
#include <random>
#include <string>
#include <vector>

namespace {

namespace ops = kiln::ops::layer_norm;
using kiln::DType;
using kiln::Tensor;
using kiln::testing::Array;
using kiln::testing::Check;
using Values = std::vector<double>;

/// A rounding to the dtype and some of float32, as a part of an element's terms. `sums`: of a
/// gradient over all rows, whose terms are rounded as they are added up.
double bound_of(DType dtype, bool sums = false) {
  if (dtype == DType::kFloat32) return sums ? 4e-6 : 1e-6;
  return dtype == DType::kFloat16 ? 5e-4 : 4e-3;
}

std::string name_of(const std::string& what, DType dtype) {
  return what + (dtype == DType::kFloat32   ? " float32"
                 : dtype == DType::kFloat16 ? " float16"
                                            : " bfloat16");
}

struct Case {
  DType dtype;
  std::int64_t rows, columns;
  bool whole;     ///< with bias, residual and all gradients; else with none of them
  bool in_place;  ///< y is x, h the residual, grad_h is h; else rows lie apart
  bool constant;  ///< each row one large value: a variance of 0
  bool without_eps = false;

  double eps() const {
    if (without_eps) return 0;
    return in_place ? 1e-3 : 1e-5;  // the second is the ops' default
  }
};

/// What is expected of each element, and the magnitude of the terms that it is a sum of.
struct Expected {
  explicit Expected(std::size_t size) : values(size), terms(size) {}
  void add(std::size_t i, double term) {
    values[i] += term;
    terms[i] += std::abs(term);
  }
  Values values, terms;
};

/// One row's, in units of its deviation.
struct Normal {
  Normal(const double* h, std::size_t count, double eps) {
    for (std::size_t d = 0; d < count; ++d) mean += h[d] / static_cast<double>(count);
    double variance = 0;
    for (std::size_t d = 0; d < count; ++d) {
      variance += (h[d] - mean) * (h[d] - mean) / static_cast<double>(count);
    }
    scale = 1 / std::sqrt(variance + eps);
  }
  double of(double h) const { return (h - mean) * scale; }
  double mean = 0;
  double scale = 0;
};

class Layer {
 public:
  Layer(Check& check, const Case& c)
      : check_(check), c_(c), engine_(static_cast<unsigned>(c.rows * 1000 + c.columns)) {}

  void run() {
    Array x = rows();
    Array residual = rows();
    Array weight(device(), c_.dtype, {c_.columns});
    Array bias(device(), c_.dtype, {c_.columns});
    for (Array* each : {&x, &residual}) each->set(random_rows(*each));
    for (Array* each : {&weight, &bias}) each->set(random(*each));
    const Values x_values = x.values();
    const Values residual_values = residual.values();
    Values sum = x_values;
    for (std::size_t i = 0; i < sum.size() && c_.whole; ++i) sum[i] += residual_values[i];
    Array y = rows();
    Array h_own = rows();
    Array& y_place = c_.in_place ? x : y;
    Array& h_place = c_.in_place ? residual : h_own;
    const Tensor given_bias = c_.whole ? bias.tensor() : Tensor();
    if (c_.whole) {
      check_.kernel().op<ops::ForwardResidual>().run({.x = x.tensor(),
                                                      .residual = residual.tensor(),
                                                      .weight = weight.tensor(),
                                                      .bias = given_bias,
                                                      .y = y_place.tensor(),
                                                      .h = h_place.tensor(),
                                                      .attributes = {.eps = c_.eps()}});
    } else {
      check_.kernel().op<ops::Forward>().run({.x = x.tensor(),
                                              .weight = weight.tensor(),
                                              .bias = given_bias,
                                              .y = y_place.tensor(),
                                              .attributes = {.eps = c_.eps()}});
    }
    const Values h = c_.whole ? h_place.values() : x_values;
    if (c_.whole) check_.compare(name_of("h", c_.dtype), h_place, sum, bound_of(c_.dtype));
    compare("y", y_place, expected_y(h, weight.values(), bias.values()));
    backward(h, weight);
  }

 private:
  kiln::Device device() const { return check_.kernel().device(); }
  Array rows() const {
    return Array(device(), c_.dtype, {c_.rows, c_.columns}, c_.in_place ? 0 : 5);
  }
  Values random(const Array& of) {
    std::normal_distribution<double> normal;
    Values values(of.size());
    for (double& value : values) value = normal(engine_);
    return values;
  }
  /// Their mean is some deviations away from 0.
  Values random_rows(const Array& of) {
    Values values = random(of);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t first = i - i % static_cast<std::size_t>(c_.columns);
      values[i] = c_.constant ? 100 * values[first] : values[i] + 3;
    }
    return values;
  }

  Expected expected_y(const Values& h, const Values& weight, const Values& bias) const {
    const auto columns = static_cast<std::size_t>(c_.columns);
    Expected y(h.size());
    for (std::size_t first = 0; first < h.size(); first += columns) {
      const Normal row(&h[first], columns, c_.eps());
      for (std::size_t d = 0; d < columns; ++d) {
        const double factor = row.scale * weight[d];
        y.add(first + d, h[first + d] * factor);
        y.add(first + d, -row.mean * factor);
        if (c_.whole) y.add(first + d, bias[d]);
      }
    }
    return y;
  }

  void backward(const Values& h, const Array& weight) {
    const auto columns = static_cast<std::size_t>(c_.columns);
    Array kept = rows();
    Array grad_y = rows();
    Array grad_h_more = rows();
    kept.set(h);
    for (Array* each : {&grad_y, &grad_h_more}) each->set(random(*each));
    Expected grad_h(h.size()), grad_weight(columns), grad_bias(columns);
    const Values g = grad_y.values(), added = grad_h_more.values(), weights = weight.values();
    for (std::size_t first = 0; first < h.size(); first += columns) {
      const Normal row(&h[first], columns, c_.eps());
      Expected sums(2);  // of the gradient of `normal`, and of its products with `normal`
      for (std::size_t d = 0; d < columns; ++d) {
        const double grad = g[first + d] * weights[d] / static_cast<double>(columns);
        sums.add(0, grad);
        sums.add(1, grad * row.of(h[first + d]));
      }
      for (std::size_t d = 0; d < columns; ++d) {
        const std::size_t i = first + d;
        const double normal = row.of(h[i]);
        // h is rounded before its mean is taken off, which tells in `normal` by this much.
        const double terms = (std::abs(h[i]) + std::abs(row.mean)) * row.scale;
        grad_h.values[i] =
            row.scale * (g[i] * weights[d] - sums.values[0] - sums.values[1] * normal);
        grad_h.terms[i] = row.scale * (std::abs(g[i] * weights[d]) + sums.terms[0] +
                                       sums.terms[1] * (std::abs(normal) + terms));
        if (c_.whole) grad_h.add(i, added[i]);
        grad_weight.add(d, g[i] * normal);
        grad_weight.terms[d] += std::abs(g[i]) * terms;
        grad_bias.add(d, g[i]);
      }
    }
    Array out = rows();
    Array of_weight(device(), c_.dtype, {c_.columns});
    Array of_bias(device(), c_.dtype, {c_.columns});
    Array& out_place = c_.in_place ? kept : out;
    const ops::Backward call = {.grad_y = grad_y.tensor(),
                                .h = kept.tensor(),
                                .weight = weight.tensor(),
                                .grad_h_more = c_.whole ? grad_h_more.tensor() : Tensor(),
                                .grad_h = out_place.tensor(),
                                .grad_weight = c_.whole ? of_weight.tensor() : Tensor(),
                                .grad_bias = c_.whole ? of_bias.tensor() : Tensor(),
                                .attributes = {.eps = c_.eps()}};
    const auto op = check_.kernel().op<ops::Backward>();
    kiln::OwnedWorkspace workspace(device());
    op.run(call, workspace.reserve(op.workspace_bytes(call)));
    compare("grad_h", out_place, grad_h);
    if (!c_.whole) return;
    compare("grad_weight", of_weight, grad_weight, true);
    compare("grad_bias", of_bias, grad_bias, true);
  }

  void compare(const std::string& what, const Array& found, const Expected& expected,
               bool sums = false) {
    check_.compare(name_of(what, c_.dtype), found, expected.values, bound_of(c_.dtype, sums),
                   expected.terms);
  }

  Check& check_;
  Case c_;
  std::mt19937 engine_;
};

/// Rows so far from 0 that rounding leaves something of their mean: a variance below 0 is none.
void check_constant_rows(Check& check) {
  constexpr std::int64_t kRows = 64;
  constexpr std::int64_t kColumns = 7168;
  Array x(check.kernel().device(), DType::kFloat32, {kRows, kColumns});
  Array weight(check.kernel().device(), DType::kFloat32, {kColumns});
  Array bias(check.kernel().device(), DType::kFloat32, {kColumns});
  const Array y(check.kernel().device(), DType::kFloat32, {kRows, kColumns});
  std::mt19937 engine(7);
  std::uniform_real_distribution<float> value(3e7F, 6e7F);
  Values values;
  for (std::int64_t row = 0; row < kRows; ++row)
    values.resize(values.size() + kColumns, value(engine));
  x.set(values);
  weight.set(Values(kColumns, 1.0));
  bias.set(Values(kColumns, 0.5));
  check.kernel().op<ops::Forward>().run(
      {.x = x.tensor(), .weight = weight.tensor(), .bias = bias.tensor(), .y = y.tensor()});
  check.compare("constant rows", y, Values(kRows * kColumns, 0.5), 0.05);
}

void check_refusals(Check& check) {
  const Array memory(check.kernel().device(), DType::kFloat32, {4, 16});
  const Array weight(check.kernel().device(), DType::kFloat32, {8});
  const auto at = [&](std::int64_t column) { return memory.tensor().columns(column, 8); };
  const auto forward = [&](const Tensor& x, const Tensor& y) {
    check.kernel().op<ops::Forward>().run({.x = x, .weight = weight.tensor(), .y = y});
  };
  check.refused("forward: y overlaps x; expected the same place or memory of its own",
                [&] { forward(at(0), at(4)); });
  check.refused("forward_residual: h overlaps y; expected memory of its own", [&] {
    check.kernel().op<ops::ForwardResidual>().run(
        {.x = at(0), .residual = at(0), .weight = weight.tensor(), .y = at(8), .h = at(8)});
  });
  forward(at(0), at(8));  // columns of one matrix, side by side
}

}  // namespace

int main(int argc, char** argv) {
  return kiln::testing::run_check(
      argc, argv, ops::kPackage, ops::kVersion, [](Check& check, bool light) {
        for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
          for (const std::int64_t rows : {0, 1, 3, 300}) {
            for (const std::int64_t columns : {1, 7, 256, 1000, 5000}) {
              if (light && (columns == 1 || columns > 1000)) continue;
              if (rows > 3 && columns > 256) continue;
              for (const bool in_place : {false, true}) {
                Layer(check, {dtype, rows, columns, false, in_place, false}).run();
                Layer(check, {dtype, rows, columns, true, in_place, false}).run();
                Layer(check, {dtype, rows, columns, true, in_place, true}).run();
              }
            }
          }
          // Several rows in turn, and each width that kernels are compiled for.
          for (const std::int64_t columns : {1000, 2000, 3000, 5000, 9000}) {
            // Backward of so many float32 is refused where shared memory has no room.
            if (light || (dtype == DType::kFloat32 && columns > 8192)) continue;
            for (const bool in_place : {false, true}) {
              Layer(check, {dtype, 600, columns, true, in_place, false}).run();
            }
          }
          // Rows that no tile ends with.
          for (const std::int64_t rows : {1, 3, 77}) {
            Layer(check, {dtype, rows, 256, true, false, false, true}).run();
          }
        }
        check_constant_rows(check);
        check_refusals(check);
      });
}
