// SPDX-License-Identifier: Apache-2.0
//
// Whole: products of codes of int4 and int8 with whole numbers of 16 bits, which the CPU multiplies
// in pairs and adds exactly. 128 values of x, or of h, share a power of two: the largest of them
// has 15 bits, so each is off by at most 2^-15 of it, and what bfloat16 holds from 2^-7 of it on is
// exact. The sums of columns that share a scale, at most 128, times it are added in fp32. A token
// with a value that is not finite has sums that are NaNs.
#pragma once

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

#include "cpu_lines.hpp"

namespace quantized_mlp::cpu {

inline constexpr int kUnitTiles = 2;  // which share a power of two

// In the place of a tile's 64 floats.
struct WholeTile {
  int16_t numbers[kTileDepth];  // by line and position in a word, then by word: two that are added
  // What the sums of codes have too much, as a code of 0 is middle: of the tile, and, in the first
  // of two that share a unit, of both. By lane: one of each 32 columns, 0 and 2, has it all.
  int32_t middles[kUnitTiles][4];
  float unit;      // what a value is a number of; NaN where one is not finite
  float steps[2];  // the sums of 32 numbers each
  float unused[21];
};
static_assert(sizeof(WholeTile) == sizeof(float) * kTileDepth);

// Where column k of a tile is among the numbers: its code is in word `word` of the line.
constexpr int place_of_number(Codes codes, int k) {
  const int word = k % 32 / 8 * 4;
  const int step = k / 32;
  const int part = k % 8 / 4;
  const int pair = k % 4 / 2;
  return codes == Codes::kInt8 ? step * 32 + 2 * (word + 2 * part + pair) + k % 2
                               : pair * 32 + 2 * (word + 2 * step + part) + k % 2;
}

// What lies in each place.
template <Codes kCodes>
struct Columns {
  constexpr Columns() : of{} {
    for (int k = 0; k < kTileDepth; ++k) of[place_of_number(kCodes, k)] = k;
  }
  int of[kTileDepth];
};

#if defined(__x86_64__)
inline bool ask_vnni() {
  constexpr bool kIsWide = kLanes == 16;  // AVX512-VNNI, else AVX-VNNI
  unsigned of[4] = {};
  return __get_cpuid_count(7, kIsWide ? 0 : 1, &of[0], &of[1], &of[2], &of[3]) != 0 &&
         (kIsWide ? of[2] >> 11 & 1u : of[0] >> 4 & 1u) != 0;
}

// Whether one instruction multiplies pairs and adds the products; the sums are the same without.
// Asked once: a virtual machine takes 20 us to answer.
inline bool has_vnni() {
  enum { kUnasked, kNo, kYes };
  static std::atomic<int> known = kUnasked;
  int found = known.load(std::memory_order_relaxed);
  if (found == kUnasked) {
    found = ask_vnni() ? kYes : kNo;
    known.store(found, std::memory_order_relaxed);
  }
  return found == kYes;
}
#else
inline bool has_vnni() {
  return false;
}
#endif

// sums + the products of pairs of neighbours.
template <bool kVnni>
inline Ints multiply_pairs(Ints sums, Words codes, Words numbers) {
#if defined(__AVX512BW__)
  if constexpr (kVnni) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(codes), "v"(numbers));
    return sums;
  }
  return sums +
         bits_as<Ints>(_mm512_madd_epi16(bits_as<__m512i>(codes), bits_as<__m512i>(numbers)));
#elif defined(__AVX2__)
  if constexpr (kVnni) {
    asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sums) : "x"(codes), "x"(numbers));
    return sums;
  }
  return sums +
         bits_as<Ints>(_mm256_madd_epi16(bits_as<__m256i>(codes), bits_as<__m256i>(numbers)));
#else
  const int16x8_t left = bits_as<int16x8_t>(codes);
  const int16x8_t right = bits_as<int16x8_t>(numbers);
  return sums + bits_as<Ints>(vpaddq_s32(vmull_s16(vget_low_s16(left), vget_low_s16(right)),
                                         vmull_high_s16(left, right)));
#endif
}

inline float power_of_two(int exponent) {
  return bits_as<float>(static_cast<uint32_t>(127 + exponent) << 23);
}

// The power of two in which the largest of the values has 15 bits; NaN where one is not finite.
inline float unit_of(const float* values, int count) {
  constexpr int kLeast = -100;              // exponent: no unit is a denormal
  constexpr uint32_t kRoundsUp = 0x7fff00;  // a mantissa of which 15 bits are 2^15
  uint32_t largest = 0;
  for (int k = 0; k < count; ++k) {
    const uint32_t magnitude = bits_as<uint32_t>(values[k]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  if (largest >= 0x7f800000u) return bits_as<float>(0x7fc00000u);
  const int found = static_cast<int>(largest >> 23) - 127 + (largest % (1u << 23) >= kRoundsUp);
  return power_of_two((found < kLeast ? kLeast : found) - 14);
}

// The 64 floats of each of up to two tiles become whole numbers where they lie.
template <Codes kCodes>
void make_whole(float* values, int count) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr Columns<kCodes> kColumns;
  const float unit = unit_of(values, count);
  const float by_unit = 1 / unit;
  WholeTile tiles[kUnitTiles] = {};
  for (int t = 0; t < count / kTileDepth; ++t) {
    WholeTile& tile = tiles[t];
    tile.unit = unit;
    if (unit != unit) continue;
    alignas(kLineBytes) int32_t whole[kTileDepth];
    for (int k = 0; k < kTileDepth; k += kLanes) {
      const Floats rounded = load(values + t * kTileDepth + k) * by_unit + kRounder;
      const Ints number = bits_as<Ints>(rounded) - bits_as<Ints>(broadcast(kRounder));
      memcpy(whole + k, &number, sizeof(number));
    }
    for (int place = 0; place < kTileDepth; ++place) {
      tile.numbers[place] = static_cast<int16_t>(whole[kColumns.of[place]]);
    }
    for (int step = 0; step < 2; ++step) {
      int32_t sum = 0;
      for (int k = 0; k < 32; ++k) sum += whole[step * 32 + k];
      tile.steps[step] = static_cast<float>(sum);
      tile.middles[0][2 * step] = -middle_of(kCodes) * sum;
      tiles[0].middles[1][2 * step] += tile.middles[0][2 * step];
    }
  }
  memcpy(values, &tiles, sizeof(float) * static_cast<size_t>(count));
}

// The scales of a group, or its zeros, of all rows, in the order in which they lie. Without zeros
// all are `middle`.
inline void load_scales(const uint8_t* scales, Real real, int64_t at, Floats (&to)[16 / kLanes]) {
  for (int i = 0; i < 16 / kLanes; ++i, at += kLanes) {
    to[i] = real == Real::kBfloat16 ? load(reinterpret_cast<const Bfloat16*>(scales) + at)
                                    : load(reinterpret_cast<const Float16*>(scales) + at);
  }
}
inline void load_zeros(const uint8_t* zeros, int middle, int64_t at, Floats (&to)[16 / kLanes]) {
  for (int i = 0; i < kTileRows; ++i) {
    to[i / kLanes][i % kLanes] = static_cast<float>(zeros != nullptr ? zeros[at + i] : middle);
  }
}

// The same four numbers in all lanes, four by four.
inline Floats load_four(const float* address) {
#if defined(__AVX512F__)
  return bits_as<Floats>(_mm512_broadcast_f32x4(_mm_loadu_ps(address)));
#elif defined(__AVX2__)
  return bits_as<Floats>(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(address)));
#else
  return load(address);
#endif
}

// to[row]: the sum of the lanes of lanes_of(row), of each row of a tile.
template <class Function>
void add_lanes(const Function& lanes_of, float* to) {
  for (int row = 0; row < kTileRows; row += kLanes) {
    Floats lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = lanes_of(row + i);
    transpose(lanes);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    store(to + row, lanes[0]);
  }
}

// A row tile with kTokens tokens. kColumns that follow each other have one scale.
template <Codes kCodes, int kColumns, bool kVnni, int kTokens>
struct WholeProduct {
  static constexpr int kChunk = 8;  // tiles whose scales are made at once
  static constexpr int kSteps = kColumns == 32 ? 2 : 1;
  // Whether the lanes of a line are of two groups: two of one, two of the other.
  static constexpr bool kIsSplit = kSteps == 2 && kCodes == Codes::kInt4;
  static constexpr int kTiles = kColumns == 128 ? kUnitTiles : 1;
  static constexpr int kLines = bits_of(kCodes) / 4;  // of two rows, in a tile
  // Of int8 a lane has columns of both groups of 32: the sums of numbers say all.
  static constexpr bool kMiddles = kColumns != 32 || kCodes == Codes::kInt4;

  const Matrix& matrix;
  Real real;  // of the scales
  int64_t row_tile;
  const WholeTile* x;
  int64_t stride;  // in tiles, from a token to the next

  Floats total[kGroupRows][2][kTokens] = {};
  Floats more[kTokens][16 / kLanes] = {};  // that zeros make, by row as scales lie
  alignas(64) float scales[kChunk][kTokens][kIsSplit ? 4 : kSteps][kTileRows];  // split: four a row

  const WholeTile& tile_of(int token, int64_t tile) const { return x[token * stride + tile]; }

  void read_scales(int64_t from, int count) {
    for (int t = 0; t < count; ++t) {
      for (int step = 0; step < kSteps; ++step) {
        const int64_t group = group_of(matrix, (from + t) * kTileDepth + step * 32);
        const int64_t at = (row_tile * matrix.groups + group) * kTileRows;
        Floats scale[16 / kLanes];
        load_scales(matrix.scales, real, at, scale);
        Floats less[16 / kLanes] = {};  // than what `middles` have taken
        const bool has_zeros = matrix.zeros != nullptr || !kMiddles;
        if (has_zeros) {
          load_zeros(matrix.zeros, middle_of(kCodes), at, less);
          for (Floats& each : less) each -= kMiddles ? static_cast<float>(middle_of(kCodes)) : 0.0f;
        }
        for (int i = 0; i < kTokens; ++i) {
          const WholeTile& tile = tile_of(i, from + t);
          const float sum = kSteps == 2 ? tile.steps[step] : tile.steps[0] + tile.steps[1];
          for (int part = 0; part < 16 / kLanes; ++part) {
            const Floats unit = scale[part] * tile.unit;
            store(scales[t][i][step] + part * kLanes, unit);
            if (has_zeros) more[i][part] -= less[part] * sum * unit;
          }
        }
      }
      for (int i = 0; kIsSplit && i < kTokens; ++i) split(scales[t][i][0]);
    }
  }

  // Two scales of each of 16 rows become four: first, first, second, second.
  static void split(float* of) {
    constexpr int kParts = kTileRows / kLanes;
    Floats first[kParts];
    Floats second[kParts];
    memcpy(first, of, sizeof(first));
    memcpy(second, of + kTileRows, sizeof(second));
    for (int part = 0; part < kParts; ++part) {
      for (const Floats pairs : {interleave_low(first[part], second[part]),
                                 interleave_high(first[part], second[part])}) {
        store(of, interleave_low(pairs, pairs));
        store(of + kLanes, interleave_high(pairs, pairs));
        of += 2 * kLanes;
      }
    }
  }

  // The products of a line with each token: `sums` of rows r and r + 8.
  [[gnu::always_inline]] void multiply_line(const uint8_t* line, int64_t tile, int step,
                                            Ints (&sums)[2][kTokens]) const {
    constexpr uint32_t kMask = kCodes == Codes::kInt4 ? 0x000f000fu : 0x00ff00ffu;
#pragma clang loop unroll(full)
    for (int v = 0; v < 16 / kLanes; ++v) {
      Words words;
      memcpy(&words, line + v * kVectorBytes, sizeof(words));
#pragma clang loop unroll(full)
      for (int pair = 0; pair < 8 / bits_of(kCodes); ++pair) {
        const Words low = words >> (pair * 8) & kMask;
        const Words high = words >> (pair * 8 + bits_of(kCodes)) & kMask;
#pragma clang loop unroll(full)
        for (int i = 0; i < kTokens; ++i) {
          Words numbers;
          memcpy(&numbers, tile_of(i, tile).numbers + (step + pair) * 32 + v * 2 * kLanes,
                 sizeof(numbers));
          sums[0][i] = multiply_pairs<kVnni>(sums[0][i], low, numbers);
          sums[1][i] = multiply_pairs<kVnni>(sums[1][i], high, numbers);
        }
      }
    }
  }

  // Rows r and r + 8 of kCount tiles from `tile` on, which is number `t` of a chunk.
  template <int kCount>
  [[gnu::always_inline]] void multiply_rows(int row, int64_t tile, int t,
                                            Floats (&total_of)[2][kTokens]) const {
    constexpr int64_t kTileBytes = tile_bytes(kCodes);
    const uint8_t* const line =
        matrix.codes + (row_tile * matrix.depth_tiles + tile) * kTileBytes + row * kLineBytes;
    Ints sums[2][kTokens] = {};
    if (kMiddles) {
#pragma clang loop unroll(full)
      for (int i = 0; i < kTokens; ++i) {
        memcpy(&sums[0][i], tile_of(i, tile).middles[kCount - 1], sizeof(WholeTile::middles[0]));
        sums[1][i] = sums[0][i];
      }
    }
#pragma clang loop unroll(full)
    for (int part = 0; part < kCount; ++part) {
#pragma clang loop unroll(full)
      for (int step = 0; step < kLines; ++step) {
        const uint8_t* const at = line + part * kTileBytes + step * kGroupRows * kLineBytes;
        __builtin_prefetch(at + kChunk * kTileBytes);
        multiply_line(at, tile + part, step, sums);
        if (kSteps == 2 && step + 1 < kLines) {
          add_scaled(row, t, 0, sums, total_of);
          for (int i = 0; i < kTokens; ++i) sums[0][i] = sums[1][i] = Ints{};
        }
      }
    }
    add_scaled(row, t, kSteps - 1, sums, total_of);
  }

  [[gnu::always_inline]] void add_scaled(int row, int t, int step, const Ints (&sums)[2][kTokens],
                                         Floats (&total_of)[2][kTokens]) const {
#pragma clang loop unroll(full)
    for (int half = 0; half < 2; ++half) {
#pragma clang loop unroll(full)
      for (int i = 0; i < kTokens; ++i) {
        const Floats sum = __builtin_convertvector(sums[half][i], Floats);
        if constexpr (kIsSplit) {
          total_of[half][i] += sum * load_four(scales[t][i][0] + 4 * (2 * row + half));
        } else {
          total_of[half][i] += sum * scales[t][i][step][2 * row + half];
        }
      }
    }
  }

  void multiply_chunk(int64_t from, int count) {
    for (int row = 0; row < kGroupRows; ++row) {
      Floats sums[2][kTokens];
      memcpy(&sums, &total[row], sizeof(sums));
      int t = 0;
      for (; t + kTiles <= count; t += kTiles) multiply_rows<kTiles>(row, from + t, t, sums);
      if (t < count) multiply_rows<1>(row, from + t, t, sums);
      memcpy(&total[row], &sums, sizeof(sums));
    }
  }

  // to[i][r]: row r with token i.
  void run(float (*to)[kTileRows]) {
    for (int64_t from = 0; from < matrix.depth_tiles; from += kChunk) {
      const int64_t left = matrix.depth_tiles - from;
      const int count = left < kChunk ? static_cast<int>(left) : kChunk;
      read_scales(from, count);
      multiply_chunk(from, count);
    }
    for (int i = 0; i < kTokens; ++i) {
      add_lanes([&](int row) { return total[row % kGroupRows][row / kGroupRows][i]; }, to[i]);
      alignas(64) float rest[kTileRows];
      memcpy(rest, more[i], sizeof(rest));
      for (int row = 0; row < kTileRows; ++row) to[i][row] += rest[scale_place(row)];
    }
  }
};

}  // namespace quantized_mlp::cpu
