// SPDX-License-Identifier: Apache-2.0
#include "kiln/float16.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kiln {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// One of the two formats, as the standard defines it.
struct Format {
  int mantissa_bits;
  int bias;
  std::uint16_t (*to)(float);
  float (*from)(std::uint16_t);

  std::uint16_t infinity() const {
    return static_cast<std::uint16_t>(0x7fff >> mantissa_bits << mantissa_bits);
  }
  std::uint16_t quiet() const { return static_cast<std::uint16_t>(1 << (mantissa_bits - 1)); }

  /// By the definition: (-1)^s 2^(e - bias) 1.m, or 2^(1 - bias) 0.m where e is 0.
  double value(std::uint16_t bits) const {
    const int exponent = (bits & 0x7fff) >> mantissa_bits;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int one = exponent == 0 ? 0 : 1 << mantissa_bits;
    const double size = std::ldexp(mantissa + one, std::max(exponent, 1) - bias - mantissa_bits);
    return (bits & 0x8000) != 0 ? -size : size;
  }
};
constexpr Format kFormats[] = {{10, 15, to_float16, from_float16},
                               {7, 127, to_bfloat16, from_bfloat16}};

static_assert(to_bfloat16(1.0F) == 0x3f80 && from_bfloat16(0x3f80) == 1.0F);
static_assert(to_float16(1.0F) == 0x3c00 && from_float16(0x3c00) == 1.0F);

void check_patterns() {
  for (const Format& format : kFormats) {
    for (std::uint32_t each = 0; each <= 0xffff; ++each) {
      const auto bits = static_cast<std::uint16_t>(each);
      const float value = format.from(bits);
      const int size = bits & 0x7fff;
      bool right = std::signbit(value) == ((bits & 0x8000) != 0);
      if (size > format.infinity()) {
        right = right && std::isnan(value) && format.to(value) == (bits | format.quiet());
      } else if (size == format.infinity()) {
        right = right && std::isinf(value) && format.to(value) == bits;
      } else {
        right = right && value == format.value(bits) && format.to(value) == bits;
      }
      if (!right) FAIL_CHECK("pattern ", each, " with ", format.mantissa_bits, " bits: ", value);
    }
  }
}

TEST_CASE("float16: every pattern has its value, and goes there and back") {
  check_patterns();
}

void check_middles() {
  for (const Format& format : kFormats) {
    for (std::uint32_t each = 0; each < format.infinity(); ++each) {
      const auto low = static_cast<std::uint16_t>(each);
      const auto high = static_cast<std::uint16_t>(each + 1);
      // The greatest finite number's neighbour, to round by, is the power of two after it.
      const double above =
          high == format.infinity()
              ? 2 * format.value(low) - format.value(static_cast<std::uint16_t>(low - 1))
              : format.value(high);
      const auto middle = static_cast<float>((format.value(low) + above) / 2);
      const std::uint16_t even = (low & 1) == 0 ? low : high;
      const bool right = format.to(middle) == even && format.to(-middle) == (even | 0x8000) &&
                         format.to(std::nextafter(middle, 0.0F)) == low &&
                         format.to(std::nextafter(middle, kInfinity)) == high;
      if (!right)
        FAIL_CHECK("after pattern ", each, " with ", format.mantissa_bits, " bits: ", middle);
    }
  }
}

TEST_CASE(
    "float16: between two neighbours the middle goes to the even one, the rest to the nearer") {
  check_middles();
}

void check_edges() {
  struct Edge {
    float value;
    std::uint16_t bfloat16;
    std::uint16_t float16;
  };
  const Edge edges[] = {
      {0.0F, 0x0000, 0x0000},
      {-0.0F, 0x8000, 0x8000},
      {1.0F, 0x3f80, 0x3c00},
      {-2.0F, 0xc000, 0xc000},
      {65504.0F, 0x4780, 0x7bff},    // float16's greatest
      {65519.996F, 0x4780, 0x7bff},  // the last that rounds to it
      {65520.0F, 0x4780, 0x7c00},    // the tie goes to infinity
      {std::numeric_limits<float>::max(), 0x7f80, 0x7c00},
      {0x1.fep127F, 0x7f7f, 0x7c00},  // bfloat16's greatest
      {0x1p-14F, 0x3880, 0x0400},     // float16's least normal number
      {0x1p-24F, 0x3380, 0x0001},     // its least subnormal one
      {0x1p-25F, 0x3300, 0x0000},     // half of it: a tie with 0
      {0x1.000002p-25F, 0x3300, 0x0001},
      {0x1p-126F, 0x0080, 0x0000},  // a float's least normal number
      {0x1p-149F, 0x0000, 0x0000},  // its least subnormal one
      {0x1p-133F, 0x0001, 0x0000},  // bfloat16's
      {kInfinity, 0x7f80, 0x7c00},
      {-kInfinity, 0xff80, 0xfc00},
  };
  for (const Edge& edge : edges) {
    CHECK_MESSAGE(to_bfloat16(edge.value) == edge.bfloat16, edge.value);
    CHECK_MESSAGE(to_float16(edge.value) == edge.float16, edge.value);
  }
  // A NaN whose payload is below what is kept must not become an infinity.
  const auto low_nan = std::bit_cast<float>(std::uint32_t{0xff800001});
  CHECK(to_bfloat16(low_nan) == 0xffc0);
  CHECK(to_float16(low_nan) == 0xfe00);
}

TEST_CASE("float16: the edges") {
  check_edges();
}

TEST_CASE("float16: the rounding mode of the thread changes nothing") {
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    CAPTURE(mode);
    REQUIRE(std::fesetround(mode) == 0);
    check_patterns();
    check_middles();
    check_edges();
  }
  std::fesetround(FE_TONEAREST);
}

}  // namespace
}  // namespace kiln
