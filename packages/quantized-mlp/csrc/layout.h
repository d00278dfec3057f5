// SPDX-License-Identifier: Apache-2.0
//
// Layout: what the codes of a packed matrix mean, and where it has them, its scales and its zeros.
// Version 1 of the packed form, which a version of the package keeps for ever. Host and device
// compile the same functions.
//
// A matrix [N rows, K columns] is cut into tiles of 16 rows and 64 columns: packed[row tile][tile
// of k]. What lies beyond the last row or column has a code, and a scale of 0. In a tile each of
// the 32 lanes of a warp has 16 bytes side by side: of 4 bits they are its whole share, of 8 bits
// there are two shares: of whole numbers one of each 32 columns, of e4m3 one of each 8 rows.
//
//   row    = 16 tile + 8 half + lane / 4
//   column = 64 tile + 32 step + 8 (lane % 4) + 4 part + 2 pair + odd
//
//   4 bits   byte 16 lane + 4 (2 step + part) of the tile begins a little-endian word; the code
//            is in its bits 4 n to 4 n + 3, n = half + 2 pair + 4 odd. It is what a lane gives to
//            one instruction
//   int8     byte 512 step + 16 lane + 8 part + 4 pair of the tile begins such a word; the code is
//            its byte n, n = half + 2 odd
//   e4m3     byte 512 half + 64 (row % 8) + 16 (lane % 4 ^ row % 8 / 2) + 8 step + 4 part begins
//            such a word; the code is its byte n, n = pair + 2 odd
//   scales   packed_scales[row tile][group][2 (row % 8) + half]; zeros alike
//
// So a lane's words hold what it multiplies by one instruction m16n8k16, as row pairs of operand A,
// and 16 bytes of x, eight neighbouring columns, are what it needs of operand B for two. A tile of
// e4m3 is also what wgmma multiplies as it lies: two times eight lines of 64 bytes, a row each, in
// the 64-byte swizzle.
#pragma once

#include "tile.h"

namespace quantized_mlp {

constexpr int kTileRows = 16;
constexpr int kTileDepth = 64;
constexpr int kLaneBytes = 16;
constexpr int kStepBytes = 32 * kLaneBytes;  // of a warp

// A weight is scale * (code - zero). A code of kE4m3 is a floating-point number of 1 sign, 4 bits
// of exponent and 3 of mantissa, without infinities; it has no zero, and its scales are fp32. Those
// of whole numbers are of 16 bits.
enum class Codes : int { kInt4, kInt8, kE4m3 };

KILN_INDEX int bits_of(Codes codes) {
  return codes == Codes::kInt4 ? 4 : 8;
}
KILN_INDEX int scale_bytes(Codes codes) {
  return codes == Codes::kE4m3 ? 4 : 2;
}
KILN_INDEX int tile_bytes(Codes codes) {
  return kTileRows * kTileDepth / 8 * bits_of(codes);
}

// The code that means 0 where there are no zeros.
KILN_INDEX int middle_of(Codes codes) {
  return codes == Codes::kE4m3 ? 0 : 1 << (bits_of(codes) - 1);
}

KILN_INDEX bool is_nan_of_e4m3(unsigned code) {
  return (code & 0x7fu) == 0x7fu;
}
// Not of a NaN: pack makes its scale one.
KILN_INDEX float value_of_e4m3(unsigned code) {
  const int exponent = static_cast<int>(code >> 3 & 15u);
  const int mantissa = static_cast<int>(code & 7u);
  const int steps = exponent == 0 ? mantissa : (8 + mantissa) << (exponent - 1);
  return static_cast<float>((code & 0x80u) != 0 ? -steps : steps) * (1.0f / 512.0f);
}

struct Place {
  int byte;   // in the tile
  int shift;  // in the byte
};

// The order of k in an operand of 8 bits whose other side are lines of e4m3, in a block of 128:
// each 32 numbers are one instruction's.
KILN_INDEX int float8_place(int k) {
  return k / 64 * 64 + k % 32 / 8 * 16 + k % 64 / 32 * 8 + k % 8 / 4 * 4 + k % 4 / 2 + k % 2 * 2;
}
// In a line of e4m3, the place of four that piece 0 to 3 of 16 bytes has, and the other way round.
KILN_INDEX int e4m3_swizzled(int row, int piece) {
  return piece ^ row % 8 / 2;
}
// Where a lane's 16 bytes begin in a share of e4m3: of row lane / 4.
KILN_INDEX int e4m3_lane_byte(int row, int piece) {
  return row * 64 + e4m3_swizzled(row, piece) * kLaneBytes;
}

// row and k: in the tile.
KILN_INDEX Place place_of(Codes codes, int row, int k) {
  if (codes == Codes::kE4m3) {
    const int place = float8_place(k);
    return {
        kStepBytes * (row / 8) + e4m3_lane_byte(row % 8, place / kLaneBytes) + place % kLaneBytes,
        0};
  }
  const int half = row / 8;
  const int lane = row % 8 * 4 + k % 32 / 8;
  const int step = k / 32;
  const int part = k % 8 / 4;
  const int pair = k % 4 / 2;
  const int odd = k % 2;
  if (codes == Codes::kInt8) {
    return {kStepBytes * step + kLaneBytes * lane + 8 * part + 4 * pair + half + 2 * odd, 0};
  }
  const int bit = 4 * (half + 2 * pair + 4 * odd);
  return {kLaneBytes * lane + 4 * (2 * step + part) + bit / 8, bit % 8};
}

// The order that k has in an operand whose other side are codes as a lane has them: column k of a
// tile is number place_of_column(k) of a row, so that each 16 numbers are one instruction's.
KILN_INDEX int place_of_column(int k) {
  return (k / 32 * 2 + k % 8 / 4) * 16 + k % 4 / 2 * 8 + k % 32 / 8 * 2 + k % 2;
}
KILN_INDEX int column_of_place(int place) {
  return place / 32 * 32 + place % 8 / 2 * 8 + place / 16 % 2 * 4 + place / 8 % 2 * 2 + place % 2;
}

// Of a row's scale among the 16 of a tile's group.
KILN_INDEX int scale_place(int row) {
  return row % 8 * 2 + row % 16 / 8;
}

KILN_INDEX long long parts_of(long long extent, long long unit) {
  return (extent + unit - 1) / unit;
}

// Column k is in group k >> shift; one group of all has this shift.
constexpr int kWholeRow = 62;

}  // namespace quantized_mlp
