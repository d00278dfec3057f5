// SPDX-License-Identifier: Apache-2.0
//
// Sources: the layouts that pack reads. Host and device compile the same functions; who calls them
// has checked the shapes (shapes.hpp).
#pragma once

#include "layout.h"

#ifdef __CUDACC__
#define KILN_READ __device__ __forceinline__
#else
#define KILN_READ inline
#endif

namespace quantized_mlp {

enum class SourceLayout : int { kPlain, kGptq, kGptqV2, kAwq, kCompressedTensors };

// What floating-point numbers are stored as.
enum class Real : int { kFloat32, kFloat16, kBfloat16 };

// One matrix [rows, columns] as it lies in a model's file. A word has 32 / bits codes, the first
// one in its lowest bits.
struct Source {
  const void* codes;
  const void* scales;
  const void* zeros;  // or null
  SourceLayout layout;
  Codes kind;
  Real scale_dtype;
  int is_signed;  // of plain
  int shift;      // of the group
  int row_shift;  // row r has line r >> row_shift of the scales; of plain
  long long rows;
  long long columns;
  long long groups;
};

KILN_INDEX unsigned code_in(unsigned word, int bits, long long number) {
  return word >> (static_cast<int>(number) * bits) & ((1u << bits) - 1u);
}

// Column j of eight is AWQ's number 0, 4, 1, 5, 2, 6, 3, 7.
KILN_INDEX long long awq_number(long long column) {
  return column % 2 * 4 + column % 8 / 2;
}

KILN_READ unsigned source_code(const Source& from, long long row, long long k) {
  const int bits = bits_of(from.kind);
  const long long in_word = 32 / bits;
  const auto* const words = static_cast<const unsigned*>(from.codes);
  switch (from.layout) {
    case SourceLayout::kPlain: {
      const unsigned byte = static_cast<const unsigned char*>(from.codes)[row * from.columns + k];
      const unsigned code =
          from.is_signed != 0 ? byte + static_cast<unsigned>(middle_of(from.kind)) : byte;
      return code & ((1u << bits) - 1u);
    }
    case SourceLayout::kGptq:
    case SourceLayout::kGptqV2:
      return code_in(words[k / in_word * from.rows + row], bits, k % in_word);
    case SourceLayout::kAwq:
      return code_in(words[k * parts_of(from.rows, 8) + row / 8], 4, awq_number(row));
    case SourceLayout::kCompressedTensors:
      break;
  }
  return code_in(words[row * parts_of(from.columns, in_word) + k / in_word], bits, k % in_word);
}

// The number of a scale among those of the source.
KILN_READ long long source_scale(const Source& from, long long row, long long group) {
  const bool by_row =
      from.layout == SourceLayout::kPlain || from.layout == SourceLayout::kCompressedTensors;
  return by_row ? (row >> from.row_shift) * from.groups + group : group * from.rows + row;
}

// Whether a code of e4m3 in this group is a NaN.
KILN_READ bool has_nan(const Source& from, long long row, long long group) {
  const long long first = group << from.shift;
  const long long next = from.shift == kWholeRow ? from.columns : (group + 1) << from.shift;
  const long long last = next < from.columns ? next : from.columns;
  bool found = false;
  for (long long k = first; k < last; ++k) found |= is_nan_of_e4m3(source_code(from, row, k));
  return found;
}

KILN_READ unsigned char source_zero(const Source& from, long long row, long long group) {
  const int bits = bits_of(from.kind);
  const long long in_word = 32 / bits;
  const auto* const words = static_cast<const unsigned*>(from.zeros);
  const long long words_of_group = parts_of(from.rows, in_word);
  unsigned zero = 0;
  switch (from.layout) {
    case SourceLayout::kPlain:
      return static_cast<const unsigned char*>(from.zeros)[row * from.groups + group];
    case SourceLayout::kGptq:  // what is stored is one less, without a carry
      zero = code_in(words[group * words_of_group + row / in_word], bits, row % in_word) + 1;
      break;
    case SourceLayout::kGptqV2:
      zero = code_in(words[group * words_of_group + row / in_word], bits, row % in_word);
      break;
    case SourceLayout::kAwq:
      zero = code_in(words[group * words_of_group + row / 8], 4, awq_number(row));
      break;
    case SourceLayout::kCompressedTensors:
      zero = code_in(words[row / in_word * from.groups + group], bits, row % in_word);
      break;
  }
  return static_cast<unsigned char>(zero & ((1u << bits) - 1u));
}

// One word of a packed tile: byte `at`, a multiple of 4, of tile (row_tile, k_tile).
KILN_READ unsigned packed_word(const Source& from, long long row_tile, long long k_tile, int at) {
  const int lane = at % kStepBytes / kLaneBytes;
  const int share = at / kStepBytes;
  const int high = at % kLaneBytes / 8;
  const int low = at % 8 / 4;
  const int bits = bits_of(from.kind);
  const bool is_e4m3 = from.kind == Codes::kE4m3;
  unsigned word = 0;
  for (int i = 0; i < 32 / bits; ++i) {
    const int column = bits == 4 ? high * 32 + low * 4 + i / 2 % 2 * 2 + i / 4
                       : is_e4m3 ? high * 32 + low * 4 + i % 2 * 2 + i / 2
                                 : share * 32 + high * 4 + low * 2 + i / 2;
    const long long row = row_tile * kTileRows + (is_e4m3 ? share : i % 2) * 8 + lane / 4;
    const int of_lane = is_e4m3 ? e4m3_swizzled(lane / 4, lane % 4) : lane % 4;
    const long long k = k_tile * kTileDepth + column + of_lane * 8;
    const bool is_there = row < from.rows && k < from.columns;
    const unsigned code =
        is_there ? source_code(from, row, k) : static_cast<unsigned>(middle_of(from.kind));
    word |= code << (i * bits);
  }
  return word;
}

}  // namespace quantized_mlp
