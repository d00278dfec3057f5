// SPDX-License-Identifier: Apache-2.0
//
// cross_entropy_check: all ops against double precision on each device: three dtypes, both kinds of
// targets, sizes up to a vocabulary of 131,075, smoothing, z-loss, in place, rows that lie apart,
// rows that are ignored, without their target, infinite and NaN; and what is refused. The command
// line is that of kiln::testing::run_check.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <kiln/kiln.hpp>
#include <kiln/ops/cross_entropy.hpp>
#include <kiln/testing.hpp>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

namespace ops = kiln::ops::cross_entropy;
using kiln::DType;
using kiln::testing::Array;
using kiln::testing::Check;
using Values = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kIgnored = -1;
constexpr double kFloat32Bound = 1e-6;  // of what is float32 in each dtype

double bound_of(DType dtype) {
  return dtype == DType::kFloat32 ? kFloat32Bound : dtype == DType::kFloat16 ? 5e-4 : 4e-3;
}

std::string name_of(const std::string& what, DType dtype) {
  return what + (dtype == DType::kFloat32   ? " float32"
                 : dtype == DType::kFloat16 ? " float16"
                                            : " bfloat16");
}

struct Case {
  DType dtype, index;
  std::int64_t rows, columns;
  double smoothing, z_loss;
  bool in_place;
};

/// Values, and the magnitude of the terms that each is made of.
struct Expected {
  explicit Expected(std::size_t size) : values(size), terms(size) {}
  Values values, terms;
};

class CrossEntropy {
 public:
  CrossEntropy(Check& check, const Case& c)
      : check_(check),
        c_(c),
        logits_(matrix()),
        targets_(check.kernel().device(), c.index, {c.rows}),
        weights_(check.kernel().device(), DType::kFloat32, {c.rows}) {
    std::mt19937 engine(static_cast<unsigned>(c.rows * 1000 + c.columns));
    std::normal_distribution<double> normal(2, 4);
    std::uniform_int_distribution<std::int64_t> any(0, std::max<std::int64_t>(c.columns - 1, 0));
    Values logits(logits_.size());
    Values targets(targets_.size());
    Values weights(weights_.size());
    for (double& value : logits) value = normal(engine);
    for (double& value : targets) value = static_cast<double>(any(engine));
    for (double& value : weights) value = normal(engine);
    spoil(logits, targets);
    logits_.set(logits);
    targets_.set(targets);
    weights_.set(weights);
  }

  void run() {
    const auto columns = static_cast<std::size_t>(c_.columns);
    const Values logits = logits_.values();
    const Values targets = targets_.values();
    const Values weights = weights_.values();
    Expected loss(targets.size()), lse(targets.size()), grad(logits.size());
    for (std::size_t m = 0; m < targets.size(); ++m) {
      expect_row(&logits[m * columns], targets[m], weights[m], m, loss, lse, grad);
    }
    const auto attributes = [&] {
      return ops::ForwardAttributes{
          .ignore_index = kIgnored, .label_smoothing = c_.smoothing, .z_loss = c_.z_loss};
    };
    const kiln::Kernel& kernel = check_.kernel();
    Array own_loss = vector(), own_lse = vector(), fused_loss = vector();
    kernel.op<ops::Forward>().run({.logits = logits_.tensor(),
                                   .targets = targets_.tensor(),
                                   .loss = own_loss.tensor(),
                                   .lse = own_lse.tensor(),
                                   .attributes = attributes()});
    Array grad_apart = matrix(), fused_grad = matrix();
    kernel.op<ops::Backward>().run({.logits = logits_.tensor(),
                                    .targets = targets_.tensor(),
                                    .lse = own_lse.tensor(),
                                    .grad_loss = weights_.tensor(),
                                    .grad_logits = grad_apart.tensor(),
                                    .attributes = attributes()});
    Array& place = c_.in_place ? logits_ : fused_grad;
    kernel.op<ops::ForwardBackward>().run({.logits = logits_.tensor(),
                                           .targets = targets_.tensor(),
                                           .grad_loss = weights_.tensor(),
                                           .loss = fused_loss.tensor(),
                                           .grad_logits = place.tensor(),
                                           .attributes = attributes()});
    compare("lse", own_lse, lse, kFloat32Bound);
    compare("loss", own_loss, loss, kFloat32Bound);
    compare("loss", fused_loss, loss, kFloat32Bound);
    compare("gradient", grad_apart, grad, bound_of(c_.dtype));
    compare("gradient", place, grad, bound_of(c_.dtype));
  }

 private:
  Array matrix() const {
    return Array(check_.kernel().device(), c_.dtype, {c_.rows, c_.columns}, c_.in_place ? 0 : 3);
  }
  Array vector() const { return Array(check_.kernel().device(), DType::kFloat32, {c_.rows}); }

  /// Rows 3 to 8 of 9 or more are special.
  void spoil(Values& logits, Values& targets) const {
    if (c_.rows < 9 || c_.columns < 2) return;
    const auto at = [&](std::int64_t row) -> double& {
      return logits[static_cast<std::size_t>(row * c_.columns)];
    };
    targets[3] = static_cast<double>(kIgnored);
    targets[4] = static_cast<double>(c_.columns);
    targets[5] = targets[6] = targets[7] = targets[8] = 1;
    at(3) = kNaN;
    at(5) = -kInfinity;
    at(6) = kInfinity;
    at(7) = kNaN;
    for (std::int64_t v = 0; v < c_.columns; ++v) (&at(8))[v] = 60;  // all alike
  }

  void expect_row(const double* z, double target, double weight, std::size_t m, Expected& loss,
                  Expected& lse, Expected& grad) const {
    const auto columns = static_cast<std::size_t>(c_.columns);
    const auto count = static_cast<double>(columns);
    const double s = c_.smoothing;
    const bool ignored = target == static_cast<double>(kIgnored);
    const bool known = target >= 0 && target < count;
    double greatest = -kInfinity, sum = 0, total = 0, size = 0;
    for (std::size_t v = 0; v < columns; ++v) greatest = std::max(greatest, z[v]);
    for (std::size_t v = 0; v < columns; ++v) {
      sum += std::exp(z[v] - greatest);
      total += z[v];
      size += std::abs(z[v]);
    }
    const double found = columns == 0 ? -kInfinity : greatest + std::log(sum);
    lse.values[m] = found;
    lse.terms[m] = std::abs(greatest) + std::abs(std::log(sum)) + 1;
    const double of_target = known ? z[static_cast<std::size_t>(target)] : kNaN;
    const double smooth = s > 0 ? s * (found - total / count) : 0;
    loss.values[m] =
        ignored ? 0 : (1 - s) * (found - of_target) + smooth + c_.z_loss * found * found;
    loss.terms[m] = lse.terms[m] * (1 + 2 * c_.z_loss * std::abs(found)) + std::abs(of_target) +
                    (s > 0 ? s * size / count : 0);
    for (std::size_t v = 0; v < columns; ++v) {
      const double share = std::exp(z[v] - found) * (1 + 2 * c_.z_loss * found);
      const double hit = static_cast<double>(v) == target ? 1 - s : 0;
      const double value = weight * (share - s / count - hit);
      // The difference z - lse is rounded, which tells in its exponential by so much.
      const double steep = 1 + (std::isfinite(z[v]) ? std::abs(z[v]) : 0) + lse.terms[m];
      grad.values[m * columns + v] = ignored ? 0 : known ? value : kNaN;
      grad.terms[m * columns + v] = std::abs(weight) * (std::abs(share) * steep + s / count + hit);
    }
  }

  void compare(const std::string& what, const Array& found, const Expected& expected,
               double bound) {
    check_.compare(name_of(what, c_.dtype), found, expected.values, bound, expected.terms);
  }

  Check& check_;
  Case c_;
  Array logits_, targets_, weights_;
};

/// Logits as large as float32 has, which are alike: each has a share of a quarter.
void check_large(Check& check) {
  const kiln::Device device = check.kernel().device();
  for (const double size : {-3.4028234663852886e38, -3.1e38, 1e30}) {
    Array logits(device, DType::kFloat32, {1, 4}), targets(device, DType::kInt64, {1});
    Array ones(device, DType::kFloat32, {1}), loss(device, DType::kFloat32, {1});
    logits.set(Values(4, size));
    targets.set(Values{0});
    ones.set(Values{1});
    const Array grad(device, DType::kFloat32, {1, 4});
    check.kernel().op<ops::ForwardBackward>().run({.logits = logits.tensor(),
                                                   .targets = targets.tensor(),
                                                   .grad_loss = ones.tensor(),
                                                   .loss = loss.tensor(),
                                                   .grad_logits = grad.tensor()});
    check.compare("loss float32", loss, Values{std::log(4.0)}, kFloat32Bound);
    check.compare("gradient float32", grad, Values{-0.75, 0.25, 0.25, 0.25}, kFloat32Bound);
  }
}

void check_refusals(Check& check) {
  const kiln::Device device = check.kernel().device();
  const Array memory(device, DType::kFloat32, {4, 16});
  Array targets(device, DType::kInt64, {4});
  targets.set(Values{0, 1, 2, 3});
  const Array vector(device, DType::kFloat32, {4});
  const auto backward = [&](std::int64_t column) {
    check.kernel().op<ops::Backward>().run({.logits = memory.tensor().columns(0, 8),
                                            .targets = targets.tensor(),
                                            .lse = vector.tensor(),
                                            .grad_loss = vector.tensor(),
                                            .grad_logits = memory.tensor().columns(column, 8)});
  };
  check.refused("backward: grad_logits overlaps logits; expected the same place or memory of its",
                [&] { backward(4); });
  backward(8);  // columns of one matrix, side by side
}

}  // namespace

int main(int argc, char** argv) {
  return kiln::testing::run_check(
      argc, argv, ops::kPackage, ops::kVersion, [](Check& check, bool light) {
        for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
          for (const std::int64_t rows : {0, 1, 17}) {
            for (const std::int64_t columns : {0, 1, 7, 1000, 32000, 131075}) {
              if (light && columns > 1000) continue;
              for (const bool in_place : {false, true}) {
                const DType index = in_place ? DType::kInt32 : DType::kInt64;
                CrossEntropy(check, {dtype, index, rows, columns, 0, 0, in_place}).run();
                if (columns > 32000) continue;
                CrossEntropy(check, {dtype, index, rows, columns, 0.1, 1e-2, in_place}).run();
              }
            }
          }
        }
        check_large(check);
        check_refusals(check);
      });
}
