// SPDX-License-Identifier: Apache-2.0
//
// Backward against the double reference: chosen shapes, every dtype and gate, with and without
// biases and, in training_forward, a residual, aligned and not; gradients that are written, and
// those of weights that are added to random main ones. And what it promises beyond numbers: the
// same bits whichever gradients are asked for and on every run, nothing written but those, and a
// NaN that stays in its row of grad_x.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <numeric>

#include "check.hpp"
#include "forward_case.hpp"
#include "reference.hpp"
#include "sm90/sm90_plan.h"

namespace gated_mlp_test {
namespace {

constexpr std::size_t kOutputs = 7;
constexpr std::array<const char*, kOutputs> kNames = {
    "grad_x",         "grad_gate",    "grad_up",       "grad_down",
    "grad_gate_bias", "grad_up_bias", "grad_down_bias"};

/// Which gradients a call asks for, in the order of kNames.
using Asked = std::array<bool, kOutputs>;
constexpr Asked kAll = {true, true, true, true, true, true, true};

/// Of which gradients a call has the main ones, none of x.
constexpr Asked kAllMain = {false, true, true, true, true, true, true};

/// Where backward has gate_out and up_out from.
enum class From { kAgain, kTrainingForward };

/// Whether up's gradient follows gate's in memory.
enum class Placed { kApart, kSideBySide };

struct BackwardCase {
  const MlpData& data;
  const Bytes& grad_y;
  Gate gate;
  std::size_t shift;  // bytes off alignment of every tensor
};

std::string describe(const BackwardCase& test) {
  const auto [m, d, h] = test.data.shape;
  return "backward M=" + std::to_string(m) + " D=" + std::to_string(d) + " H=" + std::to_string(h) +
         " " + name_of(test.data.dtype) + " " + name_of(test.gate) +
         (test.data.biased ? " bias" : "") + (test.data.has_residual ? " residual" : "") +
         (test.shift != 0 ? " shifted" : "") +
         (test.data.kernels.empty() ? "" : " " + test.data.kernels);
}

/// A call's tensors in device memory, the outputs poisoned.
class BackwardBuffers {
 public:
  BackwardBuffers(Variant& variant, const BackwardCase& test)
      : memory_(variant.memory),
        device_(variant.kernel.device()),
        shape_(test.data.shape),
        dtype_(test.data.dtype),
        inputs_{input(test.grad_y, test.shift),       input(test.data.x, test.shift),
                input(test.data.gate, test.shift),    input(test.data.up, test.shift),
                input(test.data.down, test.shift),    input(test.data.gate_bias, test.shift),
                input(test.data.up_bias, test.shift), input(test.data.down_bias, test.shift),
                input(test.data.residual, test.shift)},
        outputs_{output(shape_.m * shape_.d, test.shift),
                 output(shape_.h * shape_.d, test.shift),
                 output(shape_.h * shape_.d, test.shift),
                 output(shape_.d * shape_.h, test.shift),
                 output(shape_.h, test.shift),
                 output(shape_.h, test.shift),
                 output(shape_.d, test.shift)},
        mains_(mains(test.shift)),
        has_residual_(test.data.has_residual),
        saturates_(test.data.saturates),
        invariant_(test.data.invariant),
        kernels_(test.data.kernels),
        side_by_side_(output(2 * shape_.h * shape_.d, test.shift)),
        y_(output(shape_.m * shape_.d, test.shift)),
        gate_out_(output(shape_.m * shape_.h, test.shift)),
        up_out_(output(shape_.m * shape_.h, test.shift)),
        layer_(variant.package.mlp(variant.kernel, weights(test.data.biased), test.gate)) {}

  /// The outputs that are asked for, on poisoned memory; the others stay as they are.
  std::array<Bytes, kOutputs> run(const Asked& asked = kAll, From from = From::kAgain,
                                  Placed placed = Placed::kApart) {
    for (const auto& output : outputs_) output->poison();
    side_by_side_->poison();
    call(gradients(asked, placed), from);
    std::array<Bytes, kOutputs> found;
    for (std::size_t i = 0; i < kOutputs; ++i) found[i] = outputs_[i]->read();
    if (placed == Placed::kSideBySide) {
      const Bytes both = side_by_side_->read();
      const auto half = both.begin() + static_cast<std::ptrdiff_t>(both.size() / 2);
      found[1].assign(both.begin(), half);
      found[2].assign(half, both.end());
    }
    return found;
  }

  /// What the main gradients hold after `times` calls, each of which adds those of `main` to them
  /// and writes the other gradients: their bits are in the others' places.
  std::array<Bytes, kOutputs> run_main(const Asked& main, From from, int times = 1) {
    for (const auto& output : outputs_) output->poison();
    for (const auto& each : mains_) each->restore();
    Asked written = kAll;
    for (std::size_t i = 0; i < kOutputs; ++i) written[i] = !main[i];
    MlpGradients to = gradients(written, Placed::kApart);
    add_mains(main, to);
    for (int i = 0; i < times; ++i) call(to, from);
    std::array<Bytes, kOutputs> found;
    for (std::size_t i = 0; i < kOutputs; ++i) {
      found[i] = main[i] ? main_of(i, mains_[kMainPlace[i]]->read()) : outputs_[i]->read();
    }
    return found;
  }
  /// What the main gradient of an output held before.
  Bytes main_start(std::size_t output) const {
    return main_of(output, mains_[kMainPlace[output]]->content());
  }

  Bytes forward() {
    y_->poison();
    const Guarded workspace(memory_, layer_.workspace_bytes(x()));
    layer_.forward(forward_input(), y(), {workspace.data(), workspace.bytes()}, nullptr);
    memory_.synchronize();
    return y_->read();
  }

  /// y. What it keeps is there for the runs that follow.
  Bytes training_forward() {
    for (const auto* output : {&y_, &gate_out_, &up_out_}) (*output)->poison();
    const Guarded workspace(memory_, layer_.training_workspace_bytes(x(), kept_tensors()));
    layer_.training_forward(forward_input(), y(), kept_tensors(),
                            {workspace.data(), workspace.bytes()}, nullptr);
    memory_.synchronize();
    workspace_intact_ = workspace_intact_ && workspace.guards_intact();
    return y_->read();
  }

  Bytes kept() const {
    Bytes both = gate_out_->read();
    const Bytes up = up_out_->read();
    both.insert(both.end(), up.begin(), up.end());
    return both;
  }

  /// Empty if every guard band is intact and no input was written.
  std::string damage() const {
    std::string damage;
    for (const auto& input : inputs_) {
      if (!input->unchanged()) damage = "; an input was written";
      if (!input->guards_intact()) damage = "; the guard band of an input was written";
    }
    for (std::size_t i = 0; i < kOutputs; ++i) {
      if (!outputs_[i]->guards_intact()) damage += std::string("; wrote beside ") + kNames[i];
    }
    for (const auto& main : mains_) {
      if (!main->guards_intact()) damage += "; wrote beside a main gradient";
    }
    for (const auto* output : {&side_by_side_, &y_, &gate_out_, &up_out_}) {
      if (!(*output)->guards_intact()) damage += "; wrote beside an output";
    }
    if (!workspace_intact_) damage += "; wrote beside the workspace";
    return damage;
  }

 private:
  using Owned = std::unique_ptr<Guarded>;
  void call(const MlpGradients& to, From from) {
    const MlpKept kept = from == From::kAgain ? MlpKept{} : kept_tensors();
    const kiln::Tensor grad_y = tensor(*inputs_[0], {shape_.m, shape_.d});
    const Guarded workspace(memory_, layer_.backward_workspace_bytes(grad_y, x(), kept, to));
    layer_.backward(grad_y, x(), kept, to, {workspace.data(), workspace.bytes()}, nullptr);
    memory_.synchronize();
    workspace_intact_ = workspace_intact_ && workspace.guards_intact();
  }

  Owned input(const Bytes& content, std::size_t shift) const {
    return std::make_unique<Guarded>(memory_, content, shift);
  }
  Owned output(std::int64_t elements, std::size_t shift) const {
    return std::make_unique<Guarded>(
        memory_, static_cast<std::size_t>(elements) * kiln::size_of(dtype_), shift);
  }
  /// The main gradients, gate's and up's in one, with random numbers.
  std::array<Owned, 5> mains(std::size_t shift) const {
    std::mt19937_64 random(static_cast<std::uint64_t>(shape_.m));
    const auto main = [&](std::int64_t elements) {
      return input(random_normal(kiln::DType::kFloat32, elements, 1.0, random),
                   shift == 0 ? 0 : kiln::size_of(kiln::DType::kFloat32));
    };
    return {main(2 * shape_.h * shape_.d), main(shape_.d * shape_.h), main(shape_.h),
            main(shape_.h), main(shape_.d)};
  }
  /// Of an output's main gradient, from the bytes of the buffer that it is in.
  static Bytes main_of(std::size_t output, const Bytes& bytes) {
    const auto half = bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2);
    if (output == 1) return {bytes.begin(), half};
    if (output == 2) return {half, bytes.end()};
    return bytes;
  }
  void add_mains(const Asked& main, MlpGradients& to) const {
    const auto [m, d, h] = shape_;
    const auto at = [&](std::size_t output, std::initializer_list<std::int64_t> shape) {
      const Guarded& buffer = *mains_[kMainPlace[output]];
      auto* const data = static_cast<unsigned char*>(buffer.data());
      return kiln::Tensor(output == 2 ? data + buffer.bytes() / 2 : data, kiln::DType::kFloat32,
                          shape, device_);
    };
    if (main[1]) to.main.gate = at(1, {h, d});
    if (main[2]) to.main.up = at(2, {h, d});
    if (main[3]) to.main.down = at(3, {d, h});
    if (main[4]) to.main.gate_bias = at(4, {h});
    if (main[5]) to.main.up_bias = at(5, {h});
    if (main[6]) to.main.down_bias = at(6, {d});
  }
  kiln::Tensor tensor(const Guarded& buffer, std::initializer_list<std::int64_t> shape) const {
    return kiln::Tensor(buffer.data(), dtype_, shape, device_);
  }
  kiln::Tensor x() const { return tensor(*inputs_[1], {shape_.m, shape_.d}); }
  MlpInput forward_input() const {
    if (!has_residual_) return {x()};
    return {x(), tensor(*inputs_[8], {shape_.m, shape_.d})};
  }
  kiln::Tensor y() const { return tensor(*y_, {shape_.m, shape_.d}); }
  MlpKept kept_tensors() const {
    return {tensor(*gate_out_, {shape_.m, shape_.h}), tensor(*up_out_, {shape_.m, shape_.h})};
  }

  MlpWeights weights(bool biased) const {
    const auto [m, d, h] = shape_;
    MlpWeights weights = {.gate = tensor(*inputs_[2], {h, d}),
                          .up = tensor(*inputs_[3], {h, d}),
                          .down = tensor(*inputs_[4], {d, h}),
                          .saturates = saturates_,
                          .invariant = invariant_,
                          .kernels = kernels_};
    if (biased) {
      weights.gate_bias = tensor(*inputs_[5], {h});
      weights.up_bias = tensor(*inputs_[6], {h});
      weights.down_bias = tensor(*inputs_[7], {d});
    }
    return weights;
  }

  MlpGradients gradients(const Asked& asked, Placed placed) const {
    const auto [m, d, h] = shape_;
    MlpGradients to;
    if (asked[0]) to.x = tensor(*outputs_[0], {m, d});
    if (asked[1]) to.gate = tensor(*outputs_[1], {h, d});
    if (asked[2]) to.up = tensor(*outputs_[2], {h, d});
    if (asked[3]) to.down = tensor(*outputs_[3], {d, h});
    if (asked[4]) to.gate_bias = tensor(*outputs_[4], {h});
    if (asked[5]) to.up_bias = tensor(*outputs_[5], {h});
    if (asked[6]) to.down_bias = tensor(*outputs_[6], {d});
    if (placed == Placed::kSideBySide) {
      auto* const first = static_cast<unsigned char*>(side_by_side_->data());
      to.gate = kiln::Tensor(first, dtype_, {h, d}, device_);
      to.up = kiln::Tensor(first + side_by_side_->bytes() / 2, dtype_, {h, d}, device_);
    }
    return to;
  }

  Memory& memory_;
  kiln::Device device_;
  Shape shape_;
  kiln::DType dtype_;
  // grad_y, x, gate, up, down, gate_bias, up_bias, down_bias, residual
  std::array<Owned, 9> inputs_;
  std::array<Owned, kOutputs> outputs_;
  static constexpr std::array<std::size_t, kOutputs> kMainPlace = {0, 0, 0, 1, 2, 3, 4};
  std::array<Owned, 5> mains_;
  bool has_residual_;
  bool saturates_;
  bool invariant_;
  std::string kernels_;
  Owned side_by_side_;  // gate's and up's gradients
  Owned y_, gate_out_, up_out_;
  MlpLayer layer_;
  bool workspace_intact_ = true;
};

/// A GPU rounds both products, the gradient of h and those of the products to the dtype before it
/// rounds an output: five roundings instead of one. A CPU rounds what training_forward keeps.
double bound_of_backward(const Variant& variant, kiln::DType dtype, From from) {
  const bool gpu = variant.memory.is_gpu();
  if ((!gpu && from == From::kAgain) || dtype == kiln::DType::kFloat32) return bound_of(dtype);
  return dtype == kiln::DType::kFloat16 ? 6.4e-4 : 5e-3;
}

/// Twice the rounding of gate_out and up_out.
double rounding_of(kiln::DType dtype) {
  if (dtype == kiln::DType::kFloat32) return std::ldexp(1.0, -23);
  return std::ldexp(1.0, dtype == kiln::DType::kFloat16 ? -10 : -7);
}

/// The values of an output that the reference has, in its order.
std::vector<double> sampled(std::size_t output, const std::vector<double>& found,
                            const Shape& shape, const GradientSample& sample) {
  const auto d = static_cast<std::size_t>(shape.d);
  const auto h = static_cast<std::size_t>(shape.h);
  std::vector<double> values;
  const auto take_rows = [&](const std::vector<std::int64_t>& rows, std::size_t width) {
    for (const std::int64_t row : rows) {
      for (std::size_t i = 0; i < width; ++i) {
        values.push_back(found[static_cast<std::size_t>(row) * width + i]);
      }
    }
  };
  switch (output) {
    case 0:
      take_rows(sample.rows, d);
      break;
    case 1:
    case 2:
      take_rows(sample.columns, d);
      break;
    case 3:
      for (const std::int64_t column : sample.columns) {
        for (std::size_t i = 0; i < d; ++i) {
          values.push_back(found[i * h + static_cast<std::size_t>(column)]);
        }
      }
      break;
    case 4:
    case 5:
      take_rows(sample.columns, 1);
      break;
    default:
      return found;
  }
  return values;
}

// As in forward_case.cpp: of fewer values, or of sums of a few, the roundings do not average.
constexpr std::size_t kLarge = 4096;
constexpr std::int64_t kLargeExtent = 16;
constexpr double kFewFactor = 3;

bool is_large(const Shape& shape, const Gradient& expected) {
  return expected.values.size() >= kLarge && std::min({shape.m, shape.d, shape.h}) >= kLargeExtent;
}

/// Relative L2 error of the sampled values; infinite for a value that is not finite.
double error_of(const Gradient& expected, const std::vector<double>& found, bool uncancelled,
                double absolute) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    difference += (found[i] - expected.values[i]) * (found[i] - expected.values[i]);
    size += expected.values[i] * expected.values[i];
  }
  if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
  double scale = std::max(std::sqrt(size), expected.natural_size);
  if (uncancelled) scale = std::max(scale, expected.uncancelled_size);
  const double error = std::max(0.0, std::sqrt(difference) - expected.at_jumps - absolute);
  if (scale == 0) return error == 0 ? 0 : std::numeric_limits<double>::infinity();
  return error / scale;
}

bool all_finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double one) { return std::isfinite(one); });
}

using Values = std::array<std::vector<double>, kOutputs>;
struct Bound {
  double relative;
  double absolute = 0;  ///< of the L2 norm of the sampled values, beside that
};
using Bounds = std::array<Bound, kOutputs>;

double norm(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

void check_values(Variant& variant, const BackwardCase& test, const Values& found,
                  const MlpGradientReference& reference, const GradientSample& sample,
                  const Bounds& bounds, const char* what) {
  const std::array<const Gradient*, kOutputs> expected = {
      &reference.x,         &reference.gate,    &reference.up,       &reference.down,
      &reference.gate_bias, &reference.up_bias, &reference.down_bias};
  std::string wrong;
  for (std::size_t i = 0; i < kOutputs; ++i) {
    const std::vector<double>& values = found[i];
    const bool large = is_large(test.data.shape, *expected[i]);
    const double bound = bounds[i].relative * (large ? 1 : kFewFactor);
    const double error = all_finite(values)
                             ? error_of(*expected[i], sampled(i, values, test.data.shape, sample),
                                        !large, bounds[i].absolute)
                             : std::numeric_limits<double>::infinity();
    if (error <= bound) {
      if (!large) continue;
      double& worst = variant.tally.worst["backward " + name_of(test.data.dtype)];
      worst = std::max(worst, error);
      continue;
    }
    char numbers[96];
    std::snprintf(numbers, sizeof(numbers), "; %s: error %.3g, at most %.3g", kNames[i], error,
                  bound);
    wrong += numbers;
  }
  report(variant, wrong.empty(), describe(test) + what + wrong);
}

void check_numbers(Variant& variant, const BackwardCase& test,
                   const std::array<Bytes, kOutputs>& found, const MlpGradientReference& reference,
                   const GradientSample& sample, From from, const char* what) {
  const kiln::DType dtype = test.data.dtype;
  Values values;
  for (std::size_t i = 0; i < kOutputs; ++i) values[i] = decode_all(dtype, found[i]);
  Bounds bounds;
  bounds.fill({bound_of_backward(variant, dtype, from)});
  check_values(variant, test, values, reference, sample, bounds, what);
}

/// training_forward against forward, which has a check of its own: the same bits; but the kernels
/// for SM 9.0 may take other sums in forward, unless they may not depend on the number of rows.
void check_training_forward(Variant& variant, const BackwardCase& test, BackwardBuffers& buffers) {
  const kiln::DType dtype = test.data.dtype;
  const Bytes expected = buffers.forward();
  const Bytes found = buffers.training_forward();
  const std::string text = describe(test) + " training_forward";
  const bool other_sums = family_of(variant) == KernelFamily::kSm90 && !test.data.invariant;
  if (!other_sums) {
    report(variant, found == expected, text + ": y has other bits than forward's");
    return;
  }
  const std::vector<double> values = decode_all(dtype, found);
  const std::vector<double> forward = decode_all(dtype, expected);
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    difference += (values[i] - forward[i]) * (values[i] - forward[i]);
    size += forward[i] * forward[i];
  }
  const double most = 2 * kFewFactor * bound_of(dtype);
  report(variant, std::sqrt(difference) <= most * std::sqrt(size), text + ": another y");
}

/// Each gradient alone, those of no weight, none at all, and all once more.
std::vector<Asked> subsets() {
  std::vector<Asked> subsets = {kAll, {}, {true, false, false, false, true, true, true}};
  for (std::size_t i = 0; i < kOutputs; ++i) {
    Asked one{};
    one[i] = true;
    subsets.push_back(one);
  }
  return subsets;
}

void check_subsets(Variant& variant, const BackwardCase& test, BackwardBuffers& buffers,
                   const std::array<Bytes, kOutputs>& all) {
  std::string wrong;
  for (const Asked& asked : subsets()) {
    const std::array<Bytes, kOutputs> found = buffers.run(asked);
    for (std::size_t i = 0; i < kOutputs; ++i) {
      const Bytes untouched(all[i].size(), 0xff);
      if (found[i] == (asked[i] ? all[i] : untouched)) continue;
      wrong += std::string("; ") + kNames[i] +
               (asked[i] ? " has other bits beside fewer gradients" : " was not asked for");
    }
  }
  report(variant, wrong.empty(), describe(test) + wrong);
}

/// What calls add to main gradients, once and twice, is the gradient, on a CPU with no rounding but
/// that of the sum; and its bits are the same on each run and beside gradients that are written,
/// whose bits are those of `all`.
void check_main(Variant& variant, const BackwardCase& test, BackwardBuffers& buffers,
                const std::array<Bytes, kOutputs>& all, const MlpGradientReference& reference,
                const GradientSample& sample) {
  const kiln::DType dtype = test.data.dtype;
  const kiln::DType rounded = variant.memory.is_gpu() ? dtype : kiln::DType::kFloat32;
  Bounds bounds;
  bounds.fill({bound_of_backward(variant, rounded, From::kAgain)});
  bounds[0] = {bound_of_backward(variant, dtype, From::kAgain)};
  const std::array<Bytes, kOutputs> once = buffers.run_main(kAllMain, From::kAgain);
  for (const int times : {1, 2}) {
    const std::array<Bytes, kOutputs> found =
        times == 1 ? once : buffers.run_main(kAllMain, From::kAgain, times);
    Values added = {decode_all(dtype, found[0])};
    for (std::size_t i = 1; i < kOutputs; ++i) {
      added[i] = decode_all(kiln::DType::kFloat32, found[i]);
      // Each call rounds its sum.
      bounds[i].absolute = std::ldexp(norm(sampled(i, added[i], test.data.shape, sample)), -23);
      const std::vector<double> start = decode_all(kiln::DType::kFloat32, buffers.main_start(i));
      for (std::size_t j = 0; j < start.size(); ++j) added[i][j] = (added[i][j] - start[j]) / times;
    }
    check_values(variant, test, added, reference, sample, bounds,
                 times == 1 ? " main" : " main twice");
  }
  std::string wrong;
  for (const Asked& main : {kAllMain, Asked{false, true, false, true, false, true, false},
                            Asked{false, false, true, false, true, false, true}}) {
    const std::array<Bytes, kOutputs> found = buffers.run_main(main, From::kAgain);
    for (std::size_t i = 0; i < kOutputs; ++i) {
      if (found[i] == (main[i] ? once[i] : all[i])) continue;
      wrong += std::string("; ") + kNames[i] + (main[i] ? " adds" : " writes") + " other bits";
    }
  }
  report(variant, wrong.empty(), describe(test) + " main" + wrong);
}

/// The same bytes with one row of NaNs.
Bytes with_nan_row(Bytes bytes, kiln::DType dtype, std::int64_t row, std::int64_t width) {
  const std::size_t size = kiln::size_of(dtype);
  for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
    encode(dtype, std::numeric_limits<double>::quiet_NaN(),
           &bytes[static_cast<std::size_t>(i) * size]);
  }
  return bytes;
}

/// A row of NaNs in x, and another in grad_y, are NaNs in grad_x and change no other row of it.
void check_isolation_of_grad_x(Variant& variant, const BackwardCase& test, const Bytes& clean) {
  const auto [m, d, h] = test.data.shape;
  if (m < 4 || d == 0 || h == 0) return;
  const kiln::DType dtype = test.data.dtype;
  const std::array<std::int64_t, 2> rows = {1, m - 2};
  MlpData dirty = test.data;
  dirty.x = with_nan_row(test.data.x, dtype, rows[0], d);
  const Bytes grad_y = with_nan_row(test.grad_y, dtype, rows[1], d);
  BackwardBuffers buffers(variant, {dirty, grad_y, test.gate, test.shift});
  const Bytes found = buffers.run()[0];
  const std::size_t row_bytes = static_cast<std::size_t>(d) * kiln::size_of(dtype);
  std::string wrong;
  for (std::int64_t row = 0; row < m; ++row) {
    const auto begin = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(row) * row_bytes);
    const Bytes one(found.begin() + begin,
                    found.begin() + begin + static_cast<std::ptrdiff_t>(row_bytes));
    if (row == rows[0] || row == rows[1]) {
      const std::vector<double> values = decode_all(dtype, one);
      if (std::none_of(values.begin(), values.end(), [](double v) { return std::isnan(v); })) {
        wrong = "; a NaN row gave numbers";
      }
    } else if (!std::equal(one.begin(), one.end(), clean.begin() + begin)) {
      wrong = "; a NaN row changed another row of grad_x";
    }
  }
  report(variant, wrong.empty(), describe(test) + wrong);
}

/// `thorough`: and what it promises beyond numbers.
void check_backward_case(Variant& variant, const BackwardCase& test,
                         const MlpGradientReference& reference, const GradientSample& sample,
                         bool thorough) {
  try {
    BackwardBuffers buffers(variant, test);
    const std::array<Bytes, kOutputs> found = buffers.run();
    check_numbers(variant, test, found, reference, sample, From::kAgain, "");
    check_training_forward(variant, test, buffers);
    check_numbers(variant, test, buffers.run(kAll, From::kTrainingForward), reference, sample,
                  From::kTrainingForward, " kept");
    check_numbers(variant, test, buffers.run(kAll, From::kTrainingForward, Placed::kSideBySide),
                  reference, sample, From::kTrainingForward,
                  " kept, gate's and up's gradients side by side");
    if (thorough) {
      check_subsets(variant, test, buffers, found);
      check_main(variant, test, buffers, found, reference, sample);
      check_isolation_of_grad_x(variant, test, found[0]);
    }
    const std::string damage = buffers.damage();
    report(variant, damage.empty(), describe(test) + damage);
  } catch (const std::exception& error) {
    report(variant, false, describe(test) + ": " + error.what());
  }
}

std::vector<Shape> shapes_to_check(const Options& options, bool gpu) {
  std::vector<Shape> shapes = {{0, 64, 64}, {0, 0, 16},   {3, 0, 16},
                               {3, 16, 0},  {33, 64, 96}, {17, 33, 70}};
  if (options.light) return shapes;
  shapes.insert(shapes.end(),
                {{1, 1, 1}, {2, 7, 5}, {1, 40, 72}, {65, 72, 200}, {300, 264, 520}, {300, 20, 12}});
  // On a GPU also several tiles, one after another, in every CTA. On the CPU several blocks of rows
  // and of hidden columns, and of columns whose operands are packed at one time.
  const std::vector<Shape> more =
      gpu ? std::vector<Shape>{{513, 512, 4112}, {1100, 776, 4104}, {2061, 72, 2088},
                               {40, 4096, 1048}, {3072, 72, 4104},  {1541, 2312, 72},
                               {781, 3080, 72},  {1281, 2824, 72}}
          : std::vector<Shape>{{1030, 40, 700}, {40, 1030, 24}, {17, 3200, 680}};
  shapes.insert(shapes.end(), more.begin(), more.end());
  return shapes;
}

/// The gradients where h saturates: down's is of that h, and no derivative knows of it.
void check_saturated(Variant& variant, const Shape& shape, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const MlpData data = overflowing_mlp(shape, random());
  const Bytes grad_y = random_normal(data.dtype, shape.m * shape.d, 1.0 / 256, random);
  MlpValues values = values_of(data);
  values.activation = variant.package.gates.front();
  values.greatest = greatest_hidden(variant);
  const GradientSample sample = {rows_to_check(shape.m, random), rows_to_check(shape.h, random)};
  const MlpGradientReference reference = mlp_gradient_reference(
      values, decode_all(data.dtype, grad_y), sample, rounding_of(data.dtype));
  check_backward_case(variant, {data, grad_y, values.activation, 0}, reference, sample, false);
}

/// What a batch-invariant call has of its rows: y, gate_out, up_out, grad_x with and without these.
std::vector<Bytes> matrices_of_rows(Variant& variant, const MlpData& data, const Bytes& grad_y) {
  BackwardBuffers buffers(variant, {data, grad_y, variant.package.gates.front(), 0});
  const Bytes y = buffers.training_forward();
  report(variant, buffers.forward() == y,
         "batch-invariant training: y has other bits than forward's");
  const Bytes kept = buffers.kept();
  const auto middle = kept.begin() + static_cast<std::ptrdiff_t>(kept.size() / 2);
  return {y, Bytes(kept.begin(), middle), Bytes(middle, kept.end()),
          buffers.run(kAll, From::kTrainingForward)[0], buffers.run()[0]};
}

/// As check_batch_invariance() of forward.
void check_invariant_training(Variant& variant, const Shape& shape, kiln::DType dtype,
                              std::uint64_t seed) {
  std::mt19937_64 random(seed);
  MlpData data = random_mlp(shape, dtype, true, random());
  add_residual(data, random());
  data.invariant = true;
  const Bytes grad_y = random_normal(dtype, shape.m * shape.d, 1.0, random);
  const std::vector<Bytes> whole = matrices_of_rows(variant, data, grad_y);
  for (const RowRange& range : row_ranges(shape.m)) {
    const auto rows = [&](const Bytes& matrix) {
      const std::int64_t bytes = static_cast<std::int64_t>(matrix.size()) / shape.m;
      return Bytes(matrix.begin() + range.first * bytes,
                   matrix.begin() + (range.first + range.count) * bytes);
    };
    const std::vector<Bytes> part =
        matrices_of_rows(variant, rows_of(data, range.first, range.count), rows(grad_y));
    bool same = true;
    for (std::size_t i = 0; i < whole.size(); ++i) same = same && part[i] == rows(whole[i]);
    report(variant, same,
           "batch-invariant training, D=" + std::to_string(shape.d) +
               " H=" + std::to_string(shape.h) + " " + name_of(dtype) + ": rows " +
               std::to_string(range.first) + " to " + std::to_string(range.first + range.count) +
               " of " + std::to_string(shape.m) + " give other bits in a call of their own");
  }
}

std::vector<std::int64_t> all_of(std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

void check_pinned_training(Variant& variant, const MlpData& data, Gate gate) {
  const auto [m, d, h] = data.shape;
  const Bytes grad_y(static_cast<std::size_t>(m * d) * kiln::size_of(data.dtype));
  const BackwardCase test = {data, grad_y, gate, 0};
  try {
    BackwardBuffers buffers(variant, test);
    const Bytes y = buffers.training_forward();
    const std::vector<double> kept = decode_all(data.dtype, buffers.kept());
    std::string wrong = buffers.forward() == y ? "" : "; y has other bits than forward's";
    const MlpProducts products = mlp_products(values_of(data), all_of(m));
    const double rounding = rounding_of(data.dtype) / 2;
    std::size_t off = 0;
    for (const std::vector<double>* const sums : {&products.gate, &products.up}) {
      const double* const found = kept.data() + (sums == &products.up ? kept.size() / 2 : 0);
      for (std::size_t i = 0; i < sums->size(); ++i) {
        const double expected = (*sums)[i];
        const double most = rounding * (std::abs(expected) + 1.0 / 64);
        off += std::abs(found[i] - expected) <= most ? 0 : 1;  // counts a NaN
      }
    }
    if (off > 0) wrong += "; " + std::to_string(off) + " kept values are off";
    report(variant, wrong.empty(), describe(test) + " training_forward" + wrong + buffers.damage());
  } catch (const std::exception& error) {
    report(variant, false, describe(test) + " training_forward: " + error.what());
  }
}

void check_pinned_backward(Variant& variant, const MlpData& data, Gate gate, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto [m, d, h] = data.shape;
  const Bytes grad_y = random_normal(data.dtype, m * d, 1.0, random);
  const BackwardCase test = {data, grad_y, gate, 0};
  try {
    MlpValues values = values_of(data);
    values.activation = gate;
    const GradientSample whole = {all_of(m), all_of(h)};
    const MlpGradientReference reference = mlp_gradient_reference(
        values, decode_all(data.dtype, grad_y), whole, rounding_of(data.dtype));
    BackwardBuffers buffers(variant, test);
    const std::array<Bytes, kOutputs> found = buffers.run();
    check_numbers(variant, test, found, reference, whole, From::kAgain, "");
    report(variant, buffers.run() == found, describe(test) + ": the second call gives other bits");
    check_main(variant, test, buffers, found, reference, whole);
    const std::string damage = buffers.damage();
    report(variant, damage.empty(), describe(test) + damage);
  } catch (const std::exception& error) {
    report(variant, false, describe(test) + ": " + error.what());
  }
}

void check_backward(std::vector<Variant>& variants, const Options& options) {
  if (variants.empty()) return;
  const bool gpu = variants.front().memory.is_gpu();
  std::vector<kiln::DType> dtypes = {kiln::DType::kBFloat16, kiln::DType::kFloat16};
  if (!gpu) dtypes.push_back(kiln::DType::kFloat32);
  const std::vector<Gate>& gates = variants.front().package.gates;
  std::mt19937_64 random(options.seed + 9);
  bool beside_biases = false;  // the residual is, at every other shape
  for (const Shape shape : shapes_to_check(options, gpu)) {
    beside_biases = !beside_biases;
    const GradientSample sample = {rows_to_check(shape.m, random), rows_to_check(shape.h, random)};
    for (const kiln::DType dtype : dtypes) {
      for (const bool biased : {false, true}) {
        MlpData data = random_mlp(shape, dtype, biased, random());
        if (biased == beside_biases) add_residual(data, random());
        const Bytes grad_y = random_normal(dtype, shape.m * shape.d, 1.0, random);
        const std::vector<double> grad_y_values = decode_all(dtype, grad_y);
        MlpValues values = values_of(data);
        for (const Gate gate : gates) {
          values.activation = gate;
          const MlpGradientReference reference =
              mlp_gradient_reference(values, grad_y_values, sample, rounding_of(dtype));
          const BackwardCase test = {data, grad_y, gate,
                                     random() % 4 == 0 ? kiln::size_of(dtype) : 0};
          for (Variant& variant : variants) {
            check_backward_case(variant, test, reference, sample, biased && gate == gates.front());
          }
        }
      }
    }
  }
  for (Variant& variant : variants) {
    for (const Shape& shape : {Shape{33, 64, 96}, Shape{300, 264, 520}, Shape{70, 65, 127}}) {
      check_saturated(variant, shape, options.seed + 13);
    }
    const std::vector<Shape> invariant = options.light ? std::vector<Shape>{{140, 40, 72}}
                                         : gpu         ? std::vector<Shape>{{1000, 776, 1032}}
                                                       : std::vector<Shape>{{600, 136, 700}};
    for (const Shape& shape : invariant) {
      for (const kiln::DType dtype : dtypes) {
        try {
          check_invariant_training(variant, shape, dtype, options.seed + 14);
        } catch (const std::exception& error) {
          report(variant, false, std::string("batch-invariant training: ") + error.what());
        }
      }
    }
  }
}

}  // namespace gated_mlp_test
