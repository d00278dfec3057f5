// SPDX-License-Identifier: Apache-2.0
//
// quantized_mlp_check: pack, pack_zeros and unpack bit by bit, and forward against the dequantized
// weights in double precision, on each device: every layout, kind of codes, group, gate and dtype,
// ragged shapes, zeros at both ends, denormal and huge scales, what stays in its row or column, in
// place; and what is refused. The command line is that of kiln::testing::run_check.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <kiln/kiln.hpp>
#include <kiln/layers/quantized_mlp.hpp>
#include <kiln/ops/quantized_mlp.hpp>
#include <kiln/testing.hpp>
#include <limits>
#include <numbers>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "matrices.hpp"

namespace quantized_mlp_test {
namespace {

using kiln::DType;
using kiln::Tensor;
using kiln::testing::Array;
using kiln::testing::Check;
using Activation = ops::ForwardAttributes::Activation;

constexpr double kLimit = 1.5;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kSums = 3e-6;  // of fp32 sums and of the gates, as a part of their terms
/// A sum of weights that are rounded on their own differs by this many of their steps at most,
/// times the root of its terms' squares: seven standard deviations, or by all of them.
constexpr double kRounded = 4;
/// Of x that is normed and rounded: by so many of its errors at most, times the root of its terms'
/// squares, or by all of them.
constexpr double kNormed = 6;
/// Of sums that a GPU's products of e4m3 add with about 14 bits, as a part of their terms.
constexpr double kShortSums = 0x1p-10;

/// Half a step of a value between 1 and 2.
double rounding_of(DType dtype) {
  return dtype == DType::kFloat16 ? std::exp2(-11) : std::exp2(-8);
}
/// Half a step of the smallest ones.
double least_step(DType dtype) {
  return dtype == DType::kFloat16 ? std::exp2(-25) : std::exp2(-134);
}

/// The nearest multiple of a step that halves with each power of two down to 2^least.
double nearest(double value, int bits, int least) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double step = std::exp2(std::max(std::ilogb(value), least) - bits);
  return step * std::nearbyint(value / step);
}
double rounded_to(DType dtype, double value) {
  return dtype == DType::kFloat16 ? nearest(value, 10, -14) : nearest(value, 7, -126);
}

/// Activations in FP8: the scale of a block by its largest magnitude, and a number by its scale.
double float8_scale(DType dtype, double largest) {
  double scale = std::exp2(dtype == DType::kFloat16 ? -15 : -117);
  while (448 * scale < largest) scale *= 2;
  return scale;
}
double rounded_to_float8(double value, double scale) {
  return std::isfinite(value) ? scale * nearest(value / scale, 3, -6) : kNaN;
}
constexpr std::size_t kFloat8Block = 128;
constexpr double kMostFloat16 = 65504;

/// A row's numbers as FP8, and how far they move where each is off by its error.
struct Float8Row {
  Values values;
  Values moved;
};
Float8Row float8_row(DType dtype, const double* row, const Values& errors) {
  const std::size_t count = errors.size();
  Float8Row result{Values(count), Values(count)};
  for (std::size_t first = 0; first < count; first += kFloat8Block) {
    const std::size_t last = std::min(first + kFloat8Block, count);
    double largest = 0, least = 0, most = 0;
    for (std::size_t i = first; i < last; ++i) {
      if (!std::isfinite(row[i])) continue;
      const double size = std::abs(row[i]);
      largest = std::max(largest, rounded_to(dtype, size));
      least = std::max(least, rounded_to(dtype, std::max(size - errors[i], 0.0)));
      most = std::max(most, rounded_to(dtype, size + errors[i]));
    }
    const double scale = float8_scale(dtype, largest);
    for (std::size_t i = first; i < last; ++i) {
      result.values[i] = rounded_to_float8(rounded_to(dtype, row[i]), scale);
      // A kernel of float16 takes 65504 for 65536.
      if (std::abs(result.values[i]) >= kMostFloat16 && dtype == DType::kFloat16) {
        result.moved[i] = std::abs(result.values[i]) - kMostFloat16;
      }
      for (const double other : {float8_scale(dtype, least), float8_scale(dtype, most)}) {
        for (const double value : {row[i] - errors[i], row[i] + errors[i]}) {
          const double found = rounded_to_float8(rounded_to(dtype, value), other);
          result.moved[i] = std::max(result.moved[i], std::abs(found - result.values[i]));
        }
      }
    }
  }
  return result;
}

Tensor first_rows(const Array& of, std::int64_t rows) {
  const Tensor all = of.tensor();
  std::int64_t shape[] = {rows, all.extent(1)};
  DLTensor some = all.dl();
  some.shape = shape;
  return Tensor(some);
}

double sigmoid(double z) {
  return 1 / (1 + std::exp(-z));
}

double activate(Activation activation, double g) {
  switch (activation) {
    case Activation::kSilu:
      return g * sigmoid(g);
    case Activation::kGelu:
      return 0.5 * g * std::erfc(-g / std::numbers::sqrt2);
    case Activation::kGeluTanh:
      return g * sigmoid(2 * std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g));
    case Activation::kRelu:
      return std::max(g, 0.0);
    case Activation::kSigmoid:
      return sigmoid(g);
    case Activation::kSiluClamped:
      return std::min(g, kLimit) * sigmoid(1.702 * std::min(g, kLimit));
  }
  return kNaN;
}

double factor_of(Activation activation, double u) {
  return activation == Activation::kSiluClamped ? std::clamp(u, -kLimit, kLimit) + 1 : u;
}

/// Of products of neighbours: their sum, that of their magnitudes, and of their squares.
struct Sums {
  double sum = 0, terms = 0, squares = 0;
};
Sums sums_of(std::span<const double> a, const double* b) {
  constexpr std::size_t kLanes = 4;
  double sum[kLanes] = {}, terms[kLanes] = {}, squares[kLanes] = {};
  const auto add = [&](std::size_t i, std::size_t lane) {
    const double term = a[i] * b[i];
    sum[lane] += term;
    terms[lane] += std::abs(term);
    squares[lane] += term * term;
  };
  std::size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (; i < a.size(); ++i) add(i, 0);
  Sums all;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    all.sum += sum[lane];
    all.terms += terms[lane];
    all.squares += squares[lane];
  }
  return all;
}
double sum_of_magnitudes(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += std::abs(value);
  return sum;
}

/// Calls function(row), rows in turn to up to `threads` threads.
void for_each_row(std::size_t rows, std::size_t threads,
                  const std::function<void(std::size_t)>& function) {
  const std::size_t count = std::clamp<std::size_t>(threads, 1, std::max<std::size_t>(rows, 1));
  const auto run = [&](std::size_t first) {
    for (std::size_t row = first; row < rows; row += count) function(row);
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < count; ++i) others.emplace_back(run, i);
  run(0);
  for (std::thread& other : others) other.join();
}

struct Case {
  DType dtype = DType::kBFloat16;
  std::int64_t m = 1, d = 64, h = 64;
  Format gate, up, down;  ///< gate and up: of one number of bits and one group
  Activation activation = Activation::kSilu;
  bool biases = false;
  bool residual = false;
  double gate_size = 2, up_size = 2, down_size = 1;
  bool float8_input = false;  ///< activations in FP8
  bool saturates = false;     ///< overflow
  bool norm = false;
  double eps = 1e-6, offset = 0;  ///< of the norm
  bool outliers = false;          ///< in x, 4096 times as large as what is around them
};

Values random(std::size_t count, std::mt19937& engine) {
  std::normal_distribution<double> normal;
  Values values(count);
  std::ranges::generate(values, [&] { return normal(engine); });
  return values;
}

/// One MLP on a device, with its reference.
class Subject {
 public:
  Subject(Check& check, const Case& c, unsigned seed)
      : check_(check),
        c_(c),
        engine_(seed),
        gate_(random_matrix(c.h, c.d, c.gate, c.gate_size, engine_)),
        up_(random_matrix(c.h, c.d, c.up, c.up_size, engine_)),
        down_(random_matrix(c.d, c.h, c.down, c.down_size, engine_)),
        x_(array({c.m, c.d})),
        residual_(array({c.m, c.d})),
        gate_bias_(padded_bias()),
        up_bias_(padded_bias()),
        down_bias_(array({c.d})),
        norm_weight_(empty({c.d})) {
    // About 1 with its offset, some of them 0, denormal, negative or large.
    Values weights = random(norm_weight_.size(), engine_);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = 1 - c.offset + weights[i] / 4;
      if (i % 11 == 5) weights[i] = i % 2 == 0 ? least_step(c.dtype) * 6 : -weights[i] * 8;
      if (i % 29 == 7) weights[i] = 0;
    }
    norm_weight_.set(weights);
  }

  Quantized& gate() { return gate_; }
  Quantized& up() { return up_; }
  Quantized& down() { return down_; }
  Array& x() { return x_; }
  Array& residual() { return residual_; }
  Array& norm_weight() { return norm_weight_; }

  void pack_all() {
    packed_.push_back(pack(check_, gate_));
    packed_.push_back(pack(check_, up_));
    packed_.push_back(pack(check_, down_));
  }

  ops::Forward call(const Tensor& x, const Tensor& residual, const Tensor& y,
                    bool batch_invariant = false) const {
    ops::Forward all{
        .x = x,
        .gate = packed_[0].codes_tensor(),
        .gate_scales = packed_[0].scales.tensor(),
        .gate_zeros = packed_[0].zeros_or_none(),
        .up = packed_[1].codes_tensor(),
        .up_scales = packed_[1].scales.tensor(),
        .up_zeros = packed_[1].zeros_or_none(),
        .down = packed_[2].codes_tensor(),
        .down_scales = packed_[2].scales.tensor(),
        .down_zeros = packed_[2].zeros_or_none(),
        .residual = c_.residual ? residual : Tensor(),
        .norm_weight = c_.norm ? norm_weight_.tensor() : Tensor(),
        .y = y,
        .attributes = {
            .activation = c_.activation, .limit = kLimit, .batch_invariant = batch_invariant}};
    if (c_.float8_input) {
      all.attributes.input_dtype = ops::ForwardAttributes::InputDtype::kFloat8E4m3fn;
    }
    if (c_.norm) all.attributes.eps = c_.eps, all.attributes.offset = c_.offset;
    if (c_.saturates) all.attributes.overflow = ops::ForwardAttributes::Overflow::kSaturate;
    if (c_.biases) {
      all.gate_bias = gate_bias_.tensor();
      all.up_bias = up_bias_.tensor();
      all.down_bias = down_bias_.tensor();
    }
    return all;
  }

  /// In a workspace of NaNs.
  void run(const ops::Forward& call) const {
    const auto op = check_.kernel().op<ops::Forward>();
    const auto bytes = static_cast<std::int64_t>(op.workspace_bytes(call));
    const Array memory(check_.kernel().device(), DType::kUInt8, {bytes});
    const Tensor workspace = memory.tensor();
    op.run(call, {workspace.dl().data, memory.size()});
    if (!memory.guards_hold()) check_.compare("workspace", memory, memory.values(), 0);
  }

  /// The same in what another call has left in a workspace of its own.
  void run_after(const ops::Forward& other, const ops::Forward& call) const {
    const auto op = check_.kernel().op<ops::Forward>();
    kiln::OwnedWorkspace workspace(check_.kernel().device());
    const std::size_t bytes = std::max(op.workspace_bytes(other), op.workspace_bytes(call));
    op.run(other, workspace.reserve(bytes));
    op.run(call, workspace.reserve(bytes));
  }

  /// y of the first `rows` rows, in memory of its own.
  Array run_rows(std::int64_t rows, bool batch_invariant = false) const {
    Array y = array({rows, c_.d});
    run(call(first_rows(x_, rows), first_rows(residual_, rows), y.tensor(), batch_invariant));
    return y;
  }

  /// A row that the norm is in front of, by its place, and by how much each of its numbers is off
  /// at most: rounded once, unless activations are rounded to FP8, which has its own bound.
  Values normed(std::span<double> row, const Values& weight) const {
    double squares = 0;
    for (const double value : row) squares += value * value;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(row.size()) + c_.eps);
    const double rounding = c_.float8_input ? 2 * kSums : rounding_of(c_.dtype);
    const double least = c_.float8_input ? 0 : least_step(c_.dtype);
    Values errors(row.size());
    for (std::size_t k = 0; k < row.size(); ++k) {
      row[k] *= factor * (c_.offset + weight[k]);
      errors[k] = (rounding + kSums) * std::abs(row[k]) + least;
    }
    return errors;
  }

  /// By how much the numbers of a row of x are off at most that are whole multiples of a power of
  /// two, 128 of one: a CPU's, where weights are whole numbers.
  Values shared_power(std::span<const double> row) const {
    Values errors(row.size());
    if (check_.kernel().device().kind != kiln::Device::Kind::kCpu || c_.gate.e4m3) return errors;
    constexpr std::size_t kShared = 128;
    for (std::size_t k = 0; k < row.size(); ++k) {
      const std::size_t from = k / kShared * kShared;
      const auto block = row.subspan(from, std::min(kShared, row.size() - from));
      for (const double value : block) errors[k] = std::max(errors[k], std::abs(value) * 0x1p-15);
    }
    return errors;
  }

  void compute_reference() {
    const auto m = static_cast<std::size_t>(c_.m);
    const auto d = static_cast<std::size_t>(c_.d);
    const auto h = static_cast<std::size_t>(c_.h);
    Values x = x_.values();
    const Values gate = gate_.weights(), up = up_.weights();
    const Values down = down_.weights(), residual = residual_.values();
    const Values gate_bias = gate_bias_.values(), up_bias = up_bias_.values();
    const Values down_bias = down_bias_.values(), norm_weight = norm_weight_.values();
    const double rounding = rounding_of(c_.dtype);
    // What a GPU's kernels for many tokens add, which round weights.
    const auto of_weights = [&](double terms, double squares, double inputs) {
      return rounding * std::min(terms, kRounded * std::sqrt(squares)) +
             least_step(c_.dtype) * inputs;
    };
    expected_.assign(m * d, 0);
    terms_.assign(m * d, 0);
    rounded_terms_.assign(m * d, 0);
    // What a GPU's kernels for many tokens add where activations are FP8, which add few bits.
    const double more_sums = kShortSums - kSums;
    const auto compute_row = [&](std::size_t row) {
      Values hidden(h), hidden_error(h), weights_error(h), normed_error(h);
      const std::span<double> inputs(&x[row * d], d);
      Values errors = c_.norm       ? normed(inputs, norm_weight)
                      : c_.outliers ? shared_power(inputs)
                                    : Values(d);
      if (c_.float8_input) {
        const Float8Row rounded = float8_row(c_.dtype, inputs.data(), errors);
        std::ranges::copy(rounded.values, inputs.begin());
        errors = rounded.moved;
      }
      const double all_inputs = sum_of_magnitudes(inputs);
      for (std::size_t j = 0; j < h; ++j) {
        const Sums of_gate = sums_of(inputs, &gate[j * d]), of_up = sums_of(inputs, &up[j * d]);
        const double g_bias = c_.biases ? gate_bias[j] : 0, u_bias = c_.biases ? up_bias[j] : 0;
        const double g = g_bias + of_gate.sum, u = u_bias + of_up.sum;
        const double g_terms = std::abs(g_bias) + of_gate.terms;
        const double u_terms = std::abs(u_bias) + of_up.terms;
        const double active = activate(c_.activation, g), factor = factor_of(c_.activation, u);
        const double of_sums =
            1.2 * g_terms * std::abs(factor) + std::abs(active) * (u_terms + std::abs(factor));
        hidden[j] = active * factor;
        if (c_.saturates) hidden[j] = std::clamp(hidden[j], -kMostFloat16, kMostFloat16);
        hidden_error[j] = kSums * of_sums;
        if (c_.norm || c_.outliers) {
          const auto root = [&](const Values& of) {
            return std::sqrt(sums_of(errors, &of[j * d]).squares);
          };
          normed_error[j] = 1.2 * root(gate) * std::abs(factor) + std::abs(active) * root(up);
          if (c_.float8_input) hidden_error[j] += kNormed * normed_error[j];
        }
        if (c_.float8_input) {
          weights_error[j] = more_sums * of_sums;
          continue;
        }
        hidden_error[j] += rounding * std::abs(hidden[j]) + least_step(c_.dtype);
        weights_error[j] =
            1.2 * of_weights(g_terms, of_gate.squares, all_inputs) * std::abs(factor) +
            std::abs(active) * of_weights(u_terms, of_up.squares, all_inputs);
      }
      if (c_.float8_input) {
        Values most(h);
        for (std::size_t j = 0; j < h; ++j) most[j] = hidden_error[j] + weights_error[j];
        Float8Row least = float8_row(c_.dtype, hidden.data(), hidden_error);
        weights_error = float8_row(c_.dtype, hidden.data(), most).moved;
        hidden = std::move(least.values);
        hidden_error = std::move(least.moved);
      }
      const double all_hidden = sum_of_magnitudes(hidden);
      for (std::size_t n = 0; n < d; ++n) {
        const double* const weights = down.data() + n * h;
        const Sums of_hidden = sums_of(hidden, weights);
        const Sums moved = sums_of(weights_error, weights);
        const double added_last =
            (c_.biases ? down_bias[n] : 0) + (c_.residual ? residual[row * d + n] : 0);
        const double sum = added_last + of_hidden.sum;
        double error =
            kSums * (std::abs(added_last) + of_hidden.terms) + sums_of(hidden_error, weights).terms;
        const double added = c_.float8_input
                                 ? more_sums * of_hidden.terms +
                                       std::min(moved.terms, kRounded * std::sqrt(moved.squares))
                                 : of_weights(of_hidden.terms, of_hidden.squares, all_hidden) +
                                       std::sqrt(moved.squares);
        if ((c_.norm || c_.outliers) && !c_.float8_input) {
          error += kNormed * std::sqrt(sums_of(normed_error, weights).squares);
        }
        expected_[row * d + n] = sum;
        // The largest difference is then a part of the rounding's step.
        terms_[row * d + n] = (error + rounding * std::abs(sum)) / (2 * rounding);
        rounded_terms_[row * d + n] = terms_[row * d + n] + added / (2 * rounding);
      }
    };
    for_each_row(m, m * d * h > 100000 ? std::thread::hardware_concurrency() : 1, compute_row);
  }

  void compare(const std::string& what, const Array& y, std::int64_t rows) const {
    const auto count = static_cast<std::ptrdiff_t>(rows * c_.d);
    const bool may_expand = rows >= 512 && !c_.float8_input;
    const bool may_round = check_.kernel().device().kind == kiln::Device::Kind::kCuda &&
                           rows > (c_.float8_input ? 16 : 32) &&
                           (c_.gate.e4m3 || c_.gate.scales == c_.dtype || may_expand);
    const Values& terms = may_round ? rounded_terms_ : terms_;
    check_.compare(may_round && !c_.float8_input ? what + ", rounded weights" : what, y,
                   Values(expected_.begin(), expected_.begin() + count), 2 * rounding_of(c_.dtype),
                   Values(terms.begin(), terms.begin() + count));
  }

  const Case& of() const { return c_; }
  void set_expected(const Values& expected) { expected_ = expected; }
  const Values& expected() const { return expected_; }
  Check& check() const { return check_; }

 private:
  Array empty(std::vector<std::int64_t> shape) const {
    return Array(check_.kernel().device(), c_.dtype, std::move(shape));
  }
  Array array(std::vector<std::int64_t> shape) const {
    Array result = empty(std::move(shape));
    std::mt19937 engine = engine_;
    result.set(random(result.size(), engine));
    return result;
  }
  Array padded_bias() {
    Array result = empty({(c_.h + 15) / 16, 16});
    Values values = random(result.size(), engine_);
    std::fill(values.begin() + static_cast<std::ptrdiff_t>(c_.h), values.end(), 0);
    result.set(values);
    return result;
  }

  Check& check_;
  Case c_;
  mutable std::mt19937 engine_;
  Quantized gate_, up_, down_;
  Array x_, residual_, gate_bias_, up_bias_, down_bias_, norm_weight_;
  std::vector<Packed> packed_;
  Values expected_, terms_, rounded_terms_;
};

std::string name_of(const Case& c) {
  return std::string("forward ") + (c.dtype == DType::kFloat16 ? "float16" : "bfloat16") + " " +
         c.gate.name() + (c.float8_input ? ", float8 input" : "") + (c.norm ? ", norm" : "");
}

/// int4, int8 and FP8, each with the scales that it may have, and zeros where `zeros` says so.
std::vector<Format> formats(std::int64_t group, bool zeros_of_int4 = false,
                            bool zeros_of_int8 = false, DType scales = DType::kBFloat16) {
  return {{.bits = 4, .group = group, .zeros = zeros_of_int4, .scales = scales},
          {.bits = 8, .group = group, .zeros = zeros_of_int8, .scales = scales},
          {.bits = 8, .e4m3 = true, .group = group, .scales = DType::kFloat32}};
}

/// Each number of rows at which another kernel may run, up to all of them.
using Rows = std::vector<std::int64_t>;
void check_case(Check& check, const Case& c, unsigned seed,
                const Rows& some = {1, 5, 8, 9, 16, 29, 33, 64, 100, 150}, const char* what = "") {
  Subject subject(check, c, seed);
  subject.pack_all();
  subject.compute_reference();
  const std::string name = name_of(c) + what;
  for (const std::int64_t rows : some) {
    if (rows < c.m) subject.compare(name, subject.run_rows(rows), rows);
  }
  subject.compare(name, subject.run_rows(c.m), c.m);
}

void check_random(Check& check, int cases) {
  std::mt19937 engine(7);
  const auto pick = [&](std::initializer_list<std::int64_t> of) {
    return of.begin()[engine() % of.size()];
  };
  for (int number = 0; number < cases; ++number) {
    const bool e4m3 = number % 6 == 5;
    const auto layout = e4m3 ? Layout::kPlain : static_cast<Layout>(number % 6);
    Case c;
    c.dtype = number / 6 % 2 == 0 ? DType::kBFloat16 : DType::kFloat16;
    Format format{.bits = layout != Layout::kAwq && engine() % 2 == 0 ? 8 : 4,
                  .group = pick({0, 32, 64, 128}),
                  .zeros = engine() % 2 == 0,
                  .layout = layout,
                  .scales = engine() % 2 == 0 ? DType::kBFloat16 : DType::kFloat16};
    format.is_signed = layout == Layout::kPlain && !format.zeros && engine() % 2 == 0;
    if (e4m3) {
      format = {
          .bits = 8,
          .e4m3 = true,
          .scale_rows = pick({0, 1, 128}),
          .group = format.group,
          .scales = std::array{DType::kFloat32, DType::kBFloat16, DType::kFloat16}[engine() % 3]};
    }
    c.gate = c.up = c.down = format;
    c.down.group = pick({0, 32, 64, 128});
    if (!e4m3 && layout != Layout::kAwq && engine() % 4 == 0) c.down.bits = 12 - format.bits;
    if (!e4m3 && engine() % 4 == 0) c.up.zeros = !format.zeros, c.up.is_signed = false;
    c.activation = static_cast<Activation>(engine() % 6);
    c.biases = engine() % 2 == 0;
    c.residual = engine() % 2 == 0;
    c.m = pick({1, 2, 8, 16, 17, 30, 40, 65, 130, 200});
    // Words are whole along K, and of AWQ's along N: what else is ragged is plain or
    // compressed-tensors.
    const std::int64_t unit = layout == Layout::kPlain ? pick({1, 2, 8}) : 8;
    c.d = (1 + static_cast<std::int64_t>(engine() % static_cast<unsigned>(pick({40, 400})))) * unit;
    c.h = (1 + static_cast<std::int64_t>(engine() % static_cast<unsigned>(pick({40, 400})))) * unit;
    while (c.d > 400) c.d /= 2;
    while (c.h > 400) c.h /= 2;
    c.d = std::max(unit, c.d / unit * unit);
    c.h = std::max(unit, c.h / unit * unit);
    check_case(check, c, static_cast<unsigned>(number));
  }
}

/// Many turns of a warp along k, and what ends within one.
void check_deep(Check& check) {
  for (const Format& format : formats(128, true)) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      Case c;
      c.dtype = dtype;
      c.m = 70;
      c.d = 2824;
      c.h = 3000;
      c.gate = c.up = c.down = format;
      check_case(check, c, 11);
      c.m = 30, c.d = 3072, c.h = 3200;  // of whole groups
      c.up.zeros = !format.e4m3 && !format.zeros;
      check_case(check, c, 12);
    }
  }
}

/// So many rows that a GPU makes weights numbers of 16 bits first: groups within what a warp makes
/// at a time, and of it all; scales of the other dtype; bits that differ; columns that are no whole
/// tiles, and such that rows of x are not whole either, which that cannot take.
void check_many(Check& check, bool light) {
  const Rows rows = light ? Rows{512, 1024, 1280} : Rows{511, 512, 777, 1024, 1280};
  int number = 0;
  for (const std::int64_t group : {0, 32, 64, 128}) {
    for (const DType scales : {DType::kBFloat16, DType::kFloat16}) {
      for (const Format& format : formats(group, number % 2 == 0, number % 3 == 0, scales)) {
        Case c;
        c.dtype = number % 4 < 2 ? DType::kBFloat16 : DType::kFloat16;
        c.m = 1300;
        c.d = std::array{200, 64, 136, 396, 260}[static_cast<std::size_t>(number % 5)];
        c.h = std::array{328, 72, 301}[static_cast<std::size_t>(number % 3)];
        c.gate = c.up = c.down = format;
        if (!format.e4m3 && number % 3 == 1) c.down.bits = 12 - format.bits;
        c.biases = number % 2 == 0;
        c.residual = number % 3 != 0;
        c.norm = number % 7 == 3;
        c.activation = static_cast<Activation>(number % 6);
        c.saturates = c.dtype == DType::kFloat16 && number % 8 == 6;
        ++number;
        if (light && number % 4 != 1) continue;
        check_case(check, c, static_cast<unsigned>(100 + number), rows, ", many rows");
      }
    }
  }
}

/// So few rows of so much k that a GPU's kernels for many tokens split it, of both products.
void check_split(Check& check) {
  for (const Format& format : formats(128, true)) {
    for (const bool wide : {false, true}) {
      Case c;
      c.m = 70;
      c.d = wide ? 4104 : 136;
      c.h = wide ? 136 : 4104;
      c.biases = c.residual = true;
      c.gate = c.up = c.down = format;
      check_case(check, c, 13);
    }
  }
}

/// Weights so large that a GPU's kernels for many tokens have more tiles than multiprocessors, of
/// which the last ones may be split along k: `rows` rows beside those of decode. Those kernels may
/// also begin earlier, from `early` rows on; the rows that they give then are bit by bit those of a
/// call with more, and else those of decode.
struct LargeCodes {
  const char* name;
  std::int64_t tile_bytes;
  bool is_e4m3;
  bool rounds = false;  // activations in FP8 too
};
constexpr LargeCodes kLargeInt4{"int4", 512, false};
constexpr LargeCodes kLargeInt8{"int8", 1024, false};
constexpr LargeCodes kLargeE4m3{"e4m3", 1024, true};
constexpr LargeCodes kLargeW8A8{"e4m3, float8 input", 1024, true, true};

void check_large(Check& check, std::int64_t width, std::int64_t hidden, const LargeCodes& kind,
                 std::int64_t rows, std::int64_t early) {
  const kiln::Device device = check.kernel().device();
  std::mt19937 engine(12);
  const auto matrix = [&](std::int64_t outputs, std::int64_t columns) {
    Packed one{Array(device, DType::kUInt8, {outputs / 16, columns / 64, kind.tile_bytes}),
               Array(device, kind.is_e4m3 ? DType::kFloat32 : DType::kBFloat16,
                     {outputs / 16, (columns + 127) / 128, 16}),
               std::nullopt, kind.is_e4m3};
    Values codes(one.codes.size());
    for (double& code : codes) code = static_cast<double>(engine() % (kind.is_e4m3 ? 127 : 256));
    one.codes.set(codes);
    const double largest = kind.tile_bytes == 512 ? 4 : 128;
    const double scale = 1 / (std::sqrt(static_cast<double>(columns)) * largest);
    one.scales.set(Values(one.scales.size(), scale));
    return one;
  };
  const Packed gate = matrix(hidden, width), down = matrix(width, hidden);
  Array x(device, DType::kBFloat16, {rows, width});
  x.set(random(x.size(), engine));
  const auto run = [&](std::int64_t of_rows, bool batch_invariant) {
    Array y(device, DType::kBFloat16, {of_rows, width});
    ops::Forward call{.x = first_rows(x, of_rows),
                      .gate = gate.codes_tensor(),
                      .gate_scales = gate.scales.tensor(),
                      .up = gate.codes_tensor(),
                      .up_scales = gate.scales.tensor(),
                      .down = down.codes_tensor(),
                      .down_scales = down.scales.tensor(),
                      .y = y.tensor(),
                      .attributes = {.batch_invariant = batch_invariant}};
    if (kind.rounds) {
      call.attributes.input_dtype = ops::ForwardAttributes::InputDtype::kFloat8E4m3fn;
    }
    const auto op = check.kernel().op<ops::Forward>();
    kiln::OwnedWorkspace workspace(device);
    op.run(call, workspace.reserve(op.workspace_bytes(call)));
    return y;
  };
  const std::string name = std::string("forward large ") + kind.name;
  const Values of_many = run(rows, false).values();
  const Array decoded = run(rows, true);
  check.compare(name, decoded, of_many, 2e-2);
  const Array y = run(early, false);
  const std::size_t count = y.size();
  const bool by_many = std::ranges::equal(y.values(), std::span(of_many).first(count));
  const Values expected = by_many ? of_many : decoded.values();
  check.compare(name, y, std::span(expected).first(count), 0);
}

void check_large(Check& check) {
  check_large(check, 512, 62528, kLargeW8A8, 17, 9);
  for (const LargeCodes& kind : {kLargeInt4, kLargeInt8, kLargeE4m3}) {
    check_large(check, 512, 62528, kind, 33, 17);
    check_large(check, 1088, 18432, kind, 40, 32);  // 144 tiles of h, odd ones of k
  }
  for (const LargeCodes& kind : {kLargeInt4, kLargeInt8, kLargeE4m3}) {
    check_large(check, 2304, 34048, kind, 1300, 8);  // several chunks of both products
  }
  for (const LargeCodes& kind : {kLargeInt4, kLargeW8A8}) {
    check_large(check, 1088, 17408, kind, 64, 8);  // 136 tiles of h
    check_large(check, 1088, 17408, kind, 100, 8);
    check_large(check, 34048, 1152, kind, 70, 8);  // 133 of y, 9 of h
  }
}

/// Scales at the ends of what the dtype has. bfloat16's reach as far as fp32's.
void check_scales(Check& check) {
  for (const Format& format : formats(32, true, true)) {
    for (const std::int64_t rows : {3, 40}) {
      Case c;
      c.m = rows;
      c.d = 200;
      c.h = 136;
      c.gate = c.up = c.down = format;
      c.activation = Activation::kRelu;
      for (const double power : {60.0, -60.0}) {
        c.gate_size = std::exp2(power);
        c.up_size = std::exp2(-power);
        c.down_size = 1;
        check_case(check, c, 21);
      }
      c.gate_size = c.up_size = 2;
      for (const double power : {100.0, -122.0}) {  // huge; denormal, but not 0
        c.down_size = std::exp2(power);
        check_case(check, c, 22);
      }
      if (!format.e4m3) c.gate.scales = c.up.scales = c.down.scales = DType::kFloat16;
      c.dtype = DType::kFloat16;
      c.down_size = std::exp2(-12);  // scales below float16's normal ones
      check_case(check, c, 23);
    }
  }
}

/// A NaN in a scale of down stays in its column of y, as one among the codes of FP8 does, one in x
/// in its row; the rest keeps its bits.
void check_isolation(Check& check, bool float8_input = false) {
  for (const Format& format : formats(float8_input ? 128 : 64, true)) {
    if (float8_input && !format.e4m3) continue;
    for (const std::int64_t m : {7, 30, 60, 100, 1300}) {
      Case c;
      c.float8_input = float8_input;
      c.m = m;
      c.d = 104;
      c.h = 200;
      c.gate = c.up = c.down = format;
      if (m == 60 && !format.e4m3) {
        c.gate.scales = c.up.scales = c.down.scales = DType::kFloat16;
      }
      Subject subject(check, c, 31);
      subject.pack_all();
      const Values clean = subject.run_rows(m).values();
      const auto d = static_cast<std::size_t>(c.d);
      const auto without = [&](const std::function<bool(std::size_t, std::size_t)>& is_nan) {
        Values expected = clean;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          if (is_nan(i / d, i % d)) expected[i] = kNaN;
        }
        return expected;
      };
      Values x = subject.x().values();
      x[2 * d + 9] = kNaN;
      x[5 * d] = std::numeric_limits<double>::infinity();
      subject.x().set(x);
      const Array y = subject.run_rows(m);
      Values found = y.values();
      for (std::size_t i = 0; i < d; ++i) found[5 * d + i] = clean[5 * d + i];  // any value
      Array kept(check.kernel().device(), c.dtype, {m, c.d});
      kept.set(found);
      check.compare("isolation of rows", kept,
                    without([](std::size_t row, std::size_t) { return row == 2; }), 0);

      Subject broken(check, c, 31);
      Quantized& down = broken.down();
      if (format.e4m3 && m != 60) {
        down.codes[static_cast<std::size_t>(17 * down.columns + 99)] = m == 7 ? 0x7f : 0xff;
      } else {
        down.scales[static_cast<std::size_t>(17 * down.groups + 1)] = kNaN;
      }
      broken.pack_all();
      check.compare("isolation of columns", broken.run_rows(m),
                    without([](std::size_t, std::size_t column) { return column == 17; }), 0);
    }
  }
}

/// The bits of a row depend on the row alone.
void check_invariance(Check& check) {
  for (const Format& format : formats(128, false, false, DType::kFloat16)) {
    Case c;
    c.m = 150;
    c.d = 264;
    c.h = 328;
    c.gate = c.up = c.down = format;
    Subject subject(check, c, 41);
    subject.pack_all();
    const Values all = subject.run_rows(c.m, true).values();
    for (const std::int64_t rows : {1, 2, 8, 9, 17, 33, 64, 65, 149}) {
      check.compare("batch invariant", subject.run_rows(rows, true),
                    Values(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(rows * c.d)), 0);
    }
    check.compare("again", subject.run_rows(c.m), subject.run_rows(c.m).values(), 0);
  }
}

void check_in_place(Check& check) {
  for (const std::int64_t m : {3, 90, 1300}) {
    Case c;
    c.m = m;
    c.d = c.h = 192;
    c.residual = true;
    Subject subject(check, c, 51);
    subject.pack_all();
    const Values expected = subject.run_rows(m).values();
    const Values x = subject.x().values();
    subject.run(
        subject.call(subject.x().tensor(), subject.residual().tensor(), subject.x().tensor()));
    check.compare("y in the place of x", subject.x(), expected, 0);
    subject.x().set(x);
    subject.run(subject.call(subject.x().tensor(), subject.residual().tensor(),
                             subject.residual().tensor()));
    check.compare("y in the place of the residual", subject.residual(), expected, 0);
  }
}

/// The layer gives what the op gives, in a workspace of its own that grows.
void check_layer(Check& check) {
  std::vector<Format> all_formats = formats(32, true);
  all_formats.push_back({.group = 32});
  for (const Format& format : all_formats) {
    Case c;
    c.m = 40;
    c.d = 160;
    c.h = 96;
    c.residual = c.biases = true;
    c.activation = Activation::kGelu;
    c.gate = c.up = c.down = format;
    Subject subject(check, c, 71);
    subject.pack_all();
    const ops::Forward all = subject.call(subject.x().tensor(), subject.residual().tensor(), {});
    auto mlp = check.kernel().layer<kiln::layers::QuantizedMlp>(
        {.gate = {all.gate, all.gate_scales, all.gate_zeros},
         .up = {all.up, all.up_scales, all.up_zeros},
         .down = {all.down, all.down_scales, all.down_zeros},
         .gate_bias = all.gate_bias,
         .up_bias = all.up_bias,
         .down_bias = all.down_bias,
         .attributes = all.attributes});
    for (const std::int64_t rows : {3, 40}) {
      Array y(check.kernel().device(), c.dtype, {rows, c.d});
      mlp.forward({first_rows(subject.x(), rows), first_rows(subject.residual(), rows)},
                  y.tensor());
      check.compare("layer", y, subject.run_rows(rows).values(), 0);
    }
  }
}

void check_refusals(Check& check) {
  Case c;
  c.m = 4;
  c.d = 128;
  c.h = 256;
  Subject subject(check, c, 61);
  subject.pack_all();
  Array y(check.kernel().device(), c.dtype, {c.m, c.d});
  const ops::Forward good = subject.call(subject.x().tensor(), {}, y.tensor());
  const Array other(check.kernel().device(), DType::kUInt8, {16, 2, 256});
  const auto refused = [&](const std::string& words, const auto& change) {
    ops::Forward bad = good;
    change(bad);
    check.refused(words, [&] { subject.run(bad); });
  };
  refused("limit is 0", [](ops::Forward& call) { call.attributes.limit = 0; });
  refused("gate has tiles of 256 bytes; expected 512 of 4 bits, 1024 of 8",
          [&](ops::Forward& call) { call.gate = call.up = other.tensor(); });
  refused("down has 16 x 2 tiles; expected 8 x 4", [&](ops::Forward& call) {
    call.down = good.gate;
    call.down_scales = good.gate_scales;
  });
  const Array groups(check.kernel().device(), DType::kFloat16, {16, 3, 16});
  refused("gate has 3 groups of 128 columns; expected 4, 2, 1 or 1",
          [&](ops::Forward& call) { call.gate_scales = call.up_scales = groups.tensor(); });
  const Array wide(check.kernel().device(), DType::kFloat32, {16, 1, 16});
  const Array wide_down(check.kernel().device(), DType::kFloat32, {8, 1, 16});
  refused("gate is uint8, and its scales are float32; expected bfloat16 or float16",
          [&](ops::Forward& call) {
            call.gate_scales = call.up_scales = wide.tensor();
            call.down_scales = wide_down.tensor();
          });

  c.gate = c.up = c.down = formats(128)[2];
  Subject float8(check, c, 62);
  float8.pack_all();
  const Array zeros(check.kernel().device(), DType::kUInt8, {16, 1, 16});
  check.refused("gate is float8_e4m3fn and has zeros", [&] {
    ops::Forward bad = float8.call(float8.x().tensor(), {}, y.tensor());
    bad.gate_zeros = zeros.tensor();
    float8.run(bad);
  });
  check.refused("gate is float8_e4m3fn, and its scales are of 16 bits; expected float32", [&] {
    ops::Forward bad = float8.call(float8.x().tensor(), {}, y.tensor());
    bad.gate_scales = bad.up_scales = good.gate_scales;
    bad.down_scales = good.down_scales;
    float8.run(bad);
  });
}

/// The same bits whatever the workspace had: where tiles are shared, and tokens end within one.
void check_workspace(Check& check, Case c) {
  c.m = 128, c.d = 4104, c.h = 264;
  c.gate.group = c.up.group = c.down.group = c.down.scale_rows = 128;
  Subject subject(check, c, 82);
  subject.pack_all();
  const Array all(check.kernel().device(), c.dtype, {c.m, c.d});
  const Array y(check.kernel().device(), c.dtype, {70, c.d});
  subject.run_after(
      subject.call(subject.x().tensor(), subject.residual().tensor(), all.tensor()),
      subject.call(first_rows(subject.x(), 70), first_rows(subject.residual(), 70), y.tensor()));
  check.compare("again", y, subject.run_rows(70).values(), 0);
}

/// A few numbers of x that are 4096 times as large as what is around them, as models have them:
/// what the others add is still there.
void check_outliers(Check& check) {
  for (const Format& format : formats(64, true)) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      Case c;
      c.outliers = true;
      c.dtype = dtype;
      c.m = 9;
      c.d = 392;
      c.h = 272;
      c.gate = c.up = c.down = format;
      c.gate_size = c.up_size = 0x1p-8;
      Subject subject(check, c, 61);
      Values x = subject.x().values();
      for (std::size_t i = 5; i < x.size(); i += 131) x[i] *= 4096;
      subject.x().set(x);
      subject.pack_all();
      subject.compute_reference();
      for (const std::int64_t rows : {1, 2, 9}) {
        subject.compare(name_of(c) + ", outliers", subject.run_rows(rows), rows);
      }
    }
  }
}

/// Activations in FP8, of weights with each kind of scales: blocks of 128 columns that end within,
/// tokens and columns that end within tiles, a row of zeros, every gate, parts of k.
void check_float8(Check& check, bool light) {
  std::mt19937 engine(9);
  const auto pick = [&](std::initializer_list<std::int64_t> of) {
    return of.begin()[engine() % of.size()];
  };
  const auto run_case = [&](const Case& c, unsigned seed) {
    Subject subject(check, c, seed);
    Values x = subject.x().values();
    if (c.m > 3) std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(2 * c.d), c.d, 0);
    for (std::int64_t row = 0; row < c.m; ++row) {  // of other sizes
      const double size = std::exp2(row % 7 - 3);
      for (std::int64_t k = 0; k < c.d; ++k) x[static_cast<std::size_t>(row * c.d + k)] *= size;
    }
    subject.x().set(x);
    subject.pack_all();
    subject.compute_reference();
    for (const std::int64_t rows : {5, 29, 33, 64, 100, 150}) {
      if (rows < c.m) subject.compare(name_of(c), subject.run_rows(rows), rows);
    }
    subject.compare(name_of(c), subject.run_rows(c.m), c.m);
  };
  Case deep;
  deep.gate = deep.up = deep.down = formats(0)[2];
  deep.float8_input = true;
  for (const auto& [m, d, h] :
       std::initializer_list<std::array<std::int64_t, 3>>{{64, 128, 128},
                                                          {40, 64, 64},
                                                          {128, 256, 136},
                                                          {130, 328, 520},
                                                          {36, 1000, 720},
                                                          {70, 4104, 264}}) {
    deep.m = m, deep.d = d, deep.h = h;
    for (const std::int64_t group : {0, 128}) {
      for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
        if (light && (group == 0) != (dtype == DType::kBFloat16)) continue;
        deep.gate.group = deep.up.group = group;
        deep.down.group = 128 - group;
        deep.dtype = dtype;
        run_case(deep, 81);
      }
    }
  }
  for (int number = 0; number < (light ? 12 : 160); ++number) {
    Case c;
    c.float8_input = true;
    c.dtype = number % 2 == 0 ? DType::kBFloat16 : DType::kFloat16;
    c.gate = c.up = c.down = {.bits = 8,
                              .e4m3 = true,
                              .scale_rows = pick({0, 1, 128}),
                              .group = pick({0, 0, 128, 128, 64, 32}),
                              .scales = DType::kFloat32};
    c.down.group = pick({0, 0, 128, 128, 64, 32});
    c.activation = static_cast<Activation>(engine() % 6);
    c.biases = engine() % 2 == 0;
    c.residual = engine() % 2 == 0;
    c.m = pick({1, 8, 17, 40, 65, 130, 200});
    const unsigned most = light ? 300 : 400;
    c.d = 1 + static_cast<std::int64_t>(engine() % most);
    c.h = 1 + static_cast<std::int64_t>(engine() % most);
    run_case(c, static_cast<unsigned>(number));
  }
  check_workspace(check, deep);
  Case saturated = deep;
  saturated.m = 40, saturated.d = saturated.h = 256;
  saturated.dtype = DType::kFloat16;
  saturated.saturates = true;
  saturated.up_size = std::exp2(18);  // most of h beyond float16
  saturated.down_size = std::exp2(-10);
  run_case(saturated, 84);
  Case empty = deep;
  empty.m = 20, empty.d = 128, empty.h = 0;
  empty.dtype = DType::kFloat16;
  empty.down.group = 128;  // of no columns there are none
  run_case(empty, 83);
  Case whole;
  whole.float8_input = true;
  Subject refused(check, whole, 82);
  refused.pack_all();
  const Array y(check.kernel().device(), whole.dtype, {whole.m, whole.d});
  check.refused("input_dtype is float8_e4m3fn, and gate is uint8; expected float8_e4m3fn",
                [&] { refused.run(refused.call(refused.x().tensor(), {}, y.tensor())); });
}

/// With a norm in front: rows of all sizes, of zeros, and one that is as large as its squares may
/// be, where the kernel that reads x norms it in shared memory, and where a kernel before it does.
void check_norm_case(Check& check, Case c, unsigned seed,
                     std::initializer_list<std::int64_t> some) {
  c.norm = true;
  Subject subject(check, c, seed);
  Values x = subject.x().values();
  for (std::int64_t row = 0; row < c.m; ++row) {
    const bool is_wide = c.dtype == DType::kBFloat16;
    const double size = row % 9 == 4   ? 0
                        : row % 9 == 6 ? std::exp2(is_wide ? 50 : 13)
                                       : std::exp2(row % 7 * 2 - 6);
    for (std::int64_t k = 0; k < c.d; ++k) {
      double& value = x[static_cast<std::size_t>(row * c.d + k)];
      value = std::clamp(value, -3.5, 3.5) * size;
    }
  }
  subject.x().set(x);
  subject.pack_all();
  subject.compute_reference();
  for (const std::int64_t rows : some) {
    if (rows > c.m) continue;
    subject.compare(name_of(c), subject.run_rows(rows), rows);
    subject.compare(name_of(c) + ", batch invariant", subject.run_rows(rows, true), rows);
  }
}

void check_norm_isolation(Check& check, Case c) {
  c.norm = c.residual = true;
  c.m = 40;
  Subject subject(check, c, 91);
  subject.pack_all();
  const auto d = static_cast<std::size_t>(c.d);
  for (const std::int64_t rows : {3, 7, 14, 40}) {
    for (const bool batch_invariant : {false, true}) {
      const Values before = subject.x().values();
      Values expected = subject.run_rows(rows, batch_invariant).values();
      Values x = before;
      x[d + d / 2] = kNaN;
      x[2 * d] = std::numeric_limits<double>::infinity();
      subject.x().set(x);
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(d), 2 * d, kNaN);
      check.compare("isolation of normed rows", subject.run_rows(rows, batch_invariant), expected,
                    0);
      subject.x().set(before);
    }
  }
}

/// y = x + mlp(norm(x)) in the place of x; weights that begin at an odd address; the layer.
void check_norm_calls(Check& check, Case c) {
  c.norm = c.residual = true;
  for (const std::int64_t m : {3, 12, 90, 1300}) {
    c.m = m;
    Subject subject(check, c, 92);
    subject.pack_all();
    subject.residual().set(subject.x().values());
    const Values expected = subject.run_rows(m).values();
    const Tensor x = subject.x().tensor();
    ops::Forward call = subject.call(x, x, {});
    auto mlp = check.kernel().layer<kiln::layers::QuantizedMlp>(
        {.gate = {call.gate, call.gate_scales, call.gate_zeros},
         .up = {call.up, call.up_scales, call.up_zeros},
         .down = {call.down, call.down_scales, call.down_zeros},
         .attributes = call.attributes,
         .norm_weight = call.norm_weight});
    const Array y(check.kernel().device(), c.dtype, {m, c.d});
    mlp.forward({x, x}, y.tensor());
    check.compare("layer with a norm", y, expected, 0);

    Array longer(check.kernel().device(), c.dtype, {c.d + 1});
    Values weights = subject.norm_weight().values();
    weights.insert(weights.begin(), 0);
    longer.set(weights);
    const Tensor whole = longer.tensor();
    std::int64_t shape[] = {c.d};
    DLTensor some = whole.dl();
    some.shape = shape;
    some.data = static_cast<char*>(some.data) + 2;
    call.norm_weight = Tensor(some);
    call.y = y.tensor();
    subject.run(call);
    check.compare("norm weights at an odd address", y, expected, 0);

    subject.run(subject.call(x, x, x));
    check.compare("y in the place of x, normed", subject.x(), expected, 0);
  }
}

void check_norm(Check& check, bool light) {
  std::mt19937 engine(17);
  const auto pick = [&](std::initializer_list<std::int64_t> of) {
    return of.begin()[engine() % of.size()];
  };
  for (int number = 0; number < (light ? 6 : 120); ++number) {
    Case c;
    c.dtype = number % 2 == 0 ? DType::kBFloat16 : DType::kFloat16;
    const DType scales = engine() % 2 == 0 ? DType::kBFloat16 : DType::kFloat16;
    c.gate = c.up = c.down =
        formats(pick({0, 32, 64, 128}), true, engine() % 2 == 0, scales)[number / 2 % 3];
    c.down.group = pick({0, 32, 64, 128});
    c.activation = static_cast<Activation>(engine() % 6);
    c.biases = engine() % 2 == 0;
    c.residual = engine() % 2 == 0;
    c.eps = std::array{1e-6, 1e-5, 0.1}[engine() % 3];
    c.offset = static_cast<double>(pick({0, 0, 1}));
    c.float8_input = c.gate.e4m3 && engine() % 2 == 0;
    c.m = light ? 34 : 70;
    c.d = pick({1, 8, 40, 64, 96, 128, 200, 256, 384, 1 + static_cast<int>(engine() % 400)});
    c.h = 1 + static_cast<std::int64_t>(engine() % 300);
    check_norm_case(check, c, static_cast<unsigned>(number), {1, 2, 3, 8, 9, 16, 23, 33, 64, 70});
  }
  // One token in shared memory, three, and more than it has room for; more columns than are normed
  // there. Either way a row has the same bits.
  for (const std::int64_t width : {3584, 4096, 8192, 8200, 4100}) {
    if (light && width != 4096 && width != 8200) continue;
    for (const Format& format : formats(128, true)) {
      Case c;
      c.dtype = width == 4096 ? DType::kFloat16 : DType::kBFloat16;
      c.m = light ? 5 : 20;
      c.d = width;
      c.h = 72;
      c.offset = width == 8192 ? 1 : 0;
      c.gate = c.up = c.down = format;
      c.down.group = 0;
      check_norm_case(check, c, 93, {1, 3, 4, 10, 20});
      c.norm = true;
      Subject subject(check, c, 96);
      subject.pack_all();
      const Values more = subject.run_rows(4, true).values();
      check.compare("one row, normed, as of four", subject.run_rows(1, true),
                    Values(more.begin(), more.begin() + static_cast<std::ptrdiff_t>(c.d)), 0);
    }
  }
  for (const Format& format : formats(128, true)) {
    Case c;
    c.d = 264, c.h = 328;
    c.gate = c.up = c.down = format;
    check_norm_isolation(check, c);
    check_norm_calls(check, c);
    c.dtype = DType::kFloat16;
    c.norm = true;
    c.m = 150;
    Subject subject(check, c, 94);
    subject.pack_all();
    const Values all = subject.run_rows(c.m, true).values();
    for (const std::int64_t rows : {1, 2, 8, 9, 17, 33, 64, 65, 149}) {
      check.compare("batch invariant, normed", subject.run_rows(rows, true),
                    Values(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(rows * c.d)), 0);
    }
  }
  Case c;
  c.norm = true;
  Subject subject(check, c, 95);
  subject.pack_all();
  const Array y(check.kernel().device(), c.dtype, {c.m, c.d});
  for (const double number : {-1e-6, kNaN, 1e300}) {
    check.refused("expected a number of at least 0 that a float32 holds", [&] {
      ops::Forward bad = subject.call(subject.x().tensor(), {}, y.tensor());
      bad.attributes.eps = number;
      subject.run(bad);
    });
  }
  for (const double number : {-1e300, kNaN, std::numeric_limits<double>::infinity()}) {
    check.refused("offset is", [&] {
      ops::Forward bad = subject.call(subject.x().tensor(), {}, y.tensor());
      bad.attributes.offset = number;
      subject.run(bad);
    });
  }
}

void run_all(Check& check, bool light) {
  check_norm(check, light);
  check_float8(check, light);
  check_refusals(check);
  check_layer(check);
  check_in_place(check);
  check_outliers(check);
  check_isolation(check);
  check_isolation(check, true);
  check_invariance(check);
  check_scales(check);
  check_split(check);
  check_many(check, light);
  if (!light) check_deep(check);
  if (!light && check.kernel().device().kind == kiln::Device::Kind::kCuda) check_large(check);
  check_random(check, light ? 72 : 432);
}

}  // namespace
}  // namespace quantized_mlp_test

int main(int argc, char** argv) {
  return kiln::testing::run_check(argc, argv, kiln::ops::quantized_mlp::kPackage,
                                  kiln::ops::quantized_mlp::kVersion, quantized_mlp_test::run_all);
}
