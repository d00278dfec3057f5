// SPDX-License-Identifier: Apache-2.0
//
// CompareValues: how far two elements of a dtype are from each other, by their bits.
#include "loader/cli/verbs/compare_values.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>

#include "kiln/abi.h"

namespace kiln::cli {
namespace {

std::string ulps(int code, std::uint64_t bits, std::uint64_t before, std::uint64_t after) {
  const std::string there =
      kUlpWords[ulp_place(static_cast<std::uint64_t>(code), bits, before, after)];
  const std::string back =
      kUlpWords[ulp_place(static_cast<std::uint64_t>(code), bits, after, before)];
  return there == back ? there : there + ", and " + back + " the other way";
}

std::uint64_t single(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

TEST_CASE("compare: distances of floating-point values count the values between them") {
  CHECK(ulps(kDLFloat, 32, single(1.0F), single(1.0F)) == "0");
  CHECK(ulps(kDLFloat, 32, single(1.0F), single(std::nextafter(1.0F, 2.0F))) == "1");
  CHECK(ulps(kDLFloat, 32, single(1.0F), single(1.0F) + 2) == "2");
  CHECK(ulps(kDLFloat, 32, single(1.0F), single(1.0F) + 3) == "3-4");
  CHECK(ulps(kDLFloat, 32, single(1.0F), single(1.0F) + 16) == "5-16");
  CHECK(ulps(kDLFloat, 32, single(1.0F), single(1.0F) + 17) == "more than 16");
  CHECK(ulps(kDLFloat, 32, single(-1.0F), single(1.0F)) == "more than 16");
  CHECK(ulps(kDLFloat, 16, 0x3c00, 0x3c01) == "1");
  CHECK(ulps(kDLBfloat, 16, 0x3f80, 0x3f7f) == "1");
  CHECK(ulps(kDLFloat, 64, 0x3ff0000000000000, 0x3ff0000000000002) == "2");
}

TEST_CASE(
    "compare: zeros are equal, the smallest values stand beside them, infinity above the largest") {
  CHECK(ulps(kDLFloat, 32, single(0.0F), single(-0.0F)) == "0");
  CHECK(ulps(kDLFloat, 32, 0x00000001, 0x80000001) == "2");
  CHECK(ulps(kDLFloat, 16, 0x7bff, 0x7c00) == "1");
}

TEST_CASE("compare: NaN equals NaN of any bits, and nothing else") {
  CHECK(ulps(kDLFloat, 32, 0x7fc00000, 0xffffffff) == "0");
  CHECK(ulps(kDLFloat, 32, 0x7fc00000, single(1.0F)) == "NaN");
  CHECK(ulps(kDLBfloat, 16, 0x7f81, 0x7f80) == "NaN");
}

TEST_CASE("compare: integers differ by their difference") {
  CHECK(ulps(kDLInt, 8, 0xff, 0x01) == "2");
  CHECK(ulps(kDLUInt, 8, 0xff, 0xfd) == "2");
  CHECK(ulps(kDLUInt, 8, 0xff, 0x01) == "more than 16");
  CHECK(ulps(kDLInt, 64, 5, 5) == "0");
  CHECK(ulps(kDLInt, 32, 0, 0xfffffffc) == "3-4");
}

}  // namespace
}  // namespace kiln::cli
