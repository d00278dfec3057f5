// SPDX-License-Identifier: Apache-2.0
//
// swiglu_moe_check: both ops against double precision on each device: routers that choose evenly,
// one expert alone, some never, numbers that are no expert; one token to so many that each size of
// tile is taken; ragged widths; rows that lie apart; no tokens, no choices; NaN in one expert and
// in one token; what is refused. The command line is that of kiln::testing::run_check.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <kiln/kiln.hpp>
#include <kiln/ops/swiglu_moe.hpp>
#include <kiln/testing.hpp>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace ops = kiln::ops::swiglu_moe;
using kiln::DType;
using kiln::testing::Array;
using kiln::testing::Check;
using Values = std::vector<double>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kBlock = 128;    // of numbers that share a scale
constexpr double kShortSums = 0x1p-12;  // of the terms of a sum that a GPU adds with about 14 bits

std::int64_t blocks_of(std::int64_t extent) {
  return (extent + kBlock - 1) / kBlock;
}

enum class Router { kEven, kOne, kFew, kStrangers };

struct Case {
  DType dtype;
  bool float8;
  std::int64_t tokens, width, hidden, experts, top;
  Router router = Router::kEven;
  DType index = DType::kInt32;
  std::int64_t gap = 0;
};

/// The value of a code of float8_e4m3fn: sign, 4 bits of exponent, 3 of mantissa.
double value_of_code(int code) {
  const int exponent = code >> 3 & 15;
  const double mantissa = (code & 7) / 8.0;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -6) : std::ldexp(1 + mantissa, exponent - 7);
  return (code & 128) != 0 ? -size : size;
}

/// To the nearest such value, up to 448.
double rounded_to_float8(double value) {
  const int exponent = std::max(value == 0 ? -6 : std::ilogb(value), -6);
  const double step = std::ldexp(1.0, exponent - 3);
  return std::nearbyint(value / step) * step;
}

/// What the numbers of a row become as float8_e4m3fn. Where `errors` says how far off a number may
/// have been before, it says afterwards how far off its code may be: a step, where a tie is near.
void round_row(std::span<double> values, std::span<double> errors = {}) {
  for (std::size_t from = 0; from < values.size(); from += kBlock) {
    const std::size_t count = std::min<std::size_t>(kBlock, values.size() - from);
    double most = 0;
    for (const double value : values.subspan(from, count)) most = std::max(most, std::abs(value));
    const double scale = std::exp2(std::max(std::ceil(std::log2(most / 448)), -100.0));
    for (std::size_t i = from; i < from + count; ++i) {
      const double before = values[i] / scale;
      values[i] = rounded_to_float8(before) * scale;
      if (errors.empty()) continue;
      const double low = rounded_to_float8(before - errors[i] / scale);
      errors[i] = std::abs(rounded_to_float8(before + errors[i] / scale) - low) * scale;
    }
  }
}

/// The weights of all experts, [experts, rows, columns].
class Weights {
 public:
  /// halves: gate and up, whose blocks of rows begin anew.
  Weights(kiln::Device device, const Case& c, std::int64_t rows, std::int64_t columns, int halves,
          std::mt19937& engine)
      : codes_(device, c.float8 ? DType::kUInt8 : c.dtype, {c.experts, halves * rows, columns}),
        scales_(device, DType::kFloat32,
                {c.experts, halves * blocks_of(rows), blocks_of(columns)}) {
    std::normal_distribution<double> normal;
    const double size = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(columns, 1)));
    Values values(codes_.size());
    if (!c.float8) {
      for (double& value : values) value = normal(engine) * size;
      codes_.set(values);
      values_ = codes_.values();
      return;
    }
    for (double& value : values) value = static_cast<double>(engine() % 256);
    for (double& value : values) value = value == 127 || value == 255 ? 0 : value;
    Values scales(scales_.size());
    for (double& scale : scales) scale = std::ldexp(size, -6) * (1 + std::abs(normal(engine)));
    codes_.set(values);
    scales_.set(scales);
    scales = scales_.values();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t row = at / columns % (halves * rows),
                         expert = at / columns / (halves * rows);
      const std::int64_t block = row / rows * blocks_of(rows) + row % rows / kBlock;
      const std::int64_t scale =
          (expert * halves * blocks_of(rows) + block) * blocks_of(columns) + at % columns / kBlock;
      values[i] =
          value_of_code(static_cast<int>(values[i])) * scales[static_cast<std::size_t>(scale)];
    }
    values_ = std::move(values);
  }

  kiln::Tensor tensor(bool float8) const {
    if (!float8) return codes_.tensor();
    const kiln::Tensor bytes = codes_.tensor();
    DLTensor all = bytes.dl();  // as float8_e4m3fn, which Array has not
    const kiln::Tensor other(nullptr, DType::kFloat8E4M3FN, {0}, kiln::Device::cpu());
    all.dtype = other.dl().dtype;
    return kiln::Tensor(all);
  }
  kiln::Tensor scales() const { return scales_.tensor(); }
  const Values& values() const { return values_; }
  /// A NaN for the first weight, in FP8 for the scale of the first block, of which all weights are.
  void spoil(const Case& c) {
    if (!c.float8) {
      values_[0] = kNaN;
      codes_.set(values_);
      return;
    }
    Values scales = scales_.values();
    scales[0] = kNaN;
    scales_.set(scales);
    std::fill_n(values_.begin(), c.hidden * c.width, kNaN);  // both up to kBlock
  }

 private:
  Array codes_, scales_;
  Values values_;
};

class Moe {
 public:
  Moe(Check& check, const Case& c)
      : check_(check),
        c_(c),
        engine_(static_cast<unsigned>(c.tokens * 31 + c.width * 7 + c.hidden)),
        x_(check.kernel().device(), c.dtype, {c.tokens, c.width}, c.gap),
        experts_(check.kernel().device(), c.index, {c.tokens, c.top}),
        factors_(check.kernel().device(), DType::kFloat32, {c.tokens, c.top}),
        gate_up_(check.kernel().device(), c, c.hidden, c.width, 2, engine_),
        down_(check.kernel().device(), c, c.width, c.hidden, 1, engine_) {
    std::normal_distribution<double> normal;
    Values x(x_.size()), factors(factors_.size()), chosen(experts_.size());
    for (double& value : x) value = normal(engine_);
    for (double& value : factors) value = std::abs(normal(engine_));
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      chosen[i] = static_cast<double>(expert_of(static_cast<std::int64_t>(i)));
    }
    x_.set(x);
    factors_.set(factors);
    experts_.set(chosen);
  }

  void run() { compare(call()); }

  /// A NaN stays with its expert, and what is not finite in x with its token.
  void run_with_nans() {
    gate_up_.spoil(c_);  // of expert 0
    Values x = x_.values();
    x.front() = std::numeric_limits<double>::infinity();
    x.back() = kNaN;
    x_.set(x);
    run();
  }

  Array call() const {
    Array y(check_.kernel().device(), c_.dtype, {c_.tokens, c_.width}, c_.gap);
    const auto run = [&](const auto& op, const auto& arguments) {
      kiln::OwnedWorkspace workspace(check_.kernel().device());
      op.run(arguments, workspace.reserve(op.workspace_bytes(arguments)));
    };
    if (c_.float8) {
      run(check_.kernel().op<ops::ForwardFloat8>(),
          ops::ForwardFloat8{.x = x_.tensor(),
                             .experts = experts_.tensor(),
                             .weights = factors_.tensor(),
                             .gate_up = gate_up_.tensor(true),
                             .gate_up_scales = gate_up_.scales(),
                             .down = down_.tensor(true),
                             .down_scales = down_.scales(),
                             .y = y.tensor()});
    } else {
      run(check_.kernel().op<ops::Forward>(), ops::Forward{.x = x_.tensor(),
                                                           .experts = experts_.tensor(),
                                                           .weights = factors_.tensor(),
                                                           .gate_up = gate_up_.tensor(false),
                                                           .down = down_.tensor(false),
                                                           .y = y.tensor()});
    }
    return y;
  }

 private:
  std::int64_t expert_of(std::int64_t slot) {
    const auto any = static_cast<std::int64_t>(engine_());
    switch (c_.router) {
      case Router::kOne:
        return c_.experts - 1;
      case Router::kFew:  // a token's choices may be one expert twice
        return any % 2 == 0 ? 1 : any / 2 % c_.experts;
      case Router::kStrangers:
        return any % 3 == 0 ? (any % 2 == 0 ? -1 : c_.experts + any / 6 % 5) : any % c_.experts;
      default:
        return (slot * 7 + any % 3) % c_.experts;
    }
  }

  void compare(const Array& y) {
    const auto width = static_cast<std::size_t>(c_.width);
    const auto hidden = static_cast<std::size_t>(c_.hidden);
    const Values x = x_.values(), factors = factors_.values(), chosen = experts_.values();
    const bool float16 = c_.dtype == DType::kFloat16;
    const double bound = c_.float8 ? 1.5e-2 : float16 ? 1e-3 : 8e-3;
    Values expected(y.size()), terms(y.size());
    for (std::size_t slot = 0; slot < chosen.size(); ++slot) {
      if (chosen[slot] < 0 || chosen[slot] >= static_cast<double>(c_.experts)) continue;
      const auto expert = static_cast<std::size_t>(chosen[slot]);
      const std::size_t token = slot / static_cast<std::size_t>(c_.top);
      Values row(&x[token * width], &x[token * width] + width);
      if (c_.float8) round_row(row);
      const double* const gate = gate_up_.values().data() + expert * 2 * hidden * width;
      const double* const down = down_.values().data() + expert * width * hidden;
      Values h(hidden), errors(hidden);
      for (std::size_t j = 0; j < hidden; ++j) {
        double of_gate = 0, of_up = 0, size_of_gate = 0, size_of_up = 0;
        for (std::size_t k = 0; k < width; ++k) {
          const double a = row[k] * gate[j * width + k],
                       b = row[k] * gate[(hidden + j) * width + k];
          of_gate += a, size_of_gate += std::abs(a);
          of_up += b, size_of_up += std::abs(b);
        }
        const double active = of_gate / (1 + std::exp(-of_gate));
        h[j] = active * of_up;
        errors[j] =
            kShortSums * (1.1 * size_of_gate * std::abs(of_up) + std::abs(active) * size_of_up);
      }
      if (c_.float8) round_row(h, errors);
      for (std::size_t n = 0; n < width; ++n) {
        double sum = 0, size = 0;
        for (std::size_t j = 0; j < hidden; ++j) {
          sum += h[j] * down[n * hidden + j];
          size += std::abs(h[j] * down[n * hidden + j]);
          if (c_.float8) size += errors[j] * std::abs(down[n * hidden + j]) / bound;
        }
        expected[token * width + n] += factors[slot] * sum;
        terms[token * width + n] += factors[slot] * size;
      }
    }
    for (double& size : terms) size = std::max(size, 1e-30);
    check_.compare(std::string(c_.float8 ? "forward_float8" : "forward") +
                       (float16 ? " float16" : " bfloat16"),
                   y, expected, bound, terms);
  }

  Check& check_;
  Case c_;
  std::mt19937 engine_;
  Array x_, experts_, factors_;
  Weights gate_up_, down_;
};

void check_refusals(Check& check) {
  const kiln::Device device = check.kernel().device();
  const Array memory(device, DType::kBFloat16, {4, 64}),
      weights(device, DType::kBFloat16, {2, 48, 64});
  const Array down(device, DType::kBFloat16, {2, 64, 32}), factors(device, DType::kFloat32, {4, 1});
  Array experts(device, DType::kInt32, {4, 1});
  experts.set(Values{0, 1, 0, 1});
  const auto op = check.kernel().op<ops::Forward>();
  kiln::OwnedWorkspace workspace(device);
  const auto run = [&](const Array& y) {
    const ops::Forward call{.x = memory.tensor(),
                            .experts = experts.tensor(),
                            .weights = factors.tensor(),
                            .gate_up = weights.tensor(),
                            .down = down.tensor(),
                            .y = y.tensor()};
    op.run(call, workspace.reserve(op.workspace_bytes(call)));
  };
  const Array y(device, DType::kBFloat16, {4, 64});
  check.refused("expected gate_up of 2 H rows", [&] { run(y); });
  check.refused("y overlaps x", [&] { run(memory); });
  const Case c{DType::kBFloat16, true, 4, 64, 32, 2, 1};
  std::mt19937 engine(1);
  const Weights gate_up8(device, c, c.hidden, c.width, 2, engine);
  const Weights down8(device, c, c.width, c.hidden, 1, engine);
  check.refused("WB = 2 ceil(H / 128)", [&] {
    const auto op8 = check.kernel().op<ops::ForwardFloat8>();
    const ops::ForwardFloat8 call{.x = memory.tensor(),
                                  .experts = experts.tensor(),
                                  .weights = factors.tensor(),
                                  .gate_up = gate_up8.tensor(true),
                                  .gate_up_scales = down8.scales(),
                                  .down = down8.tensor(true),
                                  .down_scales = down8.scales(),
                                  .y = y.tensor()};
    op8.run(call, workspace.reserve(op8.workspace_bytes(call)));
  });
}

void check_all(Check& check, DType dtype, bool float8, bool light) {
  for (const auto& [width, hidden] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {64, 32}, {128, 128}, {200, 136}, {37, 51}, {256, 384}}) {
    for (const std::int64_t tokens : {0, 1, 2, 7, 33, 300, 1100}) {
      if (tokens > 33 && (light || (width > 128 && tokens * width > 300000))) continue;
      for (const Router router : {Router::kEven, Router::kOne, Router::kFew, Router::kStrangers}) {
        const bool odd = router == Router::kFew;
        Moe(check, {dtype, float8, tokens, width, hidden, odd ? 5 : 8, odd ? 3 : 2, router,
                    odd ? DType::kInt64 : DType::kInt32, odd ? 8 : 0})
            .run();
      }
    }
  }
  Moe(check, {dtype, float8, 5, 64, 32, 1, 1}).run();
  Moe(check, {dtype, float8, 5, 64, 32, 3, 0}).run();
  Moe(check, {dtype, float8, 40, 64, 32, 0, 2, Router::kOne}).run();  // each choice is -1
  Moe(check, {dtype, float8, 9, 0, 32, 3, 2}).run();
  Moe(check, {dtype, float8, 9, 64, 0, 3, 2}).run();
  Moe(check, {dtype, float8, 20, 64, 48, 4, 1}).run_with_nans();
}

/// Products of FP8: on a CPU, and on GPUs that variants of their own are for.
bool has_float8(const Check& check) {
  const std::string variant(check.kernel().variant());
  return check.kernel().device().kind == kiln::Device::Kind::kCpu ||
         variant.find("sm_89") != variant.npos || variant.find("sm_90") != variant.npos;
}

}  // namespace

int main(int argc, char** argv) {
  return kiln::testing::run_check(
      argc, argv, ops::kPackage, ops::kVersion, [](Check& check, bool light) {
        check_all(check, DType::kBFloat16, false, light);
        check_all(check, DType::kFloat16, false, light);
        if (has_float8(check)) {
          check_all(check, DType::kBFloat16, true, light);
        } else {
          check.refused("and a GPU of compute capability 8.9 or 9.0", [&] {
            Moe(check, {DType::kBFloat16, true, 5, 64, 32, 3, 2}).call();
          });
        }
        check_refusals(check);
      });
}
