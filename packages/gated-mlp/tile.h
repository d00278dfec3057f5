// SPDX-License-Identifier: Apache-2.0
//
// Tile: the index arithmetic of the GEMM kernels: who copies, reads and writes what. Host and
// device compile the same functions, so that a test without a GPU can check coverage and bank
// conflicts.
#pragma once

#ifdef __CUDACC__
#define KILN_INDEX __host__ __device__ __forceinline__ constexpr
#else
#define KILN_INDEX constexpr
#endif

namespace gated_mlp {

// A CTA of kWarpRows x kWarpColumns warps computes kRows x kColumns accumulators, kDepth of k at a
// time. In a gated kernel the columns are kColumns / 2 of the gate and the same ones of the up
// projection, and each warp has both of them: a thread holds gate and up of one output.
template <int kRowsValue, int kColumnsValue, int kDepthValue, int kStagesValue>
struct Tile {
  static constexpr int kRows = kRowsValue;
  static constexpr int kColumns = kColumnsValue;
  static constexpr int kDepth = kDepthValue;
  static constexpr int kStages = kStagesValue;
  static constexpr int kWarpRows = kRows == 256 ? 4 : 2;
  static constexpr int kWarpColumns = 2;
  static constexpr int kCtas = 4 / kWarpRows;  // that share a multiprocessor
  static constexpr int kThreads = 32 * kWarpRows * kWarpColumns;
  static constexpr int kRowBlocks = kRows / kWarpRows / 16;          // mma tiles of a warp, m16
  static constexpr int kColumnBlocks = kColumns / kWarpColumns / 8;  // and n8
  static constexpr int kRowBytes = 2 * kDepth;
  static constexpr int kChunks = kDepth / 8;  // 16-byte chunks in a shared-memory row
  static constexpr int kRowsPerPass = kThreads / kChunks;
  static constexpr int kOperandBytes = 2 * kDepth * kRows;
  static constexpr int kStageBytes = kOperandBytes + 2 * kDepth * kColumns;
  static constexpr int kSharedBytes = kStages * kStageBytes;

  static_assert(kRowBlocks >= 1 && kColumnBlocks % 2 == 0, "a warp reads column blocks in pairs");
  static_assert(kRows % kRowsPerPass == 0 && kColumns / 2 % kRowsPerPass == 0,
                "every pass copies whole rows of one operand");
};

using TallTile = Tile<256, 128, 32, 4>;    // 96 KiB, of a multiprocessor that has 100
using LargeTile3 = Tile<128, 128, 32, 3>;  // 48 KiB: two CTAs fit an SM of 100 KiB
using LargeTile4 = Tile<128, 128, 32, 4>;
using MediumTile = Tile<64, 64, 64, 3>;
using SmallTile = Tile<32, 32, 64, 6>;  // decode: 20 KiB of weights in flight a CTA

// The kernels for a few tokens: a CTA has so many columns of the output, its warps take turns along
// k.
constexpr int kDecodeTokens = 16;
constexpr int kDecodeColumns = 8;

// Byte offset of a chunk within an operand. The XOR spreads the eight rows that one ldmatrix phase
// reads, and the eight chunks that one cp.async phase writes, over all 32 banks.
template <class T>
KILN_INDEX int chunk_offset(int row, int chunk) {
  const int spread = T::kChunks == 4 ? (row >> 1) & 3 : row & 7;
  return row * (2 * T::kDepth) + ((chunk ^ spread) << 4);
}

// The shared row of operand B where a warp's column block starts.
template <class T, bool kGated>
KILN_INDEX int column_block_row(int warp_column, int block) {
  constexpr int kHalf = T::kColumnBlocks / 2;
  if (!kGated) return warp_column * (T::kColumns / T::kWarpColumns) + block * 8;
  const int in_half = warp_column * (T::kColumns / 2 / T::kWarpColumns) + block % kHalf * 8;
  return (block / kHalf) * (T::kColumns / 2) + in_half;
}

// ldmatrix.x4 of a 16 x 16 block of A: lanes 0-15 address its rows at k 0-7, lanes 16-31 at k 8-15.
KILN_INDEX int a_lane_row(int lane) {
  return lane & 15;
}
KILN_INDEX int a_lane_chunk(int lane) {
  return lane >> 4;
}

// ldmatrix.x4 of two column blocks of B, 8 x 16 each: eight lanes a block and k half.
KILN_INDEX int b_lane_block(int lane) {
  return lane >> 4;
}
KILN_INDEX int b_lane_row(int lane) {
  return lane & 7;
}
KILN_INDEX int b_lane_chunk(int lane) {
  return (lane >> 3) & 1;
}

struct TilePosition {
  unsigned row;
  unsigned column;
};

// CTA number -> output tile. Inside a panel of columns consecutive CTAs share the rows of A first.
KILN_INDEX TilePosition tile_position(unsigned index, unsigned tiles_m, unsigned tiles_n,
                                      unsigned panel) {
  const unsigned first = index / (tiles_m * panel) * panel;
  const unsigned within = index - first * tiles_m;
  const unsigned width = tiles_n - first < panel ? tiles_n - first : panel;
  return {within / width, first + within % width};
}

}  // namespace gated_mlp
