// SPDX-License-Identifier: Apache-2.0
//
// Arguments: what the host passes to the device kernels, and what both count with. Included by both
// sides.
#pragma once

#include "gate.h"
#include "layout.h"
#include "sources.h"

namespace quantized_mlp {

struct MatrixArguments {
  const unsigned char* codes;
  const unsigned char* scales;  // of scale_bytes each
  const unsigned char* zeros;   // or null
};

// out[m, n] = epilogue(a[m, k] b^T). Gated: b[0] is gate, b[1] up, and out = gated(a b[0]^T +
// bias0, a b[1]^T + bias1). Plain: b[0] and bias0, and a residual [m, n] or null. b has
// 16 row_tiles rows, of which n are stored.
struct ProductArguments {
  const void* a;
  MatrixArguments b[2];
  const void* bias0;
  const void* bias1;
  const void* residual;
  void* out;
  // Sums of the parts of k: of `tiled` [splits, m, n], of the wide kernels [split tile][part]
  // [token][row].
  float* parts;
  long long m;
  long long n;
  long long k;
  int row_tiles;
  int depth_tiles;
  int groups;
  int shift;            // column k is in group k >> shift; at most 31
  int bfloat16_scales;  // else float16; codes of e4m3 have fp32
  int aligned;          // k is a multiple of 8, a 16-byte aligned
  int whole_pairs;      // decode: aligned, k of whole pairs of tiles, a group of each or of a row
  int paired;           // n is even, out 4-byte aligned
  int splits;           // tiled, wide: parts of k
  int whole;            // wide: this many tiles have one CTA each,
  int split_tiles;      // and so many others `splits`
  int token_blocks;     // wide: tiles of tokens, of tile_tokens
  int tile_tokens;
  int out_tiles;              // wide and gated: tiles of 64 columns that out has
  const float* token_scales;  // wide with e4m3: of a, as ArrangeArguments has them
  float* out_scales;          // the same of out, gated
  gated_mlp::Gating gating;
};

// Decode: a CTA has a row tile of each matrix at a time, and 8 or 16 tokens.
constexpr int kDecodeWarps = 8;
constexpr int kDecodeCtas = 2;  // of a multiprocessor with shared memory for both
// A stage of a warp: kDecodeTiles tiles of k of each matrix, with a word of scales and one of zeros
// a lane, or two fp32 scales.
constexpr int kDecodeTiles = 2;
constexpr int stage_bytes(int tiles, int matrices, int bits) {
  return matrices * (tiles * bits / 4 * kStepBytes + 2 * 32 * 4);
}
// As many as leave a CTA below 99 KiB.
constexpr int decode_stages(int matrices, int bits, int token_tiles) {
  return bits == 8 ? 4 / matrices : matrices == 1 ? 8 : token_tiles == 1 ? 4 : 3;
}
constexpr int decode_sum_bytes(int matrices, int token_tiles) {
  return kDecodeWarps * matrices * 8 * token_tiles * (kTileRows + 4) * 4;
}
constexpr int decode_bytes(int matrices, int bits, int token_tiles) {
  return kDecodeWarps * decode_stages(matrices, bits, token_tiles) *
             stage_bytes(kDecodeTiles, matrices, bits) +
         decode_sum_bytes(matrices, token_tiles);
}

// A norm in front: decode's gated product norms x where shared memory has room for the tokens of a
// call, else `norm_rows` does before it.
struct NormArguments {
  const void* weight;  // [k], of x's dtype
  float eps;
  float offset;  // that weights are off by
  int aligned;   // k is a multiple of 8, weight 16-byte aligned
};
struct NormedArguments {
  ProductArguments product;  // gated
  NormArguments norm;
};
constexpr int kMostNormed = 8192;                                    // columns
constexpr int kNormVectors = kMostNormed / 8 / (32 * kDecodeWarps);  // of eight columns, a thread's

// Columns in shared memory: of whole pairs of tiles.
KILN_INDEX long long normed_columns(long long k) {
  return (k + kDecodeTiles * kTileDepth - 1) / (kDecodeTiles * kTileDepth) *
         (kDecodeTiles * kTileDepth);
}
// From one token to the next: two that one phase reads differ in their banks.
KILN_INDEX long long normed_stride(long long k) {
  return (normed_columns(k) + 32) * 2;
}
// Of the gated product, with x behind the sums.
constexpr int normed_stages(int bits) {
  return bits == 8 ? decode_stages(2, bits, 1) : 3;
}
constexpr int normed_room_at(int bits) {
  return kDecodeWarps * normed_stages(bits) * stage_bytes(kDecodeTiles, 2, bits) +
         decode_sum_bytes(2, 1);
}
constexpr int kNormedBytes = 98 * 1024;  // of a CTA, which every SM from 8.0 on has

// [m, k] -> [m, k], normed, a CTA a row.
struct NormRowsArguments {
  const void* x;
  void* to;
  long long k;
  int aligned;  // k is a multiple of 8, x and weight 16-byte aligned
  NormArguments norm;
};

// Tiled: a CTA has 64 tokens and 16 row tiles, two of each warp: gate's and up's, or neighbours.
constexpr int kTiledWarps = 8;
constexpr int kTiledTokens = 64;
constexpr int kTiledStages = 3;
constexpr int tiled_stage_bytes(int bits) {
  return kTiledTokens * kTileDepth * 2 + kTiledWarps * stage_bytes(1, 2, bits);
}

// Wide: a CTA has one or two blocks of tokens, or half of one, and 16 row tiles as tiled has them.
constexpr int kWideBlock = 64;  // tokens
constexpr int kWideBlockBytes = kWideBlock * kTileDepth * 2;
constexpr int kWideRowTiles = 16;
constexpr int kWideRows = kWideRowTiles * kTileRows;
constexpr int kWideConsumers = 8;  // warps
constexpr int kWideThreads = 32 * kWideConsumers + 128;
constexpr int kWidePanel = 8;  // token tiles that CTAs with the same weights walk over together
constexpr int kWideTokens[] = {kWideBlock / 2, kWideBlock, 2 * kWideBlock};  // of a CTA
constexpr int kWideUnit = 2;  // tiles of k of a stage, with their scales and zeros
constexpr int wide_stage_bytes(int bits, int tokens) {
  return kWideUnit * tokens * kTileDepth * 2 + kWideRowTiles * stage_bytes(kWideUnit, 1, bits);
}
// As many as a multiprocessor has memory for, but for barriers and the stages' alignment.
constexpr int wide_stages(int bits, int tokens) {
  return 224 * 1024 / wide_stage_bytes(bits, tokens);
}
constexpr int wide_bytes(int bits, int tokens) {
  return 1024 + wide_stages(bits, tokens) * (wide_stage_bytes(bits, tokens) + 16);
}
// Where number `place` of line `row` of a block lies: chunks of 16 bytes, swizzled as wgmma reads
// them.
KILN_INDEX int wide_byte(int row, int place) {
  return row * 128 + ((place / 8 ^ row % 8) * 16) + place % 8 * 2;
}

// Wide with activations of e4m3: a stage has two tiles of k, a block of kFloat8Block.
constexpr int kWide8BlockBytes = kWideBlock * 2 * kTileDepth;
constexpr int kWide8PanelRows = kWideRowTiles / 2 * kTileRows;
// With scales of tokens and of rows, and four numbers more.
constexpr int wide8_stage_bytes(int token_blocks) {
  return token_blocks * (kWide8BlockBytes + kWideBlock * 4) + kWideRowTiles * 4 * kStepBytes +
         2 * kWide8PanelRows * 4 + 4 * 4;
}
// Stages begin where wgmma's swizzle does.
constexpr int wide8_stage_step(int token_blocks) {
  return (wide8_stage_bytes(token_blocks) + 1023) / 1024 * 1024;
}
constexpr int wide8_stages(int token_blocks) {
  return 225 * 1024 / wide8_stage_step(token_blocks);
}
constexpr int wide8_bytes(int token_blocks) {
  return 1024 + wide8_stages(token_blocks) * (wide8_stage_step(token_blocks) + 16);
}
// Byte `place` of line `row` of a block.
KILN_INDEX int wide8_byte(int row, int place) {
  return row * 128 + ((place / 16 ^ row % 8) * 16) + place % 16;
}

// x [m, k] -> blocks of kWideBlock tokens by kTileDepth, or by kFloat8Block of e4m3.
struct ArrangeArguments {
  const void* x;
  void* to;
  long long m;
  long long k;
  long long blocks;
  long long depth_tiles;
  int paired;     // k is even, x 4-byte aligned
  float* scales;  // of e4m3: [blocks][blocks of k][kWideBlock]
};

struct PackCodesArguments {
  Source source;
  unsigned* packed;
  void* packed_scales;          // pack
  unsigned char* packed_zeros;  // pack_zeros
  long long row_tiles;
  long long depth_tiles;
};

struct UnpackCodesArguments {
  MatrixArguments from;
  Codes kind;
  int shift;
  Real scale_dtype;
  Real weight_dtype;
  long long rows;
  long long columns;
  long long depth_tiles;
  long long groups;
  unsigned char* codes;
  void* scales;  // or null, as those below
  unsigned char* zeros;
  void* weight;
};

constexpr unsigned kPackThreads = 256;

}  // namespace quantized_mlp
