// SPDX-License-Identifier: Apache-2.0
//
// Activations in FP8 (float8.h) on a CPU: x and h, where they lie, become the numbers that e4m3
// rounds them to, which bfloat16 and float16 hold.
#pragma once

#include <algorithm>
#include <limits>

#include "cpu_lines.hpp"
#include "float8.h"

namespace quantized_mlp::cpu {

inline bool rounds_activations(const kiln::package::ForwardArguments& call) {
  return call.input_dtype == kiln::package::ForwardArguments::InputDtype::kFloat8E4m3fn;
}

template <class T>
inline constexpr bool kIsFloat16 = false;
template <>
inline constexpr bool kIsFloat16<Float16> = true;

// What is as large as it is; and what h is bounded by, where overflow is saturate.
inline constexpr float kUnbounded = std::numeric_limits<float>::infinity();
template <class T>
float most_of_hidden(const gated_mlp::Gating& gating) {
  const bool saturates = gating.greatest == gated_mlp::kLargestFloat16s;
  return kIsFloat16<T> && saturates ? 65504.0f : kUnbounded;
}

// A block of up to 128 values, a multiple of 16, which are bounded by `most`, then rounded to T.
template <class T>
void round_block(float* values, int64_t count, float most) {
  alignas(64) T narrow[kFloat8Block];
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    store(narrow + i, clamp(load(values + i), -most, most));
    store(values + i, load(narrow + i));
    for (int64_t j = i; j < i + kLanes; ++j) {
      largest = larger_finite(largest, bits_as<uint32_t>(values[j]));
    }
  }
  const int exponent = float8_exponent(largest, float8_least(kIsFloat16<T>));
  const float scale = bits_as<float>(power_bits(exponent));
  const float by_scale = bits_as<float>(power_bits(-exponent));
  for (int64_t i = 0; i < count; ++i) {
    values[i] =
        is_finite(bits_as<uint32_t>(values[i]))
            ? bits_as<float>(float8_rounded(bits_as<uint32_t>(values[i] * by_scale))) * scale
            : bits_as<float>(0x7fc00000u);
  }
}

// A row of them, block by block.
template <class T>
void round_row(float* values, int64_t count, float most) {
  for (int64_t i = 0; i < count; i += kFloat8Block) {
    round_block<T>(values + i, std::min<int64_t>(count - i, kFloat8Block), most);
  }
}

#if defined(__AVX512BF16__)
// One token of x or h as pairs of bfloat16: where the first pair is, and how far, in values, it is
// to the next pair, operand of 32 columns, and the part that bfloat16 leaves out.
struct PairsOfToken {
  Bfloat16* first;
  int64_t to_pair;
  int64_t to_operand;
  int64_t to_rest;
};

template <class T>
void round_pairs(const PairsOfToken& token, int64_t operands, float most) {
  constexpr int64_t kOperands = kFloat8Block / 32;
  const auto value = [](Bfloat16 from) { return bits_as<float>(uint32_t{from.bits} << 16); };
  for (int64_t from = 0; from < operands; from += kOperands) {
    alignas(64) float values[kFloat8Block];
    const int64_t count = std::min(operands - from, kOperands) * 32;
    const auto place = [&](int64_t i) {
      return token.first + (from + i / 32) * token.to_operand + i % 32 / 2 * token.to_pair + i % 2;
    };
    for (int64_t i = 0; i < count; ++i) {
      values[i] = value(*place(i));
      if (kIsFloat16<T>) values[i] += value(place(i)[token.to_rest]);
    }
    round_block<T>(values, count, most);
    for (int64_t i = 0; i < count; ++i) {
      place(i)->bits = static_cast<uint16_t>(bits_as<uint32_t>(values[i]) >> 16);
      if (kIsFloat16<T>) place(i)[token.to_rest].bits = 0;
    }
  }
}
#endif

}  // namespace quantized_mlp::cpu
