// SPDX-License-Identifier: Apache-2.0
//
// Float16: a float as the 16 bits that a tensor of DType::kFloat16 or kBFloat16 holds, and back.
// For data that the host prepares or looks at: one value a call, exact, independent of the rounding
// mode. Pure.
#pragma once

#include "kiln/compiler.hpp"

#include <bit>
#include <cstdint>

namespace kiln {

namespace float16_internal {

inline constexpr std::uint32_t kInfinity = 0x7f800000;  // a float's bits without the sign

/// value / 2^shift to nearest, ties to even; shift from 1 to 24.
constexpr std::uint32_t shift_to_even(std::uint32_t value, std::uint32_t shift) {
  const std::uint32_t below_half = (std::uint32_t{1} << (shift - 1)) - 1;
  return (value + below_half + (value >> shift & 1)) >> shift;
}

}  // namespace float16_internal

/// To nearest, ties to even. What rounds beyond the greatest finite value becomes infinity; a NaN
/// stays a NaN of its sign, and becomes quiet.
constexpr std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t size = bits & 0x7fffffff;
  if (size > float16_internal::kInfinity) {
    return static_cast<std::uint16_t>(sign | size >> 16 | 0x0040);
  }
  return static_cast<std::uint16_t>(sign | float16_internal::shift_to_even(size, 16));
}

/// Exact.
constexpr float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

/// To nearest, ties to even, subnormal numbers included. What rounds beyond 65504 becomes infinity;
/// a NaN stays a NaN of its sign, and becomes quiet.
constexpr std::uint16_t to_float16(float value) {
  constexpr std::uint32_t kOverflow = 0x47800000;     // 2^16; from 65520 on, rounding carries there
  constexpr std::uint32_t kLeastNormal = 0x38800000;  // 2^-14
  constexpr std::uint32_t kBias = 112;                // a float's exponents are biased by 112 more
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t size = bits & 0x7fffffff;
  std::uint32_t half = 0;
  if (size > float16_internal::kInfinity) {
    half = 0x7e00 | (size >> 13 & 0x1ff);
  } else if (size >= kOverflow) {
    half = 0x7c00;
  } else if (size >= kLeastNormal) {
    half = float16_internal::shift_to_even(size - (kBias << 23), 13);
  } else if (const std::uint32_t shift = 126 - (size >> 23); shift <= 24) {
    half = float16_internal::shift_to_even((size & 0x7fffff) | 0x800000, shift);  // units of 2^-24
  }
  return static_cast<std::uint16_t>(sign | half);
}

/// Exact.
constexpr float from_float16(std::uint16_t bits) {
  constexpr std::uint32_t kBias = 112;
  const std::uint32_t sign = std::uint32_t{bits} << 16 & 0x80000000;
  const std::uint32_t exponent = bits >> 10 & 0x1f;
  const std::uint32_t mantissa = bits & 0x3ff;
  std::uint32_t size = mantissa << 13;
  if (exponent == 0x1f) {
    size |= float16_internal::kInfinity;
  } else if (exponent != 0) {
    size |= (exponent + kBias) << 23;
  } else {
    size = std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24F);
  }
  return std::bit_cast<float>(sign | size);
}

}  // namespace kiln
