// SPDX-License-Identifier: Apache-2.0
//
// Float8: how activations become numbers of e4m3 where the call asks for it. A row's 128
// neighbouring columns are a block. Its scale is the least power of two that brings its largest
// finite number down to 448 or below, but not below float8_least's; each number is divided by it
// and rounded to the nearest e4m3, ties to even. What is not finite becomes a NaN. Since the scale
// is a power of two, bfloat16 and float16 hold scale * code exactly, but for what is rounded up to
// beyond their largest number (65536 of float16): kernels of those types multiply the same numbers.
// Host and device compile the same functions.
#pragma once

#include "sources.h"

namespace quantized_mlp {

constexpr int kFloat8Block = 128;

// The exponent of the least scale: the least code times it, 2^-9, is there in the type.
KILN_INDEX int float8_least(bool is_float16) {
  return is_float16 ? -15 : -117;
}

// Of the block whose largest finite magnitude is a float of these bits: 1.75 * 2^8 is 448.
KILN_INDEX int float8_exponent(unsigned largest, int least) {
  const int exponent = static_cast<int>(largest >> 23) - 127 - 8;
  const int next = exponent + ((largest & 0x7fffffu) > 0x600000u ? 1 : 0);
  return next > least ? next : least;
}

// 2^exponent, of a normal float.
KILN_INDEX unsigned power_bits(int exponent) {
  return static_cast<unsigned>(exponent + 127) << 23;
}

KILN_INDEX bool is_finite(unsigned bits) {
  return (bits & 0x7fffffffu) < 0x7f800000u;
}
// Of magnitudes.
KILN_INDEX unsigned larger_finite(unsigned largest, unsigned bits) {
  const unsigned magnitude = bits & 0x7fffffffu;
  return is_finite(bits) && magnitude > largest ? magnitude : largest;
}

// The nearest number of e4m3, of bits of a float up to 464: four bits of mantissa, the hidden one
// too, down to 2^-6, and steps of 2^-9 below.
KILN_INDEX unsigned float8_rounded(unsigned bits) {
  const unsigned magnitude = bits & 0x7fffffffu;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent < -10) return bits & 0x80000000u;
  // Bits that are dropped: 20 of a normal number.
  const int dropped = exponent < -6 ? 20 - 6 - exponent : 20;
  const unsigned whole = (magnitude & 0x7fffffu) | 0x800000u;
  const unsigned half = 1u << (dropped - 1);
  const unsigned steps = (whole + half - 1 + (whole >> dropped & 1u)) >> dropped;
  // steps * 2^(exponent - 23 + dropped), of at most five bits.
  if (steps == 0) return bits & 0x80000000u;
  int top = 0;
  while (steps >> (top + 1) != 0) ++top;
  const unsigned mantissa = (steps << (23 - top)) & 0x7fffffu;
  return (bits & 0x80000000u) | power_bits(exponent - 23 + dropped + top) | mantissa;
}

}  // namespace quantized_mlp
