// SPDX-License-Identifier: Apache-2.0
//
// Dot tile: a b^T as dot products, for the CPU's forward. The weights b are read where they are.
// The rows of a are packed, so that a tile reads them as one stream. Where the CPU multiplies pairs
// of bfloat16 (AVX512-BF16) these stay what they are; else all arithmetic is fp32. Pure functions.
//
//   a  [kDotRows packed rows]        a vector of each at a time, along k
//   b  [kDotColumns weight rows]     the same
//   sums: kDotRows x kDotColumns     a vector each in registers; at the end its lanes are added up
#pragma once

#include <stdint.h>
#include <string.h>

#include "cpu/vector.hpp"

namespace gated_mlp::cpu {

inline constexpr int kDotColumns = 4;
#if defined(__AVX512F__)
inline constexpr int kDotRows = 6;  // 24 sums, 6 vectors of rows, 1 of weights: 31 of 32 registers
#elif defined(__AVX2__)
inline constexpr int kDotRows = 3;  // 12, 3 and 1 of 16
#else
inline constexpr int kDotRows = 6;  // 24, 6 and 1 of 32
#endif

// How weights of T are multiplied, a vector at a time, and what with.
template <class T>
struct Dot {
  using Packed = float;
  using Vector = Floats;
  static constexpr bool kPairs = false;
  static constexpr int kStep = kLanes;  // elements of a vector
  static Vector load_weights(const T* address) { return load(address); }
  static Vector load_packed(const Packed* address) { return load(address); }
  static Floats add_product(Floats sum, Vector a, Vector b) { return sum + a * b; }
};

#if defined(__AVX512BF16__)
// A lane adds the products of a pair to its sum in fp32, rounding to nearest even; denormal numbers
// count as zero, going in and coming out.
template <>
struct Dot<Bfloat16> {
  using Packed = Bfloat16;
  using Vector = __bf16 __attribute__((vector_size(kVectorBytes)));
  static constexpr bool kPairs = true;
  static constexpr int kStep = 2 * kLanes;
  static Vector load_packed(const Packed* address) {
    Vector value;
    memcpy(&value, address, sizeof(value));
    return value;
  }
  static Vector load_weights(const Bfloat16* address) { return load_packed(address); }
  static Floats add_product(Floats sum, Vector a, Vector b) {
    return __builtin_ia32_dpbf16ps_512(sum, a, b);
  }
};
#endif

using Four = float __attribute__((vector_size(16)));

// The sum of the lanes of each: a tile's end, worth 3 to 5% of its time where lanes are 16. There
// the first shuffles stay within 16 bytes.
#if defined(__AVX512F__)
inline Four sums_of_lanes(Floats a, Floats b, Floats c, Floats d) {
  const auto add_pairs = [](Floats one, Floats other) {  // one other one other, ...
    return __builtin_shufflevector(one, other, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13,
                                   29) +
           __builtin_shufflevector(one, other, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30,
                                   15, 31);
  };
  const Floats ab = add_pairs(a, b);
  const Floats cd = add_pairs(c, d);
  const Floats fours =
      __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
      __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  const auto eight = __builtin_shufflevector(fours, fours, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(fours, fours, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
         __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
}
#else
inline Four sums_of_lanes(Floats a, Floats b, Floats c, Floats d) {
  const auto add_halves = [](Floats one, Floats other) {  // one other one other, ...
    return interleave_low(one, other) + interleave_high(one, other);
  };
  const Floats fours = add_halves(add_halves(a, c), add_halves(b, d));  // a b c d, ...
#if defined(__AVX2__)
  return __builtin_shufflevector(fours, fours, 0, 1, 2, 3) +
         __builtin_shufflevector(fours, fours, 4, 5, 6, 7);
#else
  return fours;
#endif
}
#endif

// Always inline: the sums stay in registers.
template <int kRows, class T>
[[gnu::always_inline]] inline void add_products(
    const typename Dot<T>::Packed* a, const typename Dot<T>::Vector (&weights)[kDotColumns],
    Floats (&sums)[kRows][kDotColumns]) {
  typename Dot<T>::Vector rows[kRows];
#pragma clang loop unroll(full)
  for (int i = 0; i < kRows; ++i) rows[i] = Dot<T>::load_packed(a + i * Dot<T>::kStep);
#pragma clang loop unroll(full)
  for (int j = 0; j < kDotColumns; ++j) {
#pragma clang loop unroll(full)
    for (int i = 0; i < kRows; ++i) {
      sums[i][j] = Dot<T>::add_product(sums[i][j], rows[i], weights[j]);
    }
  }
}

// Row i of `to` becomes a[i] b^T of `count` elements, or gets that added. b[j] is a row of weights;
// `ahead` elements behind it lies what the caller reads next.
template <int kRows, class T>
void multiply_dots(const typename Dot<T>::Packed* a, const T* const (&b)[kDotColumns],
                   int64_t count, int64_t ahead, bool adds, float* to, int64_t stride) {
  constexpr int kStep = Dot<T>::kStep;
  Floats sums[kRows][kDotColumns] = {};
  typename Dot<T>::Vector weights[kDotColumns];
  int64_t at = 0;
  for (; at + kStep <= count; at += kStep, a += kDotRows * kStep) {
#pragma clang loop unroll(full)
    for (int j = 0; j < kDotColumns; ++j) {
      // With few rows, weights come from memory: half of the time, if the hardware alone fetches.
      __builtin_prefetch(b[j] + at + ahead);
      weights[j] = Dot<T>::load_weights(b[j] + at);
    }
    add_products<kRows, T>(a, weights, sums);
  }
  if (at < count) {
    for (int j = 0; j < kDotColumns; ++j) {
      T buffer[kStep] = {};
      __builtin_memcpy(buffer, b[j] + at, static_cast<size_t>(count - at) * sizeof(T));
      weights[j] = Dot<T>::load_weights(buffer);
    }
    add_products<kRows, T>(a, weights, sums);
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < kRows; ++i, to += stride) {
    Four sum = sums_of_lanes(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
    if (adds) {
      Four before;
      memcpy(&before, to, sizeof(before));
      sum += before;
    }
    memcpy(to, &sum, sizeof(sum));
  }
}

}  // namespace gated_mlp::cpu
