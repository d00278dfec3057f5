// SPDX-License-Identifier: Apache-2.0
//
// Operands: codes of 16 rows and 32 columns made into bfloat16, which holds a code less its zero
// exactly, for the instructions that multiply pairs of it. Columns are in the order that a line has
// them. x and h are bfloat16, too; of calls in float16 they are two of them: the value rounded, and
// what that leaves out.
#pragma once

#if defined(__AVX512BF16__)
#include <immintrin.h>

#include "cpu_lines.hpp"

namespace quantized_mlp::cpu {

using gated_mlp::Gate;
using kiln::package::ForwardArguments;

inline constexpr int kDepth = 32;  // columns of an operand
inline constexpr int kPairs = kDepth / 2;

// The row of an operand's 16 pairs of columns where columns 2 c and 2 c + 1 of its 32 are.
constexpr int row_of_pair(Codes codes, int c) {
  return codes == Codes::kInt4 ? c / 4 * 4 + c % 2 * 2 + c % 4 / 2 : c;
}

// Of rows r and r + 8: what the codes of one group are taken less, in the form that Making wants;
// or the columns of one operand.
struct Two {
  __m512i low, high;
};

// For vpermw, which takes 5 bits of an index.
template <class Function>
__m512i table_of(const Function& value) {
  alignas(64) uint16_t words[32];
  for (int i = 0; i < 32; ++i) {
    words[i] = static_cast<uint16_t>(bits_as<uint32_t>(static_cast<float>(value(i))) >> 16);
  }
  return _mm512_load_si512(words);
}

// Makes numbers of codes of one kind: of a tile's line r, rows r and r + 8 of two operands.
template <Codes kCodes>
struct Making;

template <>
struct Making<Codes::kInt4> {
  const __m512i numbers = table_of([](int i) { return i - 15; });

  // By a code, and whatever bit is before it: the code less its zero.
  __m512i less(int zero) const {
    alignas(64) uint16_t codes[32];
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint16_t>(i % 16 + 15);
    const __m512i places =
        _mm512_sub_epi16(_mm512_load_si512(codes), _mm512_set1_epi16(static_cast<int16_t>(zero)));
    return _mm512_permutexvar_epi16(places, numbers);
  }

  void make(const uint8_t* tile, int r, const Two (&zeros)[2], Two* to) const {
    const __m512i line = _mm512_loadu_si512(tile + r * kLineBytes);
    const __m512i second_pairs = _mm512_srli_epi16(line, 8);
    const __m512i steps[2] = {_mm512_unpacklo_epi64(line, second_pairs),
                              _mm512_unpackhi_epi64(line, second_pairs)};
    for (int step = 0; step < 2; ++step) {
      to[step].low = _mm512_permutexvar_epi16(steps[step], zeros[step].low);
      to[step].high = _mm512_permutexvar_epi16(_mm512_srli_epi16(steps[step], 4), zeros[step].high);
    }
  }
};

// The two lines of a tile of 8 bits: of whole numbers one an operand, of e4m3 one a row.
inline __m512i line_of_bytes(const uint8_t* tile, int step, int r) {
  return _mm512_loadu_si512(tile + (step * kGroupRows + r) * kLineBytes);
}

template <>
struct Making<Codes::kInt8> {
  __m512i less(int zero) const {
    return _mm512_castps_si512(_mm512_set1_ps(static_cast<float>((1 << 23) + zero)));
  }

  // A byte is put into the mantissa of 2^23; the lower half of what is left is zeros.
  static __m512i number(__m512i words, __m512i zero) {
    constexpr int kAndOr = 0xea;
    const __m512i large = _mm512_ternarylogic_epi32(words, _mm512_set1_epi32(0xff),
                                                    _mm512_set1_epi32(0x4b000000), kAndOr);
    return _mm512_castps_si512(
        _mm512_sub_ps(_mm512_castsi512_ps(large), _mm512_castsi512_ps(zero)));
  }
  static __m512i pairs(__m512i even, __m512i odd, __m512i zero) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(number(even, zero), 16),
                                   number(odd, zero));
  }

  void make(const uint8_t* tile, int r, const Two (&zeros)[2], Two* to) const {
    for (int step = 0; step < 2; ++step) {
      const __m512i line = line_of_bytes(tile, step, r);
      to[step].low = pairs(line, _mm512_srli_epi32(line, 16), zeros[step].low);
      to[step].high =
          pairs(_mm512_srli_epi32(line, 8), _mm512_srli_epi32(line, 24), zeros[step].high);
    }
  }
};

// Of a line of e4m3: where the pairs of columns of an operand are in the line's words, each with a
// first and a second pair.
struct PairPlaces {
  constexpr PairPlaces() : of{} {
    for (int step = 0; step < 2; ++step) {
      for (int swizzle = 0; swizzle < kGroupRows / 2; ++swizzle) {
        for (int c = 0; c < kPairs; ++c) {
          of[step][swizzle][c] =
              c % 2 * kPairs + e4m3_swizzled(2 * swizzle, c / 4) * 4 + step * 2 + c % 4 / 2;
        }
      }
    }
  }
  alignas(64) int32_t of[2][kGroupRows / 2][kPairs];
};
inline constexpr PairPlaces kPairPlaces;

template <>
struct Making<Codes::kE4m3> {
  // Codes without an exponent, which bfloat16 has no room for: by their mantissa.
  const __m512i small = table_of([](int i) { return value_of_e4m3(static_cast<unsigned>(i % 8)); });

  __m512i less(int) const { return {}; }

  // Of 16 bits each: exponent and mantissa in bits 4 to 10, whether the exponent is 0, the mantissa
  // in the lowest bits, the sign in the highest.
  __m512i number(__m512i magnitude, __mmask32 is_small, __m512i mantissa, __m512i sign) const {
    constexpr int kOrAnd = 0xf8;
    const __m512i bits = _mm512_add_epi16(_mm512_and_si512(magnitude, _mm512_set1_epi16(0x07f0)),
                                          _mm512_set1_epi16((127 - 7) << 7));
    return _mm512_ternarylogic_epi32(_mm512_mask_permutexvar_epi16(bits, is_small, mantissa, small),
                                     sign, _mm512_set1_epi16(static_cast<int16_t>(0x8000)), kOrAnd);
  }

  void make(const uint8_t* tile, int r, const Two (&)[2], Two* to) const {
    for (int half = 0; half < 2; ++half) {
      const __m512i line = line_of_bytes(tile, half, r);
      const __m512i first =
          number(_mm512_slli_epi16(line, 4), _mm512_testn_epi16_mask(line, _mm512_set1_epi16(0x78)),
                 line, _mm512_slli_epi16(line, 8));
      const __m512i second = number(_mm512_srli_epi16(line, 4),
                                    _mm512_testn_epi16_mask(line, _mm512_set1_epi16(0x7800)),
                                    _mm512_srli_epi16(line, 8), line);
      for (int step = 0; step < 2; ++step) {
        const __m512i places = _mm512_load_si512(kPairPlaces.of[step][r / 2]);
        (half == 0 ? to[step].low : to[step].high) =
            _mm512_permutex2var_epi32(first, places, second);
      }
    }
  }
};

// Of a row's scale among those of a tile's group.
struct ScalePlaces {
  constexpr ScalePlaces() : of{} {
    for (int row = 0; row < kTileRows; ++row) of[row] = scale_place(row);
  }
  alignas(64) int32_t of[kTileRows];
};
inline constexpr ScalePlaces kPlaces;

// A row tile of a matrix.
struct RowTile {
  const Matrix& matrix;
  int64_t number;
  Real scales;

  // Column 32 * operand's; beyond the last column its group again, times zeros of x.
  int64_t group_of(int64_t operand) const {
    return (number * matrix.groups + smaller(operand * kDepth >> matrix.shift, matrix.groups - 1)) *
           kTileRows;
  }

  // Line r of operands i, an even number, and i + 1. `middle`: of codes without zeros.
  template <Codes kCodes>
  void make_line(const Making<kCodes>& making, __m512i middle, int64_t i, int r, Two* to) const {
    Two zeros[2] = {{middle, middle}, {middle, middle}};
    if (matrix.zeros != nullptr) {
      for (int step = 0; step < 2; ++step) {
        const uint8_t* const two = matrix.zeros + group_of(i + step) + 2 * r;
        zeros[step] = {making.less(two[0]), making.less(two[1])};
      }
    }
    making.make(matrix.codes + (number * matrix.depth_tiles + i / 2) * tile_bytes(kCodes), r, zeros,
                to);
  }

  // Of the group of an operand, by row.
  Floats scales_of(int64_t operand) const {
    const int64_t at = group_of(operand);
    const auto in_order = [&](Floats lying) {
      return _mm512_permutexvar_ps(_mm512_load_si512(kPlaces.of), lying);
    };
    if (scales == Real::kFloat32) {
      return in_order(load(reinterpret_cast<const float*>(matrix.scales) + at));
    }
    if (scales == Real::kFloat16) {
      return in_order(load(reinterpret_cast<const Float16*>(matrix.scales) + at));
    }
    return in_order(load(reinterpret_cast<const Bfloat16*>(matrix.scales) + at));
  }
};

// What a value's bfloat16 leaves out; nothing of infinity.
inline Floats rest_of(Floats value) {
  const Floats rounded = bits_as<Floats>(rounded_to_bfloat16(value) & 0xffff0000u);
  return select(rounded - rounded == 0.0f, value - rounded, Floats{});
}

template <class T>
inline constexpr int kParts = 1;
template <>
inline constexpr int kParts<Float16> = 2;

inline int64_t x_operands(const ForwardArguments& call) {
  return call.DK * (kTileDepth / kDepth);
}
inline int64_t h_operands(const ForwardArguments& call) {
  return call.HK * (kTileDepth / kDepth);
}

}  // namespace quantized_mlp::cpu
#endif
