// SPDX-License-Identifier: Apache-2.0
//
// Vector: the CPU kernels' arithmetic, written once on the compiler's vector types; the instruction
// set that the file is compiled for decides their width. Loads and stores convert between fp32 and
// the storage types, rounding to nearest even. Pure functions.
#pragma once

#include <stdint.h>
#include <string.h>

namespace gated_mlp::cpu {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif
inline constexpr int kLanes = kVectorBytes / 4;

using Floats = float __attribute__((vector_size(kVectorBytes)));
using Ints = int32_t __attribute__((vector_size(kVectorBytes)));
using Words = uint32_t __attribute__((vector_size(kVectorBytes)));
using Shorts = uint16_t __attribute__((vector_size(kVectorBytes / 2)));
using Halves = _Float16 __attribute__((vector_size(kVectorBytes / 2)));

struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

template <class To, class From>
inline To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

inline Floats broadcast(float value) {
  return Floats{} + value;
}
inline Floats select(Ints mask, Floats yes, Floats no) {
  return bits_as<Floats>((mask & bits_as<Ints>(yes)) | (~mask & bits_as<Ints>(no)));
}

inline Floats load(const float* address) {
  Floats value;
  memcpy(&value, address, sizeof(value));
  return value;
}
inline Floats load(const Bfloat16* address) {
  Shorts bits;
  memcpy(&bits, address, sizeof(bits));
  return bits_as<Floats>(__builtin_convertvector(bits, Words) << 16);
}
inline Floats load(const Float16* address) {
  Halves halves;
  memcpy(&halves, address, sizeof(halves));
  return __builtin_convertvector(halves, Floats);
}

inline void store(float* address, Floats value) {
  memcpy(address, &value, sizeof(value));
}
// bfloat16 in the upper halves; the lower ones are of no use.
inline Words rounded_to_bfloat16(Floats value) {
  const Words bits = bits_as<Words>(value);
  const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const Words is_nan = bits_as<Words>(value != value);
  const Words quiet = bits | 0x400000u;  // rounding could carry a NaN's payload into infinity
  return (is_nan & quiet) | (~is_nan & rounded);
}
inline void store(Bfloat16* address, Floats value) {
  const Shorts result = __builtin_convertvector(rounded_to_bfloat16(value) >> 16, Shorts);
  memcpy(address, &result, sizeof(result));
}
// even[0], odd[0], even[1], odd[1], ...
inline void store_pairs(Bfloat16* address, Floats even, Floats odd) {
  const Words pairs = (rounded_to_bfloat16(even) >> 16) | (rounded_to_bfloat16(odd) & 0xffff0000u);
  memcpy(address, &pairs, sizeof(pairs));
}
inline void store(Float16* address, Floats value) {
  const Halves halves = __builtin_convertvector(value, Halves);
  memcpy(address, &halves, sizeof(halves));
}

// The first `count` lanes, 0 < count < kLanes; the others read as zero and are not written.
// __builtin: FORTIFY's check of each such copy takes 1.8% of a call with one token.
template <class T>
inline Floats load_some(const T* address, int64_t count) {
  T buffer[kLanes] = {};
  __builtin_memcpy(buffer, address, static_cast<size_t>(count) * sizeof(T));
  return load(buffer);
}
template <class T>
inline void store_some(T* address, Floats value, int64_t count) {
  T buffer[kLanes];
  store(buffer, value);
  __builtin_memcpy(address, buffer, static_cast<size_t>(count) * sizeof(T));
}

// Those that there are of `count` > 0 elements, at most kLanes.
template <class T>
inline Floats load_up_to(const T* address, int64_t count) {
  return count >= kLanes ? load(address) : load_some(address, count);
}
template <class T>
inline void store_up_to(T* address, Floats value, int64_t count) {
  if (count >= kLanes) {
    store(address, value);
  } else {
    store_some(address, value, count);
  }
}

template <class T>
inline float load_one(const T* address) {
  return load_some(address, 1)[0];
}

// The low (or high) halves of a and b, interleaved.
inline Floats interleave_low(Floats a, Floats b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}
inline Floats interleave_high(Floats a, Floats b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                 31);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

// Rows become columns: interleaving row i with row i + kLanes / 2 rotates the bits of the element's
// place by one, so log2(kLanes) times transposes.
inline void transpose(Floats (&rows)[kLanes]) {
#pragma clang loop unroll(full)
  for (int width = 1; width < kLanes; width *= 2) {
    Floats next[kLanes];
#pragma clang loop unroll(full)
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = interleave_low(rows[i], rows[i + kLanes / 2]);
      next[2 * i + 1] = interleave_high(rows[i], rows[i + kLanes / 2]);
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < kLanes; ++i) rows[i] = next[i];
  }
}

// 2^x for x in [-126, 126]: the fraction by the Taylor series of e^(f ln 2), |f| <= 1/2, whose
// first term left out is 5e-9, times the power of two of the integer part. A NaN stays one.
inline Floats exp2(Floats x) {
  // 1.5 * 2^23: adding it rounds to an integer; and the exponent of 2^0
  constexpr float kRounder = 12582912.0f + 127.0f;
  const Floats shifted = x + kRounder;
  const Floats f = x - (shifted - kRounder);
  Floats p = broadcast(1.52527338e-5f);
  p = p * f + 1.54035304e-4f;
  p = p * f + 1.33335581e-3f;
  p = p * f + 9.61812911e-3f;
  p = p * f + 5.55041087e-2f;
  p = p * f + 2.40226507e-1f;
  p = p * f + 6.93147181e-1f;
  p = p * f + 1.0f;
  return p * bits_as<Floats>(bits_as<Ints>(shifted) << 23);  // the low bits: the integer part
}

inline Floats clamp(Floats x, float low, float high) {  // NaN passes through
  x = select(x > high, broadcast(high), x);
  return select(x < low, broadcast(low), x);
}

}  // namespace gated_mlp::cpu
