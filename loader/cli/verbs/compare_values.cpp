// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/verbs/compare_values.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>

#include "base/draft.hpp"
#include "kiln/abi.h"

namespace kiln::cli {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 16;  // values at a time

/// The bits of a floating-point format that hold its exponent and fraction.
struct Format {
  std::uint64_t code;
  std::uint64_t bits;
  std::uint64_t infinity;  ///< magnitudes above it are NaN
};
constexpr Format kFormats[] = {{kDLFloat, 64, 0x7ff0000000000000},
                               {kDLFloat, 32, 0x7f800000},
                               {kDLFloat, 16, 0x7c00},
                               {kDLBfloat, 16, 0x7f80}};

std::uint64_t distance(std::int64_t a, std::int64_t b) {
  return a > b ? static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b)
               : static_cast<std::uint64_t>(b) - static_cast<std::uint64_t>(a);
}

std::size_t place_of(std::uint64_t ulps) {
  constexpr std::uint64_t kMost[] = {0, 1, 2, 4, 16};
  return static_cast<std::size_t>(std::ranges::lower_bound(kMost, ulps) - kMost);
}

/// The two's complement of `bits` bits.
std::int64_t integer_of(std::uint64_t value, std::uint64_t bits) {
  const std::uint64_t unused = 64 - bits;
  return static_cast<std::int64_t>(value << unused) >> unused;
}

/// Reads a run's values in their order.
class Values {
 public:
  explicit Values(const FileDescriptor& file) : file_(file) {}

  /// Elements of `bytes` bytes.
  std::vector<std::uint64_t> next(std::size_t count, std::size_t bytes) {
    std::string raw(count * bytes, '\0');
    std::size_t have = 0;
    while (have < raw.size()) {
      const ssize_t got = ::pread(file_.get(), raw.data() + have, raw.size() - have,
                                  static_cast<off_t>(offset_ + have));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) fail_file("read", "the values of a check", got < 0 ? errno : EIO);
      have += static_cast<std::size_t>(got);
    }
    offset_ += raw.size();
    std::vector<std::uint64_t> values(count);
    for (std::size_t i = 0; i < count; ++i) std::memcpy(&values[i], &raw[i * bytes], bytes);
    return values;
  }

  void skip(std::uint64_t bytes) { offset_ += bytes; }

 private:
  const FileDescriptor& file_;
  std::uint64_t offset_ = 0;
};

bool is_known(const CheckOutput& output) {
  return output.bits == 8 || output.bits == 16 || output.bits == 32 || output.bits == 64;
}

void add_case(const CheckOutput& output, Values& before, Values& after, GroupDifference& group) {
  ++group.cases;
  group.values += output.count;
  const std::size_t bytes = output.bits / 8;
  for (std::uint64_t left = output.count; left > 0;) {
    const std::size_t piece = std::min<std::uint64_t>(left, kPiece);
    const std::vector<std::uint64_t> a = before.next(piece, bytes);
    const std::vector<std::uint64_t> b = after.next(piece, bytes);
    for (std::size_t i = 0; i < piece; ++i) {
      ++group.ulps[ulp_place(output.code, output.bits, a[i], b[i])];
    }
    left -= piece;
  }
  before.skip(output.count * sizeof(double));
  after.skip(output.count * sizeof(double));
}

}  // namespace

std::size_t ulp_place(std::uint64_t code, std::uint64_t bits, std::uint64_t before,
                      std::uint64_t after) {
  if (before == after) return 0;
  for (const Format& format : kFormats) {
    if (format.code != code || format.bits != bits) continue;
    const std::uint64_t sign = std::uint64_t{1} << (bits - 1);
    const std::uint64_t a = before & (sign - 1);
    const std::uint64_t b = after & (sign - 1);
    const bool a_is_nan = a > format.infinity;
    const bool b_is_nan = b > format.infinity;
    if (a_is_nan || b_is_nan) return a_is_nan && b_is_nan ? 0 : kUlpWords.size() - 1;
    const auto signed_magnitude = [sign](std::uint64_t value, std::uint64_t magnitude) {
      const auto positive = static_cast<std::int64_t>(magnitude);
      return (value & sign) != 0 ? -positive : positive;
    };
    return place_of(distance(signed_magnitude(before, a), signed_magnitude(after, b)));
  }
  if (code != kDLInt) return place_of(before > after ? before - after : after - before);
  return place_of(distance(integer_of(before, bits), integer_of(after, bits)));
}

std::vector<GroupDifference> compare_values(const CheckRun& before, const CheckRun& after) {
  std::map<std::string, GroupDifference> groups;
  Values a(before.values);
  Values b(after.values);
  const std::size_t cases = std::min(before.outputs.size(), after.outputs.size());
  for (std::size_t i = 0; i < cases; ++i) {
    const CheckOutput& output = before.outputs[i];
    const CheckOutput& other = after.outputs[i];
    const bool same = output.name == other.name && output.code == other.code &&
                      output.bits == other.bits && output.count == other.count;
    if (!same || !is_known(output)) break;
    GroupDifference& group = groups[output.name];
    group.name = output.name;
    add_case(output, a, b, group);
  }
  std::vector<GroupDifference> list;
  for (auto& [key, group] : groups) {
    const std::string& name = key;  // clang 14 captures no structured binding
    const auto error_in = [&](const CheckRun& run) {
      const auto found = run.groups.find(name);
      return found == run.groups.end() ? std::numeric_limits<double>::quiet_NaN()
                                       : found->second.worst;
    };
    group.error_before = error_in(before);
    group.error_after = error_in(after);
    list.push_back(std::move(group));
  }
  return list;
}

}  // namespace kiln::cli
