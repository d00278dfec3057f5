// SPDX-License-Identifier: Apache-2.0
//
// rms_norm_check: forward and backward against double precision on each device: three dtypes, odd
// sizes and every kernel's, rows that lie apart, with and without a residual, in place; and what is
// refused. The command line is that of kiln::testing::run_check.
#include <cmath>
#include <cstdint>
#include <kiln/kiln.hpp>
#include <kiln/ops/rms_norm.hpp>
#include <kiln/testing.hpp>
#include <random>
#include <string>
#include <vector>

namespace {

namespace ops = kiln::ops::rms_norm;
using kiln::DType;
using kiln::Tensor;
using kiln::testing::Array;
using kiln::testing::Check;
using Values = std::vector<double>;

constexpr double kEps = 1e-5;

/// One rounding to the dtype, and a few of float32.
double bound_of(DType dtype) {
  return dtype == DType::kFloat32 ? 1e-6 : dtype == DType::kFloat16 ? 6e-4 : 4.5e-3;
}

/// Of sums over rows in float32.
constexpr double kSumsBound = 4e-6;

std::string name_of(const std::string& what, DType dtype) {
  return what + (dtype == DType::kFloat32   ? " float32"
                 : dtype == DType::kFloat16 ? " float16"
                                            : " bfloat16");
}

struct Case {
  DType dtype;
  std::int64_t rows, columns;
  bool residual;
  bool in_place;  ///< else rows lie apart
};

/// What the op should give, from the values that it had.
///
/// The gradient of h is at right angles to h, up to eps. Where grad_y times the weight lies along
/// h, as it always does with one column, its terms cancel, and float32's roundings of them are all
/// that is left: as large as those of a float32 grad_y itself. So its error is counted against
/// them.
struct Expected {
  Values y, grad_h, grad_h_terms, grad_weight;
};

Expected expected_of(const Case& c, double offset, const Values& h, const Values& weight,
                     const Values& grad_y) {
  const auto columns = static_cast<std::size_t>(c.columns);
  Expected expected{Values(h.size()), Values(h.size()), Values(h.size()), Values(columns)};
  for (std::size_t row = 0; row < h.size(); row += columns) {
    double squares = 0;
    double products = 0;
    double terms = 0;
    for (std::size_t d = 0; d < columns; ++d) {
      const double product = h[row + d] * grad_y[row + d] * (offset + weight[d]);
      squares += h[row + d] * h[row + d];
      products += product;
      terms += std::abs(product);
    }
    const auto count = static_cast<double>(c.columns);
    const double scale = 1 / std::sqrt(squares / count + kEps);
    for (std::size_t d = 0; d < columns; ++d) {
      const double factor = offset + weight[d];
      const double grad = grad_y[row + d] * factor;
      const double pulled = h[row + d] * scale * scale / count;
      expected.y[row + d] = h[row + d] * scale * factor;
      expected.grad_h[row + d] = scale * (grad - pulled * products);
      expected.grad_h_terms[row + d] = scale * (std::abs(grad) + std::abs(pulled) * terms);
      expected.grad_weight[d] += grad_y[row + d] * h[row + d] * scale;
    }
  }
  return expected;
}

void forward(const Check& check, const ops::Forward& arguments) {
  check.kernel().op<ops::Forward>().run(arguments);
}

void backward(const Check& check, const ops::Backward& arguments) {
  const auto op = check.kernel().op<ops::Backward>();
  kiln::OwnedWorkspace workspace(check.kernel().device());
  op.run(arguments, workspace.reserve(op.workspace_bytes(arguments)));
}

void check_case(Check& check, const Case& c) {
  std::mt19937 engine(static_cast<unsigned>(c.rows * 1000 + c.columns));
  const auto set = [&](Array& array) {
    std::normal_distribution<double> normal;
    Values values(array.size());
    for (double& value : values) value = normal(engine);
    array.set(values);
  };
  const kiln::Device device = check.kernel().device();
  const auto matrix = [&] {
    return Array(device, c.dtype, {c.rows, c.columns}, c.in_place ? 0 : c.residual ? 16 : 5);
  };
  const auto compare = [&](const char* what, const Array& found, const Values& expected,
                           const Values& terms = {}) {
    check.compare(name_of(what, c.dtype), found, expected, bound_of(c.dtype), terms);
  };
  Array x = matrix(), residual = matrix(), grad_y = matrix(), y = matrix(), h_out = matrix();
  Array weight(device, c.dtype, {c.columns});
  for (Array* each : {&x, &residual, &grad_y, &weight}) set(*each);
  const ops::ForwardAttributes attributes = {.eps = kEps, .offset = c.residual ? 1.0 : 0.0};

  Values sum = x.values();
  const Values added = residual.values();
  for (std::size_t i = 0; i < sum.size() && c.residual; ++i) sum[i] += added[i];
  Array& y_place = c.in_place ? x : y;
  Array& h_place = c.in_place ? residual : h_out;
  forward(check, {.x = x.tensor(),
                  .weight = weight.tensor(),
                  .residual = c.residual ? residual.tensor() : Tensor(),
                  .y = y_place.tensor(),
                  .h_out = c.residual ? h_place.tensor() : Tensor(),
                  .attributes = attributes});
  const Values h = c.residual ? h_place.values() : sum;
  const Expected expected = expected_of(c, attributes.offset, h, weight.values(), grad_y.values());
  compare("y", y_place, expected.y);
  if (c.residual) compare("h", h_place, sum);

  Array kept(device, c.dtype, {c.rows, c.columns});
  kept.set(h);
  Array grad_weight(device, c.dtype, {c.columns});
  Array grad_h = matrix();
  ops::Backward arguments = {.grad_y = grad_y.tensor(),
                             .h = kept.tensor(),
                             .weight = weight.tensor(),
                             .grad_h = grad_h.tensor(),
                             .grad_weight = grad_weight.tensor(),
                             .attributes = attributes};
  backward(check, arguments);
  compare("grad_h", grad_h, expected.grad_h, expected.grad_h_terms);
  check.compare(name_of("grad_weight", c.dtype), grad_weight, expected.grad_weight,
                c.dtype == DType::kFloat32 ? kSumsBound : bound_of(c.dtype));
  if (!c.in_place) return;  // where the gradient of weight is not asked for
  arguments.grad_h = kept.tensor();
  arguments.grad_weight = Tensor();
  backward(check, arguments);
  compare("grad_h", kept, expected.grad_h, expected.grad_h_terms);
}

void check_refusals(Check& check) {
  Array memory(check.kernel().device(), DType::kFloat32, {64});
  Array weight(check.kernel().device(), DType::kFloat32, {8});
  weight.set(Values(8, 1.0));
  memory.set(Values(64, 1.0));
  // [2,8] at an element of the memory.
  std::int64_t shape[] = {2, 8};
  std::int64_t strides[] = {16, 1};
  const auto at = [&](int element) {
    const Tensor whole = memory.tensor();
    DLTensor dl = whole.dl();
    dl.ndim = 2;
    dl.shape = shape;
    dl.strides = strides;
    dl.byte_offset += static_cast<std::uint64_t>(element) * sizeof(float);
    return Tensor(dl);
  };
  const Tensor w = weight.tensor();
  const Array sums(check.kernel().device(), DType::kFloat32, {8});
  for (const int element : {4, 16}) {
    check.refused("forward: y overlaps x; expected the same place or memory of its own",
                  [&] { forward(check, {.x = at(0), .weight = w, .y = at(element)}); });
  }
  check.refused("forward: h_out overlaps y; expected memory of its own", [&] {
    forward(check, {.x = at(0), .weight = w, .residual = at(8), .y = at(0), .h_out = at(0)});
  });
  check.refused("backward: grad_h overlaps h; expected memory of its own", [&] {
    backward(
        check,
        {.grad_y = at(8), .h = at(0), .weight = w, .grad_h = at(0), .grad_weight = sums.tensor()});
  });
  forward(check, {.x = at(0), .weight = w, .y = at(8)});  // columns of one matrix, side by side
}

/// A sum over 40,000 rows of what is alike, of which no rounding cancels another. On a CPU: a GPU
/// adds parts in float32.
void check_long_sums(Check& check) {
  if (check.kernel().device().kind != kiln::Device::Kind::kCpu) return;
  constexpr std::int64_t kRows = 40000;
  const kiln::Device device = check.kernel().device();
  const auto filled = [&](double value) {
    Array array(device, DType::kFloat32, {kRows, 2});
    array.set(Values(array.size(), value));
    return array;
  };
  const Array grad_y = filled(0.1), h = filled(1), grad_h(device, DType::kFloat32, {kRows, 2});
  Array weight(device, DType::kFloat32, {2}), grad_weight(device, DType::kFloat32, {2});
  weight.set(Values{1, 1});
  backward(check, {.grad_y = grad_y.tensor(),
                   .h = h.tensor(),
                   .weight = weight.tensor(),
                   .grad_h = grad_h.tensor(),
                   .grad_weight = grad_weight.tensor(),
                   .attributes = {.eps = kEps}});
  const double scale = 1 / std::sqrt(1 + kEps);
  check.compare("grad_weight float32", grad_weight, Values(2, kRows * grad_y.values()[0] * scale),
                kSumsBound);
}

}  // namespace

int main(int argc, char** argv) {
  return kiln::testing::run_check(argc, argv, "rms-norm", 1, [](Check& check, bool light) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const std::int64_t rows : {0, 1, 3, 16}) {
        for (const std::int64_t columns : {1, 7, 256, 1000}) {
          if (light && columns != 7 && columns != 256) continue;
          for (const bool residual : {false, true}) {
            for (const bool in_place : {false, true}) {
              check_case(check, {dtype, rows, columns, residual, in_place});
            }
          }
        }
      }
    }
    // A kernel for each width, and one for rows that are wider, or no whole vectors; more rows than
    // a gradient of weight has parts.
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const std::int64_t columns : {1024, 1032, 4096, 4104, 16384, 16392}) {
        if (light && columns > 1032) continue;
        const std::int64_t rows = columns <= 4096 ? 520 : 150;
        check_case(check, {dtype, 2, columns, true, true});
        check_case(check, {dtype, light ? 3 : rows, columns, false, false});
        check_case(check, {dtype, 3, columns, true, false});
      }
      check_case(check, {dtype, light ? 30 : 4500, 264, true, true});
    }
    check_long_sums(check);
    check_refusals(check);
  });
}
