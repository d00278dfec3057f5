// SPDX-License-Identifier: Apache-2.0
//
// rotary_embedding_check: both ops against double precision on each device: three dtypes, both
// kinds of positions, both layouts, there and back, whole heads and parts of them, in place, rows
// that lie apart, positions that are not in the tables; and what is refused. The command line is
// that of kiln::testing::run_check.
#include <cmath>
#include <cstdint>
#include <kiln/kiln.hpp>
#include <kiln/ops/rotary_embedding.hpp>
#include <kiln/testing.hpp>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

namespace ops = kiln::ops::rotary_embedding;
using kiln::DType;
using kiln::testing::Array;
using kiln::testing::Check;
using Values = std::vector<double>;

constexpr double kBound = 1e-6;  // of float32

double bound_of(DType dtype) {
  return dtype == DType::kFloat32 ? kBound : dtype == DType::kFloat16 ? 5e-4 : 4e-3;
}

std::string name_of(const std::string& what, DType dtype) {
  return what + (dtype == DType::kFloat32   ? " float32"
                 : dtype == DType::kFloat16 ? " float16"
                                            : " bfloat16");
}

struct Case {
  DType dtype;
  std::int64_t rows, heads, head_dim, half;
  bool interleaved, inverse, in_place;
};

constexpr std::int64_t kPositions = 100;

void check_rotation(Check& check, const Case& c) {
  std::mt19937 engine(static_cast<unsigned>(c.rows * 1000 + c.head_dim));
  std::normal_distribution<double> normal;
  const kiln::Device device = check.kernel().device();
  const auto matrix = [&] {
    return Array(device, c.dtype, {c.rows, c.heads * c.head_dim}, c.in_place ? 0 : 5);
  };
  Array x = matrix(), out = matrix();
  Array positions(device, c.in_place ? DType::kInt32 : DType::kInt64, {c.rows});
  Array cos(device, DType::kFloat32, {kPositions, c.half});
  Array sin(device, DType::kFloat32, {kPositions, c.half});
  Values values(x.size()), places(positions.size()), table(cos.size());
  for (double& value : values) value = normal(engine);
  for (std::size_t n = 0; n < places.size(); ++n) {
    places[n] = static_cast<double>(n * 37 % kPositions);
  }
  if (places.size() > 4) {
    places[2] = -1;
    places[3] = kPositions;
    places[4] = kPositions - 1;
  }
  x.set(values);
  positions.set(places);
  for (Array* each : {&cos, &sin}) {
    for (double& value : table) value = normal(engine);
    each->set(table);
  }
  const Values a = x.values(), cosines = cos.values(), sines = sin.values();
  Values expected = a;
  Values terms(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) terms[i] = std::abs(a[i]);
  for (std::int64_t n = 0; n < c.rows; ++n) {
    const auto position = static_cast<std::int64_t>(places[static_cast<std::size_t>(n)]);
    const bool known = position >= 0 && position < kPositions;
    for (std::int64_t pair = 0; pair < c.heads * c.half; ++pair) {
      const std::int64_t f = pair % c.half;
      const std::int64_t head = (n * c.heads + pair / c.half) * c.head_dim;
      const auto i = static_cast<std::size_t>(head + (c.interleaved ? 2 * f : f));
      const auto j = i + (c.interleaved ? 1 : static_cast<std::size_t>(c.half));
      const auto at = static_cast<std::size_t>(known ? position * c.half + f : 0);
      const double turn_cos = known ? cosines[at] : std::numeric_limits<double>::quiet_NaN();
      const double turn_sin = (c.inverse ? -1 : 1) * sines[at];
      expected[i] = a[i] * turn_cos - a[j] * turn_sin;
      expected[j] = a[j] * turn_cos + a[i] * turn_sin;
      terms[i] = std::abs(a[i] * turn_cos) + std::abs(a[j] * turn_sin);
      terms[j] = std::abs(a[j] * turn_cos) + std::abs(a[i] * turn_sin);
    }
  }
  Array& place = c.in_place ? x : out;
  using Attributes = ops::RotateAttributes;
  check.kernel().op<ops::Rotate>().run(
      {.x = x.tensor(),
       .positions = positions.tensor(),
       .cos = cos.tensor(),
       .sin = sin.tensor(),
       .out = place.tensor(),
       .attributes =
           Attributes{.head_dim = c.head_dim, .interleaved = c.interleaved, .inverse = c.inverse}});
  check.compare(name_of("rotate", c.dtype), place, expected, bound_of(c.dtype), terms);
}

/// Angles up to those of a million tokens.
void check_tables(Check& check, std::int64_t positions, std::int64_t half, double scale) {
  const kiln::Device device = check.kernel().device();
  Array frequencies(device, DType::kFloat64, {half});
  Array cos(device, DType::kFloat32, {positions, half});
  Array sin(device, DType::kFloat32, {positions, half});
  Values values(frequencies.size());
  for (std::size_t f = 0; f < values.size(); ++f) {
    values[f] = std::pow(1e4, -static_cast<double>(f) / static_cast<double>(half));
  }
  frequencies.set(values);
  check.kernel().op<ops::Tables>().run({.frequencies = frequencies.tensor(),
                                        .cos = cos.tensor(),
                                        .sin = sin.tensor(),
                                        .attributes = {.scale = scale}});
  Values cosines(cos.size()), sines(sin.size());
  for (std::size_t i = 0; i < cosines.size(); ++i) {
    const double angle = static_cast<double>(i / values.size()) * values[i % values.size()];
    cosines[i] = scale * std::cos(angle);
    sines[i] = scale * std::sin(angle);
  }
  check.compare("tables", cos, cosines, kBound);
  check.compare("tables", sin, sines, kBound);
}

void check_refusals(Check& check) {
  const kiln::Device device = check.kernel().device();
  const bool gpu = device.kind == kiln::Device::Kind::kCuda;
  const Array memory(device, DType::kFloat32, {4, 32});
  const Array table(device, DType::kFloat32, {9, 4});
  Array positions(device, DType::kInt32, {4});
  positions.set(Values{0, 1, 2, 3});
  const auto rotate = [&](std::int64_t column, std::int64_t head_dim) {
    check.kernel().op<ops::Rotate>().run({.x = memory.tensor().columns(0, 16),
                                          .positions = positions.tensor(),
                                          .cos = table.tensor(),
                                          .sin = table.tensor(),
                                          .out = memory.tensor().columns(column, 16),
                                          .attributes = {.head_dim = head_dim}});
  };
  for (const std::int64_t head_dim : {0, 7, 12, 4}) {
    check.refused(gpu ? "rotate: W is a multiple of head_dim, and F at most half of head_dim"
                  : head_dim == 4
                      ? "rotate: cos has F = 4 columns; expected at most half of head_dim, 4"
                      : "rotate: W is 16; expected a multiple of head_dim",
                  [&] { rotate(16, head_dim); });
  }
  check.refused("rotate: out overlaps x; expected the same place or memory of its own",
                [&] { rotate(8, 8); });
  rotate(16, 8);  // columns of one matrix, side by side
}

}  // namespace

int main(int argc, char** argv) {
  return kiln::testing::run_check(
      argc, argv, ops::kPackage, ops::kVersion, [](Check& check, bool light) {
        struct Head {
          std::int64_t heads, head_dim, half;
        };
        for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
          for (const std::int64_t rows : {0, 1, 40}) {
            for (const Head& h : {Head{1, 2, 1}, Head{3, 20, 5}, Head{5, 64, 32}, Head{9, 80, 16},
                                  Head{17, 128, 64}, Head{2, 256, 128}}) {
              if (light && h.head_dim > 64) continue;
              for (int bits = 0; bits < 8; ++bits) {
                check_rotation(check, {dtype, rows, h.heads, h.head_dim, h.half, (bits & 1) != 0,
                                       (bits & 2) != 0, (bits & 4) != 0});
              }
            }
          }
        }
        check_tables(check, 0, 8, 1);
        check_tables(check, 5, 3, 1.25);
        check_tables(check, light ? 1000 : 1000000, 2, 1);
        check_refusals(check);
      });
}
