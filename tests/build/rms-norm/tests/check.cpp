// SPDX-License-Identifier: Apache-2.0
//
// rms_norm_check: forward and backward of the CPU variant against double precision: three dtypes,
// odd sizes, rows that lie apart, with and without a residual, in place. Ends with 0 if all agrees.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <kiln/kiln.hpp>
#include <kiln/layers/rms_norm.hpp>
#include <random>
#include <string>
#include <vector>

namespace {

using kiln::DType;
using kiln::Tensor;

/// Values of one dtype, and the memory that a tensor shows: rows of `columns`, `gap` elements
/// apart, a guard row before and behind. What is not a row is poison and must stay so.
class Matrix {
 public:
  Matrix(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t gap)
      : dtype_(dtype), rows_(rows), columns_(columns), stride_(columns + gap) {
    memory_.assign(static_cast<std::size_t>((rows + 2) * stride_) * size(), kPoison);
  }

  /// Rounded to the dtype.
  void fill(std::mt19937& engine) {
    std::normal_distribution<float> normal;
    for (std::int64_t m = 0; m < rows_; ++m) {
      for (std::int64_t d = 0; d < columns_; ++d) set(m, d, normal(engine));
    }
  }
  double at(std::int64_t m, std::int64_t d) const {
    const unsigned char* place = &memory_[place_of(m, d)];
    if (dtype_ == DType::kFloat32) {
      float value = 0;
      std::memcpy(&value, place, sizeof(value));
      return value;
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, place, sizeof(bits));
    return dtype_ == DType::kFloat16 ? kiln::from_float16(bits) : kiln::from_bfloat16(bits);
  }
  Tensor tensor() {
    shape_[0] = rows_;
    shape_[1] = columns_;
    DLTensor dl =
        Tensor(memory_.data() + place_of(0, 0), dtype_, {rows_, columns_}, kiln::Device::cpu())
            .dl();
    std::int64_t strides[] = {stride_, 1};
    dl.shape = shape_;
    dl.strides = strides;
    return Tensor(dl);
  }
  /// Of a matrix of one row.
  Tensor vector() {
    return {memory_.data() + place_of(0, 0), dtype_, {columns_}, kiln::Device::cpu()};
  }
  bool guards_intact() const {
    std::vector<unsigned char> rest = memory_;
    for (std::int64_t m = 0; m < rows_; ++m) {
      std::fill_n(rest.begin() + static_cast<std::ptrdiff_t>(place_of(m, 0)),
                  static_cast<std::size_t>(columns_) * size(), kPoison);
    }
    return std::ranges::all_of(rest, [](unsigned char byte) { return byte == kPoison; });
  }

 private:
  static constexpr unsigned char kPoison = 0xff;  // a NaN in every dtype

  std::size_t size() const { return kiln::size_of(dtype_); }
  std::size_t place_of(std::int64_t m, std::int64_t d) const {
    return static_cast<std::size_t>((m + 1) * stride_ + d) * size();
  }
  void set(std::int64_t m, std::int64_t d, float value) {
    if (dtype_ == DType::kFloat32) {
      std::memcpy(&memory_[place_of(m, d)], &value, sizeof(value));
      return;
    }
    const std::uint16_t bits =
        dtype_ == DType::kFloat16 ? kiln::to_float16(value) : kiln::to_bfloat16(value);
    std::memcpy(&memory_[place_of(m, d)], &bits, sizeof(bits));
  }

  DType dtype_;
  std::int64_t rows_, columns_, stride_;
  std::int64_t shape_[2] = {};
  std::vector<unsigned char> memory_;
};

struct Case {
  DType dtype;
  std::int64_t rows, columns, gap;
  bool residual;
  double offset;
  bool in_place;
};

constexpr double kEps = 1e-5;

/// One rounding to the dtype, and a few of float32.
double bound_of(DType dtype) {
  return dtype == DType::kFloat32 ? 1e-6 : dtype == DType::kFloat16 ? 6e-4 : 4.5e-3;
}

/// Largest difference, against the size of the largest value. Half a step of the smallest values of
/// float16 is no error: with one column the gradient of h is next to nothing.
class Difference {
 public:
  explicit Difference(DType dtype)
      : least_(dtype == DType::kFloat16 ? std::ldexp(1.0, -25) : 0.0) {}
  void add(double found, double expected) {
    const double difference = std::max(std::abs(found - expected) - least_, 0.0);
    if (std::isnan(found) || difference > worst_) worst_ = std::isnan(found) ? 1e300 : difference;
    largest_ = std::max(largest_, std::abs(expected));
  }
  double relative() const { return largest_ == 0 ? worst_ : worst_ / largest_; }

 private:
  double least_;
  double worst_ = 0;
  double largest_ = 0;
};

/// The largest error of all results; a guard that was written to is one as well.
double check(const kiln::Kernel& kernel, const Case& c) {
  std::mt19937 engine(static_cast<unsigned>(c.rows * 1000 + c.columns));
  const auto matrix = [&](std::int64_t rows) { return Matrix(c.dtype, rows, c.columns, c.gap); };
  Matrix x = matrix(c.rows);
  Matrix residual = matrix(c.rows);
  Matrix weight(c.dtype, 1, c.columns, 0);
  Matrix grad_y = matrix(c.rows);
  for (Matrix* each : {&x, &residual, &weight, &grad_y}) each->fill(engine);
  const Matrix x_before = x;
  const Matrix residual_before = residual;
  Matrix y = matrix(c.rows);
  Matrix h = matrix(c.rows);
  const auto layer = kernel.layer<kiln::layers::RmsNorm>(
      {.weight = weight.vector(), .attributes = {.eps = kEps, .offset = c.offset}});
  Matrix& y_place = c.in_place ? x : y;
  Matrix& h_place = c.in_place ? residual : h;
  layer.forward(x.tensor(), c.residual ? residual.tensor() : Tensor(), y_place.tensor(),
                c.residual ? h_place.tensor() : Tensor());
  const Matrix& kept = c.residual ? h_place : x_before;

  Matrix grad_h = matrix(c.rows);
  Matrix grad_weight(c.dtype, 1, c.columns, 0);
  Matrix kept_copy = kept;
  const std::size_t bytes = layer.backward_workspace_bytes(grad_y.tensor(), kept_copy.tensor(),
                                                           grad_h.tensor(), grad_weight.vector());
  alignas(256) static unsigned char scratch[1 << 16];
  if (bytes > sizeof(scratch)) return 1;
  layer.backward(grad_y.tensor(), kept_copy.tensor(), grad_h.tensor(), grad_weight.vector(),
                 {scratch, bytes});

  Difference forward(c.dtype), sums(c.dtype), backward(c.dtype), weights(c.dtype);
  std::vector<double> expected_weights(static_cast<std::size_t>(c.columns));
  for (std::int64_t m = 0; m < c.rows; ++m) {
    double squares = 0;
    double products = 0;
    for (std::int64_t d = 0; d < c.columns; ++d) {
      const double value = kept.at(m, d);
      sums.add(value, x_before.at(m, d) + (c.residual ? residual_before.at(m, d) : 0));
      squares += value * value;
      products += value * grad_y.at(m, d) * (c.offset + weight.at(0, d));
    }
    const auto count = static_cast<double>(c.columns);
    const double scale = 1 / std::sqrt(squares / count + kEps);
    for (std::int64_t d = 0; d < c.columns; ++d) {
      const double factor = c.offset + weight.at(0, d);
      const double value = kept.at(m, d);
      forward.add(y_place.at(m, d), value * scale * factor);
      backward.add(grad_h.at(m, d),
                   scale * (grad_y.at(m, d) * factor - value * products * scale * scale / count));
      expected_weights[static_cast<std::size_t>(d)] += grad_y.at(m, d) * value * scale;
    }
  }
  for (std::int64_t d = 0; d < c.columns; ++d) {
    weights.add(grad_weight.at(0, d), expected_weights[static_cast<std::size_t>(d)]);
  }
  for (const Matrix* each : {&x, &residual, &weight, &grad_y, &y, &h, &grad_h, &grad_weight}) {
    if (!each->guards_intact()) return 1;
  }
  return std::max({forward.relative(), sums.relative(), backward.relative(), weights.relative()});
}

/// What a wrong call is answered with.
bool refuses(const kiln::Kernel& kernel) {
  Matrix x(DType::kFloat32, 2, 8, 0);
  Matrix weight(DType::kFloat32, 1, 7, 0);
  try {
    kernel.layer<kiln::layers::RmsNorm>({.weight = weight.vector()})
        .forward(x.tensor(), x.tensor());
  } catch (const kiln::Error& error) {
    const std::string text = error.what();
    return error.code() == kiln::ErrorCode::kInvalidCall &&
           text.find("weight has shape [7]; expected [D] with D = 8 from x") != std::string::npos;
  }
  return false;
}

}  // namespace

int main() {
  int failed = 0;
  int cases = 0;
  double worst = 0;
  try {
    const kiln::Kernel kernel =
        kiln::get_kernel("rms-norm", {.version = 1, .device = kiln::Device::cpu()});
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const std::int64_t rows : {0, 1, 3, 16}) {
        for (const std::int64_t columns : {1, 7, 256, 1000}) {
          for (const bool residual : {false, true}) {
            for (const bool in_place : {false, true}) {
              const Case c = {
                  dtype, rows, columns, in_place ? 0 : 5, residual, residual ? 1.0 : 0.0, in_place};
              const double error = check(kernel, c);
              worst = std::max(worst, error / bound_of(dtype));
              ++cases;
              if (error <= bound_of(dtype)) continue;
              ++failed;
              std::printf("FAILED dtype %d, [%lld, %lld], residual %d, in place %d: error %.1e\n",
                          static_cast<int>(dtype), static_cast<long long>(rows),
                          static_cast<long long>(columns), residual, in_place, error);
            }
          }
        }
      }
    }
    if (!refuses(kernel)) {
      ++failed;
      std::puts("FAILED: a weight that does not fit was not refused in the schema's words");
    }
  } catch (const kiln::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  std::printf("rms-norm: %d cases, %d failed, the worst at %.2f of its bound\n", cases, failed,
              worst);
  return failed == 0 ? 0 : 1;
}
