// SPDX-License-Identifier: Apache-2.0
//
// rms_norm_check: forward and backward against double precision on each device: three dtypes, odd
// sizes, rows that lie apart, with and without a residual, in place; and what is refused. Ends with
// 0 if all agrees, with 77 if this machine has none of the devices.
//
//   rms_norm_check [--registry R] [--device cpu|cuda] [--light] [FOLDER]     FOLDER: for the
//   records
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <kiln/kiln.hpp>
#include <kiln/layers/rms_norm.hpp>
#include <kiln/testing.hpp>
#include <random>
#include <string>
#include <vector>

namespace {

using kiln::DType;
using kiln::Tensor;
using kiln::layers::RmsNorm;
using kiln::testing::Array;

constexpr double kEps = 1e-5;

/// One rounding to the dtype, and a few of float32.
double bound_of(DType dtype) {
  return dtype == DType::kFloat32 ? 1e-6 : dtype == DType::kFloat16 ? 6e-4 : 4.5e-3;
}

const char* name_of(DType dtype) {
  return dtype == DType::kFloat32 ? "float32" : dtype == DType::kFloat16 ? "float16" : "bfloat16";
}

/// Rows of `columns` elements, `gap` elements apart. What is not a row is poison and must stay so.
class Matrix {
 public:
  Matrix(kiln::Device device, DType dtype, std::int64_t rows, std::int64_t columns,
         std::int64_t gap)
      : device_(device),
        rows_(rows),
        columns_(columns),
        stride_(columns + gap),
        array_(device, dtype, {rows, columns + gap}) {}

  /// Rounded to the dtype; the gaps stay NaN.
  void fill(std::mt19937& engine) {
    std::normal_distribution<double> normal;
    std::vector<double> all(static_cast<std::size_t>(rows_ * stride_), std::nan(""));
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (static_cast<std::int64_t>(i) % stride_ < columns_) all[i] = normal(engine);
    }
    array_.set(all);
  }
  std::vector<double> values() const {
    const std::vector<double> all = array_.values();
    std::vector<double> rows;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (static_cast<std::int64_t>(i) % stride_ < columns_) rows.push_back(all[i]);
    }
    return rows;
  }
  Tensor tensor() {
    DLTensor dl = array_.tensor().dl();
    shape_[0] = rows_;
    shape_[1] = columns_;
    strides_[0] = stride_;
    strides_[1] = 1;
    dl.shape = shape_;
    dl.strides = strides_;
    return Tensor(dl);
  }
  /// Its values and guards, as an array without gaps.
  Array packed() const {
    Array array(device_, array_.dtype(), {rows_, columns_});
    array.set(values());
    return array;
  }
  bool gaps_hold() const {
    const std::vector<double> all = array_.values();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (static_cast<std::int64_t>(i) % stride_ >= columns_ && !std::isnan(all[i])) return false;
    }
    return array_.guards_hold();
  }

 private:
  kiln::Device device_;
  std::int64_t rows_, columns_, stride_;
  std::int64_t shape_[2] = {};
  std::int64_t strides_[2] = {};
  Array array_;
};

struct Case {
  DType dtype;
  std::int64_t rows, columns;
  bool residual;
  bool in_place;
};

/// What the op should give, from the values that it had. terms: of each gradient of h, the sizes of
/// the products that it is the sum of.
struct Expected {
  std::vector<double> y, grad_h, grad_weight, terms;
};

Expected expected_of(const Case& c, double offset, const std::vector<double>& h,
                     const std::vector<double>& weight, const std::vector<double>& grad_y) {
  const auto columns = static_cast<std::size_t>(c.columns);
  Expected expected{std::vector<double>(h.size()), std::vector<double>(h.size()),
                    std::vector<double>(columns), std::vector<double>(h.size())};
  for (std::size_t row = 0; row < h.size(); row += columns) {
    double squares = 0;
    double products = 0;
    double sizes = 0;
    for (std::size_t d = 0; d < columns; ++d) {
      const double product = h[row + d] * grad_y[row + d] * (offset + weight[d]);
      squares += h[row + d] * h[row + d];
      products += product;
      sizes += std::abs(product);
    }
    const auto count = static_cast<double>(c.columns);
    const double scale = 1 / std::sqrt(squares / count + kEps);
    for (std::size_t d = 0; d < columns; ++d) {
      const double factor = offset + weight[d];
      const double value = h[row + d];
      expected.y[row + d] = value * scale * factor;
      expected.grad_h[row + d] =
          scale * (grad_y[row + d] * factor - value * products * scale * scale / count);
      expected.terms[row + d] = scale * (std::abs(grad_y[row + d] * factor) +
                                         std::abs(value) * sizes * scale * scale / count);
      expected.grad_weight[d] += grad_y[row + d] * value * scale;
    }
  }
  return expected;
}

/// The expected values, but where a found one is as near as its terms can be known, the found one.
/// The gradient of h is at right angles to h, up to eps: where grad_y times the weight lies along
/// h, as it always does with one column, its terms cancel. What is left is then smaller than
/// float32's roundings of the terms, which are as large as those of a float32 grad_y itself. Half a
/// step of the smallest values of float16 is no error either.
std::vector<double> within_terms(DType dtype, const Array& found, std::vector<double> expected,
                                 const std::vector<double>& terms) {
  const double step = dtype == DType::kFloat16 ? std::ldexp(1.0, -25) : 0.0;
  const std::vector<double> values = found.values();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double term = terms.empty() ? 0 : terms[i];
    if (std::abs(values[i] - expected[i]) <= step + bound_of(DType::kFloat32) * term) {
      expected[i] = values[i];
    }
  }
  return expected;
}

class Checker {
 public:
  explicit Checker(const kiln::Kernel& kernel) : kernel_(kernel), check_(kernel) {}

  void run(const Case& c) {
    std::mt19937 engine(static_cast<unsigned>(c.rows * 1000 + c.columns));
    const std::int64_t gap = c.in_place ? 0 : 5;
    const auto matrix = [&] { return Matrix(kernel_.device(), c.dtype, c.rows, c.columns, gap); };
    Matrix x = matrix(), residual = matrix(), grad_y = matrix(), y = matrix(), h_out = matrix();
    for (Matrix* each : {&x, &residual, &grad_y}) each->fill(engine);
    Array weight(kernel_.device(), c.dtype, {c.columns});
    std::normal_distribution<double> normal;
    std::vector<double> weights(static_cast<std::size_t>(c.columns));
    for (double& value : weights) value = normal(engine);
    weight.set(weights);
    const double offset = c.residual ? 1 : 0;
    const RmsNorm layer = kernel_.layer<RmsNorm>(
        {.weight = weight.tensor(), .attributes = {.eps = kEps, .offset = offset}});

    const std::vector<double> x_values = x.values();
    const std::vector<double> residual_values = residual.values();
    Matrix& y_place = c.in_place ? x : y;
    Matrix& h_place = c.in_place ? residual : h_out;
    layer.forward(x.tensor(), c.residual ? residual.tensor() : Tensor(), y_place.tensor(),
                  c.residual ? h_place.tensor() : Tensor());
    const std::vector<double> h = c.residual ? h_place.values() : x_values;
    std::vector<double> sum = x_values;
    for (std::size_t i = 0; i < sum.size() && c.residual; ++i) sum[i] += residual_values[i];
    const Expected expected = expected_of(c, offset, h, weight.values(), grad_y.values());
    compare("y", c, y_place, expected.y);
    if (c.residual) compare("h", c, h_place, sum);

    Array kept(kernel_.device(), c.dtype, {c.rows, c.columns});
    kept.set(h);
    Array grad_weight(kernel_.device(), c.dtype, {c.columns});
    Matrix grad_h = matrix();
    backward(layer, grad_y.tensor(), kept.tensor(), grad_h.tensor(), grad_weight.tensor());
    compare("grad_h", c, grad_h, expected.grad_h, expected.terms);
    check_.compare(std::string("grad_weight ") + name_of(c.dtype), grad_weight,
                   expected.grad_weight, bound_of(c.dtype));
    if (c.in_place) {  // where the gradient of weight is not asked for
      backward(layer, grad_y.tensor(), kept.tensor(), kept.tensor(), {});
      compare("grad_h", c, kept, expected.grad_h, expected.terms);
    }
  }

  /// A call with these must be refused, and by these words.
  void refuses(const std::string& words, const std::function<void(const RmsNorm&)>& call) {
    Array weight(kernel_.device(), DType::kFloat32, {8});
    weight.set(std::vector<double>(8, 1.0));
    try {
      call(kernel_.layer<RmsNorm>({.weight = weight.tensor()}));
      std::printf("FAILED: taken although %s\n", words.c_str());
    } catch (const kiln::Error& error) {
      if (error.code() == kiln::ErrorCode::kInvalidCall &&
          std::string(error.what()).find(words) != std::string::npos) {
        return;
      }
      std::printf("FAILED: refused by \"%s\", expected \"%s\"\n", error.what(), words.c_str());
    }
    good_ = false;
  }

  void refusals() {
    Array memory(kernel_.device(), DType::kFloat32, {4, 16});
    memory.set(std::vector<double>(64, 1.0));
    // [2,8] at an element of the memory.
    std::int64_t shape[] = {2, 8};
    std::int64_t strides[] = {16, 1};
    const auto at = [&](int element, std::int64_t stride = 16) {
      DLTensor dl = memory.tensor().dl();
      dl.ndim = 2;
      dl.shape = shape;
      strides[0] = stride;
      dl.strides = strides;
      dl.byte_offset += static_cast<std::uint64_t>(element) * sizeof(float);
      return Tensor(dl);
    };
    Array weight(kernel_.device(), DType::kFloat32, {8});
    refuses("forward: y overlaps x; expected the same place or memory of its own",
            [&](const RmsNorm& layer) { layer.forward(at(0), at(4)); });
    refuses("forward: y overlaps x; expected the same place or memory of its own",
            [&](const RmsNorm& layer) { layer.forward(at(0), at(16)); });
    refuses("forward: h_out overlaps y; expected memory of its own",
            [&](const RmsNorm& layer) { layer.forward(at(0), at(8), at(0), at(0)); });
    refuses("backward: grad_h overlaps h; expected memory of its own",
            [&](const RmsNorm& layer) { backward(layer, at(8), at(0), at(0), weight.tensor()); });
    // Columns of one matrix, side by side.
    kernel_.layer<RmsNorm>({.weight = weight.tensor()}).forward(at(0), at(8));
  }

  bool good() const { return good_ && check_.passed(); }
  const kiln::testing::Check& check() const { return check_; }

 private:
  void compare(const char* what, const Case& c, const Matrix& found,
               const std::vector<double>& expected, const std::vector<double>& terms = {}) {
    compare(what, c, found.packed(), expected, terms);
    if (found.gaps_hold()) return;
    std::printf("FAILED: %s %s [%lld, %lld] wrote between its rows\n", what, name_of(c.dtype),
                static_cast<long long>(c.rows), static_cast<long long>(c.columns));
    good_ = false;
  }
  void compare(const char* what, const Case& c, const Array& found,
               const std::vector<double>& expected, const std::vector<double>& terms) {
    check_.compare(std::string(what) + " " + name_of(c.dtype), found,
                   within_terms(c.dtype, found, expected, terms), bound_of(c.dtype));
  }
  void backward(const RmsNorm& layer, const Tensor& grad_y, const Tensor& h, const Tensor& grad_h,
                const Tensor& grad_weight) {
    const std::size_t bytes = layer.backward_workspace_bytes(grad_y, h, grad_h, grad_weight);
    layer.backward(grad_y, h, grad_h, grad_weight, workspace_.reserve(bytes));
  }

  kiln::Kernel kernel_;
  kiln::testing::Check check_;
  kiln::OwnedWorkspace workspace_{kernel_.device()};
  bool good_ = true;
};

struct Options {
  std::filesystem::path records;
  std::string registry;
  std::string device;
  bool light = false;
};

bool check_on(kiln::Device device, const Options& options) {
  const kiln::Kernel kernel =
      kiln::get_kernel("rms-norm", {.version = 1, .device = device, .registry = options.registry});
  Checker checker(kernel);
  const std::vector<std::int64_t> all_rows = {0, 1, 3, 16};
  const std::vector<std::int64_t> all_columns = options.light
                                                    ? std::vector<std::int64_t>{7, 256}
                                                    : std::vector<std::int64_t>{1, 7, 256, 1000};
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const std::int64_t rows : all_rows) {
      for (const std::int64_t columns : all_columns) {
        for (const bool residual : {false, true}) {
          for (const bool in_place : {false, true}) {
            checker.run({dtype, rows, columns, residual, in_place});
          }
        }
      }
    }
  }
  checker.refusals();
  if (!options.records.empty()) checker.check().write_record(options.records);
  std::printf("rms-norm %s: %s double precision in %llu cases\n",
              std::string(kernel.variant()).c_str(),
              checker.good() ? "agrees with" : "DIFFERS from",
              static_cast<unsigned long long>(checker.check().cases()));
  return checker.good();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--light") {
      options.light = true;
    } else if ((word == "--registry" || word == "--device") && i + 1 < argc) {
      (word == "--registry" ? options.registry : options.device) = argv[++i];
    } else if (word.starts_with("-")) {
      std::fprintf(stderr, "rms_norm_check: no option %s\n", word.c_str());
      return static_cast<int>(kiln::ErrorCode::kUsage);
    } else {
      options.records = word;
    }
  }
  int ran = 0;
  bool good = true;
  for (const kiln::Device device : {kiln::Device::cpu(), kiln::Device::cuda(0)}) {
    const bool gpu = device.kind == kiln::Device::Kind::kCuda;
    if (!options.device.empty() && options.device != (gpu ? "cuda" : "cpu")) continue;
    try {
      good = check_on(device, options) && good;
      ++ran;
    } catch (const kiln::Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      if (!gpu || error.code() != kiln::ErrorCode::kUsage) return static_cast<int>(error.code());
    }
  }
  if (ran == 0) return 77;
  return good ? 0 : 1;
}
