// SPDX-License-Identifier: Apache-2.0
//
// sampling_check: tokens against double precision on each device: three dtypes, both kinds of
// tokens, up to a vocabulary of 131,075, with each limit alone and together, ties, rows that lie
// apart, rows that nothing can be drawn of; that a row's token depends on that row alone; and by a
// chi-square test that tokens have their probabilities. The command line is that of
// kiln::testing::run_check.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <kiln/kiln.hpp>
#include <kiln/ops/sampling.hpp>
#include <kiln/testing.hpp>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

namespace ops = kiln::ops::sampling;
using kiln::DType;
using kiln::testing::Array;
using kiln::testing::Check;
using Values = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNear = 1e-5;  // of a sum in fp32, next to a limit

struct Limits {
  double temperature = 1;
  double top_k = 0;
  double top_p = 1;
  double min_p = 0;
};

/// Philox4x32-10 of the counter (position, 0), whose first two words are 53 bits in [0, 1).
double uniform(std::uint64_t seed, std::uint64_t position) {
  std::uint32_t c[4] = {static_cast<std::uint32_t>(position),
                        static_cast<std::uint32_t>(position >> 32), 0, 0};
  std::uint32_t key[2] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round, key[0] += 0x9E3779B9U, key[1] += 0xBB67AE85U) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * c[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * c[2];
    const std::uint32_t next[4] = {
        static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<std::uint32_t>(a)};
    std::copy_n(next, 4, c);
  }
  return static_cast<double>((std::uint64_t{c[0]} << 32 | c[1]) >> 11) * 0x1p-53;
}

/// The masses of one row's tokens; 0 of those that the limits take away.
class Masses {
 public:
  Masses(const double* z, std::size_t count, const Limits& limits) : masses_(count) {
    const double greatest = *std::max_element(z, z + count);
    Values ordered;
    for (std::size_t v = 0; v < count; ++v) {
      if (z[v] > -kInfinity) ordered.push_back(z[v]);
    }
    std::sort(ordered.rbegin(), ordered.rend());
    const auto mass = [&](double value) {
      return std::exp((value - greatest) / limits.temperature);
    };
    double least = ordered.back();
    if (limits.top_k > 0 && limits.top_k < static_cast<double>(ordered.size())) {
      least = ordered[static_cast<std::size_t>(limits.top_k) - 1];
    }
    if (limits.top_p < 1) {
      double all = 0;
      double sum = 0;
      for (const double value : ordered) all += value >= least ? mass(value) : 0;
      for (auto value = ordered.begin(); value != ordered.end(); ++value) {
        if (value != ordered.begin() && sum >= limits.top_p * all) break;
        sum += mass(*value);
        least = *value;
      }
    }
    for (std::size_t v = 0; v < count; ++v) {
      const bool stays =
          z[v] > -kInfinity && z[v] >= least && mass(z[v]) >= std::min(limits.min_p, 1.0);
      masses_[v] = stays ? mass(z[v]) : 0;
      total_ += masses_[v];
    }
  }

  const Values& values() const { return masses_; }
  double total() const { return total_; }

  double token(double share) const {
    double sum = 0;
    double token = -1;
    for (std::size_t v = 0; v < masses_.size() && sum <= share * total_; ++v) {
      sum += masses_[v];
      if (masses_[v] > 0) token = static_cast<double>(v);
    }
    return token;
  }

  /// Whether sums that are off by a little would give this token.
  bool is_near(double token, double share) const {
    if (token < 0 || token >= static_cast<double>(masses_.size())) return false;
    const auto at = static_cast<std::ptrdiff_t>(token);
    double before = 0;
    for (auto v = masses_.begin(); v != masses_.begin() + at; ++v) before += *v;
    const double own = masses_[static_cast<std::size_t>(at)];
    const double target = share * total_;
    return own > 0 && before <= target + kNear * total_ && before + own >= target - kNear * total_;
  }

 private:
  Values masses_;
  double total_ = 0;
};

/// The token; `found`, where a limit or the draw is so near that fp32 may decide otherwise.
double expected_of(const double* z, std::size_t count, const Limits& limits, double share,
                   double found) {
  double greatest = -kInfinity;
  for (std::size_t v = 0; v < count; ++v) {
    if (std::isnan(z[v]) || z[v] == kInfinity) return -1;
    greatest = std::max(greatest, z[v]);
  }
  if (greatest == -kInfinity) return -1;
  if (limits.temperature <= 0) {
    return static_cast<double>(std::find(z, z + count, greatest) - z);
  }
  const double exact = Masses(z, count, limits).token(share);
  if (exact == found) return found;
  for (const double p : {-kNear, 0.0, kNear}) {
    for (const double m : {-kNear, 0.0, kNear}) {
      Limits near = limits;
      if (limits.top_p < 1) near.top_p += p;
      near.min_p *= 1 + m;
      if (Masses(z, count, near).is_near(found, share)) return found;
    }
  }
  return exact;
}

/// A call's tensors.
class Call {
 public:
  Call(Check& check, DType dtype, DType index, std::int64_t rows, std::int64_t columns,
       std::int64_t gap = 0)
      : check_(check),
        rows_(static_cast<std::size_t>(rows)),
        columns_(static_cast<std::size_t>(columns)),
        logits(device(), dtype, {rows, columns}, gap),
        seeds(device(), DType::kInt64, {rows}),
        positions(device(), DType::kInt64, {rows}),
        tokens(device(), index, {rows}),
        temperature_(device(), DType::kFloat32, {rows}),
        top_k_(device(), DType::kInt32, {rows}),
        top_p_(device(), DType::kFloat32, {rows}),
        min_p_(device(), DType::kFloat32, {rows}) {}

  void limit(const std::vector<Limits>& limits) {
    const auto each = [&](double Limits::*member) {
      Values values(rows_);
      for (std::size_t m = 0; m < rows_; ++m) values[m] = limits[m % limits.size()].*member;
      return values;
    };
    temperature_.set(each(&Limits::temperature));
    top_k_.set(each(&Limits::top_k));
    top_p_.set(each(&Limits::top_p));
    min_p_.set(each(&Limits::min_p));
  }

  Limits limits(std::size_t m) const {
    return {temperature_.values()[m], top_k_.values()[m], top_p_.values()[m], min_p_.values()[m]};
  }

  void run() {
    const ops::Sample call{.logits = logits.tensor(),
                           .temperature = temperature_.tensor(),
                           .top_k = top_k_.tensor(),
                           .top_p = top_p_.tensor(),
                           .min_p = min_p_.tensor(),
                           .seeds = seeds.tensor(),
                           .positions = positions.tensor(),
                           .tokens = tokens.tensor()};
    const auto op = check_.kernel().op<ops::Sample>();
    kiln::OwnedWorkspace workspace(device());
    op.run(call, workspace.reserve(op.workspace_bytes(call)));
  }

  /// Each row's token, and that the guards hold.
  void compare(const std::string& name) {
    const Values z = logits.values();
    const Values found = tokens.values();
    const Values seed = seeds.values();
    const Values position = positions.values();
    const Values temperature = temperature_.values(), top_k = top_k_.values(),
                 top_p = top_p_.values(), min_p = min_p_.values();
    Values expected(rows_);
    for (std::size_t m = 0; m < rows_; ++m) {
      const double share =
          uniform(static_cast<std::uint64_t>(seed[m]), static_cast<std::uint64_t>(position[m]));
      expected[m] = expected_of(z.data() + m * columns_, columns_,
                                {temperature[m], top_k[m], top_p[m], min_p[m]}, share, found[m]);
    }
    check_.compare(name, tokens, expected, 0);
  }

 private:
  kiln::Device device() const { return check_.kernel().device(); }

  Check& check_;
  std::size_t rows_, columns_;

 public:
  Array logits, seeds, positions, tokens;

 private:
  Array temperature_, top_k_, top_p_, min_p_;
};

const std::vector<Limits> kLimits = {
    {.temperature = 1},
    {.temperature = 0.7F, .top_k = 1},
    {.temperature = 0},
    {.temperature = 1.5, .top_k = 40},
    {.temperature = 1, .top_p = 0.9F},
    {.temperature = 0.8F, .min_p = 0.05F},
    {.temperature = 1, .top_k = 20, .top_p = 0.5, .min_p = 0.01F},
    {.temperature = 2, .top_p = 0},
    {.temperature = 1e-20F},
    {.temperature = 1, .top_k = 5, .min_p = 2},
    {.temperature = 100, .top_k = 1000, .top_p = 0.99F},
    {.temperature = 0.01F, .top_k = 50},
    {.temperature = 1, .top_k = 3000},
    {.temperature = 5, .top_k = 20000, .top_p = 0.8F},
    {.temperature = 3, .top_p = 0.6F},
    {.temperature = 1, .top_p = 0.9999F},
};

void check_tokens(Check& check, DType dtype, std::int64_t columns) {
  const std::int64_t rows = static_cast<std::int64_t>(kLimits.size()) + 6;
  const bool odd = columns % 2 == 1;
  Call call(check, dtype, odd ? DType::kInt64 : DType::kInt32, rows, columns, odd ? 3 : 0);
  std::mt19937_64 engine(static_cast<unsigned>(columns));
  std::normal_distribution<double> normal(1, 4);
  Values logits(call.logits.size());
  Values seeds(call.seeds.size());
  Values positions(call.positions.size());
  for (double& value : logits)
    value = columns % 4 == 0 ? std::round(normal(engine)) : normal(engine);
  for (double& value : seeds) value = static_cast<double>(engine() >> 11);
  for (double& value : positions) value = static_cast<double>(engine() >> 20);
  const auto row = [&](std::size_t m) {
    return logits.data() + m * static_cast<std::size_t>(columns);
  };
  if (columns > 1) {
    const std::size_t first = kLimits.size();
    row(first)[columns - 1] = std::nan("");
    row(first + 1)[0] = kInfinity;
    std::fill_n(row(first + 2), columns, -kInfinity);
    std::fill_n(row(first + 3), columns - 1, -kInfinity);  // one is left
    std::fill_n(row(first + 4), columns, 0.0);             // all alike
    row(first + 5)[1] = 60;                                // nothing beside it
  }
  call.logits.set(logits);
  call.seeds.set(seeds);
  call.positions.set(positions);
  call.limit(kLimits);
  call.run();
  const std::string name = dtype == DType::kFloat32   ? "float32"
                           : dtype == DType::kFloat16 ? "float16"
                                                      : "bfloat16";
  call.compare(name);
  // Each row alone, and again.
  const Values batch = call.tokens.values();
  const Values rounded = call.logits.values();
  Values alone(batch.size());
  for (std::size_t m = 0; m < batch.size(); ++m) {
    Call one(check, dtype, DType::kInt64, 1, columns);
    one.logits.set({rounded.data() + m * static_cast<std::size_t>(columns),
                    static_cast<std::size_t>(columns)});
    one.seeds.set({&seeds[m], 1});
    one.positions.set({&positions[m], 1});
    one.limit({call.limits(m)});
    one.run();
    alone[m] = one.tokens.values()[0];
  }
  check.compare("alone " + name, call.tokens, alone, 0);
}

/// The statistic is at most what it exceeds once in a million times. `by_seed`: the rows' seeds
/// differ, else their positions.
void check_distribution(Check& check, const Limits& limits, bool by_seed) {
  constexpr std::int64_t kColumns = 50;
  constexpr std::size_t kRows = 4096;
  constexpr int kCalls = 16;
  Call call(check, DType::kFloat32, DType::kInt64, kRows, kColumns);
  std::mt19937 engine(5);
  std::normal_distribution<double> normal(0, 1.5);
  Values row(kColumns);
  for (double& value : row) value = normal(engine);
  Values logits;
  for (std::size_t m = 0; m < kRows; ++m) logits.insert(logits.end(), row.begin(), row.end());
  call.logits.set(logits);
  call.limit({limits});
  const Values exact = call.logits.values();
  const Masses masses(exact.data(), kColumns, call.limits(0));
  Values counts(kColumns);
  for (int number = 0; number < kCalls; ++number) {
    Values varied(kRows), fixed(kRows, 42.0 + number);
    for (std::size_t m = 0; m < kRows; ++m) varied[m] = static_cast<double>(m);
    call.seeds.set(by_seed ? varied : fixed);
    call.positions.set(by_seed ? fixed : varied);
    call.run();
    for (const double token : call.tokens.values()) {
      if (token >= 0 && token < kColumns) ++counts[static_cast<std::size_t>(token)];
    }
  }
  double statistic = 0;
  double freedom = -1;
  for (std::size_t v = 0; v < kColumns; ++v) {
    const double wanted = kRows * kCalls * masses.values()[v] / masses.total();
    if (wanted == 0) {
      statistic += counts[v] > 0 ? kInfinity : 0;
      continue;
    }
    statistic += (counts[v] - wanted) * (counts[v] - wanted) / wanted;
    ++freedom;
  }
  const double step = 2 / (9 * freedom);  // Wilson and Hilferty's approximation
  const double most = freedom * std::pow(1 - step + 4.75 * std::sqrt(step), 3);
  Array part(check.kernel().device(), DType::kFloat32, {1});
  part.set(Values{statistic / most});
  check.compare("chi-square", part, Values{0}, 1, Values{1});
}

}  // namespace

int main(int argc, char** argv) {
  return kiln::testing::run_check(
      argc, argv, ops::kPackage, ops::kVersion, [](Check& check, bool light) {
        for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
          for (const std::int64_t columns : {1, 7, 100, 1003, 4096, 32001, 131076}) {
            if (!light || columns < 4096) check_tokens(check, dtype, columns);
          }
        }
        for (const bool by_seed : {false, true}) {
          check_distribution(check, {.temperature = 1}, by_seed);
          check_distribution(check, {.temperature = 0.7, .top_k = 20, .top_p = 0.95}, by_seed);
          check_distribution(check, {.temperature = 1.3, .min_p = 0.02}, by_seed);
        }
      });
}
