// SPDX-License-Identifier: Apache-2.0
//
// What the CPU kernels compute with: powers of two.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "cpu/vector.hpp"

namespace gated_mlp::cpu {
namespace {

float number_of(std::uint32_t bits) {
  float number = 0;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

TEST_CASE("exp2 is within 2e-7 of each power, and a NaN stays one") {
  double worst = 0;
  for (int i = -126 * 64; i <= 126 * 64; ++i) {
    const auto x = static_cast<float>(i) / 64 + 1e-3f * static_cast<float>(i % 3);
    if (std::fabs(x) > 126) continue;
    const double power = std::exp2(static_cast<double>(x));
    worst = std::fmax(worst, std::fabs(exp2(broadcast(x))[0] - power) / power);
  }
  CHECK(worst < 2e-7);
  for (const std::uint32_t bits : {0x7fc00000u, 0x7fffffffu, 0xffffffffu, 0x7f812345u}) {
    CAPTURE(bits);
    CHECK(std::isnan(exp2(broadcast(number_of(bits)))[0]));
  }
}

}  // namespace
}  // namespace gated_mlp::cpu
