// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the sm_90a kernels, and the tile shapes that host and device agree on. Included by
// both sides; NVRTC has no <stdint.h>, hence the plain types.
//
//   token    a row of x and y                 part    the blocks of k of one CTA, where k is split
//   block    64 of k                          share   the sums that one of those CTAs adds up
//   stage    a slot of the ring of copies     across  the CTAs of a pair lie side by side
//   panel    columns of tiles that CTAs       strip   32 or 16 columns of outputs on their way
//            walk over together               box     what one copy takes of a matrix
//   ring     the stages, one after another    swapped the weights are a tile's rows, tokens its
//   quad     four columns, or tokens                  columns
//   early    before the kernel ahead ends     turned  k runs down an operand's columns in memory
//   tail     a last wave of few tiles         piece   of a tile in the tail, so that no CTA is idle
#pragma once

#include "gate.h"

namespace gated_mlp {

// A CUtensorMap: opaque, made by the driver, read by the copy engine from the kernel's parameters.
struct alignas(128) TensorMap {
  unsigned char opaque[128];
};

// out[m, n] = epilogue(a[m, k] b^T), as GemmArguments, through tensor maps.
struct Sm90Arguments {
  TensorMap a;       // x or h
  TensorMap b0;      // gate or down
  TensorMap b1;      // up; unused in a plain kernel
  TensorMap out;     // prefill kernels, not swapped
  TensorMap a_tail;  // swapped: a, in boxes of a piece
  const void* bias0;
  const void* bias1;
  const void* residual;  // plain kernels, [m, n]; or null
  void* out_data;        // the other kernels
  long long m;
  long long n;
  unsigned k_blocks;  // of kDepth; the last one may be partly outside and is then filled with zeros
  unsigned tiles_m;   // prefill: of a cluster's tile, as tiles_n
  unsigned tiles_n;
  unsigned panel;      // tiles in a column panel (tile.h)
  unsigned tail_from;  // swapped: the first tile that is cut along the tokens
  unsigned pieces;     // swapped: of such a tile
  unsigned tail_rows;  // swapped: of a CTA's piece
  unsigned tile_rows;  // swapped, decode: rows of the output from one tile to the next
  unsigned a_rows;     // decode, stream: rows of a in a stage; at most those loaded
  unsigned quads;  // decode: of four columns of the output, or of tokens in a swapped tile, that
                   // each part of k adds up
  Gating gating;
  int across;  // prefill, decode: the two CTAs that share tokens lie side by side
  int early;   // the next kernel may start before this one ends
};

// Of a gated prefill kernel that also keeps what the gate reads.
struct Sm90KeptArguments : Sm90Arguments {
  TensorMap gate_out;
  TensorMap up_out;
};

// out[m, n] = a[m, k] b[n, k]^T, a product among gradients, or, where it adds, out += it, in
// float32; tiles are those of a cluster's two CTAs.
struct GradientProduct {
  TensorMap a;
  TensorMap b;
  TensorMap out;
  unsigned tiles_m;
  unsigned tiles_n;
  unsigned panel;
  unsigned adds;  // of weights
};

inline constexpr int kMostGradientProducts = 3;

// Of tokens (their rows are those of out): the products add up in products[0].out, whose tiles
// count. Of weights: they lie side by side.
struct GradientArguments {
  GradientProduct products[kMostGradientProducts];
  unsigned count;
  unsigned k_blocks;  // of one product, of kDepth
};

// Of the product of tokens that is the gradient of h: the gate's slopes make gate_out's and
// up_out's of it. gate_out's is products[0].out; both may be where gate_out and up_out are.
struct GatedGradientArguments : GradientArguments {
  TensorMap gate_out;
  TensorMap up_out;
  TensorMap grad_up;
  TensorMap hidden;
  Gating gating;
  int stores_hidden;
};

// sums[column] of a compact source [rows, columns]; columns is a multiple of 8.
struct ColumnSumsArguments {
  const void* source;
  void* sums;
  long long rows;
  long long columns;
  int adds;  // to sums of float32
};
inline constexpr unsigned kSumThreads = 256;
inline constexpr int kSumColumns = 16;  // of a CTA

inline constexpr int kDepth = 64;  // k of a block: 128 bytes, the width of the swizzle

// How the operands of a product a b^T lie in memory: k along their rows, or, turned, k down, so
// that a row of the operand is a column there. A stage then has blocks of 64 rows, of 64 lines of k
// each.
template <bool kTurnedAValue, bool kTurnedBValue>
struct OperandOrder {
  static constexpr bool kTurnedA = kTurnedAValue;
  static constexpr bool kTurnedB = kTurnedBValue;
};
using Straight = OperandOrder<false, false>;
using TurnedB = OperandOrder<false, true>;
using TurnedBoth = OperandOrder<true, true>;
inline constexpr int kTurnedBytes = 64 * kDepth * 2;  // of such a block

// Rows of a that a stage has for a swapped tile of so many: two CTAs load halves of them, and each
// half has whole groups of the swizzle, of 8 rows. The tile's output is written 16 by 16, too.
template <class Int>
constexpr Int whole_sixteens(Int rows) {
  return (rows + 15) / 16 * 16;
}

inline constexpr int kTokenBox = 64;            // rows of a that come together in a prefill kernel
inline constexpr int kSharedMost = 227 * 1024;  // of a CTA
inline constexpr int kSharedAlign = 1024;       // of what the copy engine swizzles

// Columns of a strip, which a warpgroup stages and stores at once: at most, and of a tile.
inline constexpr int kMostStripColumns = 32;
inline constexpr int kAddedStripColumns = 16;  // of float32
constexpr int strip_columns(int out_columns) {
  return out_columns % kMostStripColumns == 0 ? kMostStripColumns : 16;
}

// Large M. Two consumer warpgroups of kWarpgroupRows x kColumns accumulators each: one tile of both
// (cooperative), or each its own tile in turns, so that one multiplies while the other is in its
// epilogue (ping-pong). Of 256 rows the cooperative tile reads the least for its products, and pays
// where k is long and the epilogue short. The two CTAs of a cluster lie below each other and share
// b by multicast, or side by side (across) and share a: where the last rows fill one CTA's tile and
// not two, no CTA then multiplies nothing but zeros.
//
// A warpgroup has kPlaces for strips, each with one of kMatrices: of the output, or of all that an
// epilogue reads and writes.
template <int kWarpgroupRowsValue, int kColumnsValue, bool kPingPongValue, int kMatrices = 1,
          int kPlacesValue = 2>
struct PrefillTile {
  static constexpr int kWarpgroupRows = kWarpgroupRowsValue;
  static constexpr int kColumns = kColumnsValue;
  static constexpr bool kPingPong = kPingPongValue;
  static constexpr bool kSwapped = false;
  static constexpr bool kWide = false;  // as in DecodeTile
  static constexpr int kBlocks = kWarpgroupRows / 64;
  static constexpr int kSums = kColumns / 2;  // of a block, a thread
  static constexpr int kRows = kPingPong ? kWarpgroupRows : 2 * kWarpgroupRows;  // of one CTA
  static constexpr int kThreads = 3 * 128;
  static constexpr int kCtas = 1;  // that share a multiprocessor
  static constexpr int kABytes = kRows * kDepth * 2;
  static constexpr int kBBytes = kColumns * kDepth * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kMatrixStripBytes = kWarpgroupRows * kMostStripColumns * 2;
  static constexpr int kStripBytes = kMatrices * kMatrixStripBytes;
  static constexpr int kPlaces = kPlacesValue;
  static constexpr int kAllStripBytes = 2 * kPlaces * kStripBytes;
  static constexpr int kStages = (kSharedMost - kSharedAlign - kAllStripBytes - 256) / kStageBytes;
  static constexpr int kStripsAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kStripsAt + kAllStripBytes;
  static constexpr int kBarriers = 2 * kStages + 2 + (kMatrices > 1 ? 2 * 2 * kPlaces : 0);
  static constexpr int kSharedBytes = kSharedAlign + kBarriersAt + kBarriers * 8;
  static_assert(kSharedBytes <= kSharedMost);
};
template <int kColumns>
using PingPong = PrefillTile<128, kColumns, true>;
template <int kColumns>
using Cooperative = PrefillTile<64, kColumns, false>;
template <int kColumns>
using Tall = PrefillTile<128, kColumns, false>;
// Cooperative, with three places of three matrices. Ping-pong tiles of 128 x 128 read twice as much
// from the L2 cache.
using GatedGradient = PrefillTile<64, 256, false, 3, 3>;

// Large M too, swapped: the weights are the 64 rows of a wgmma and the tokens its columns, so that
// a tile can have any multiple of 8 tokens. A warpgroup has two blocks of 64 rows of the weights:
// in a gated tile one of gate and the same of up. Of 128 columns the tiles are ping-pong, of 256
// cooperative. Clusters as above. A kernel has the tile of the most tokens, and its call says how
// many of them there are; as many stages as fit then. Where the last wave of tiles would leave
// clusters idle, its tiles are cut along the tokens into pieces.
inline constexpr int kFewestSwapped = 96;  // tokens; wgmma is slower with fewer columns
inline constexpr int kMostSwapped = 192;
inline constexpr int kFewestPiece = 32;
template <int kTokens, int kColumnsValue>
struct SwappedTile {
  static constexpr int kRows = kTokens;
  static constexpr int kColumns = kColumnsValue;
  static constexpr bool kPingPong = kColumns == 128;
  static constexpr bool kSwapped = true;
  static constexpr bool kWide = false;
  static constexpr int kBlocks = 2;
  static constexpr int kSums = kTokens / 2;
  static constexpr int kThreads = 3 * 128;
  static constexpr int kCtas = 1;
  static constexpr int kBoxBytes = 64 * kDepth * 2;
  static constexpr int kBoxes = kColumns / 64;
  static constexpr int kBBytes = kBoxes * kBoxBytes;
  static constexpr int kMostStages = 8;
  // Of 16 tokens by 64 columns, two a warpgroup. Higher ones would take a stage from the ring.
  static constexpr int kStripBytes = 16 * 64 * 2;
  static constexpr int kBarriersAt = kSharedMost - kSharedAlign - (2 * kMostStages + 2) * 8;
  static constexpr int kSharedBytes = kSharedMost;
  template <class Int>
  static constexpr Int stages_of(Int tokens) {
    const Int a_bytes = whole_sixteens(tokens) * kDepth * 2;
    const Int fit = (kBarriersAt - 4 * kStripBytes) / (a_bytes + kBBytes);
    return fit < kMostStages ? fit : kMostStages;
  }
  static_assert(kTokens % 8 == 0 && kTokens >= kFewestPiece && kTokens <= kMostSwapped);
};
template <int kColumns>
using AnySwapped = SwappedTile<kMostSwapped, kColumns>;

inline constexpr int kMostParts = 8;  // of k
inline constexpr int kFewRows = 32;   // up to so many, reading the weights is all that counts

// How many fours of so many columns, or tokens, each part of k adds up.
constexpr int decode_quads(int columns, int parts) {
  return (columns / 4 + parts - 1) / parts;
}

// Small M. kTokens rows of a, stale above a_rows, against kColumns rows of b; the CTAs of a cluster
// split k and add their sums in the order of their parts. Across, a cluster has the tiles of two
// neighbouring columns. As many stages as fit.
//
// Swapped as prefill's, of down alone: each warpgroup has 64 rows of the weights, and each part of
// k adds up some of the tokens.
template <int kTokensValue, int kColumnsValue, int kCtasValue, bool kSwappedValue = false>
struct DecodeTile {
  static constexpr int kTokens = kTokensValue;
  static constexpr int kColumns = kColumnsValue;
  static constexpr int kCtas = kCtasValue;
  static constexpr bool kSwapped = kSwappedValue;
  static constexpr int kMatrixRows = kSwapped ? kColumns : kTokens;     // of wgmma's a
  static constexpr int kMatrixColumns = kSwapped ? kTokens : kColumns;  // of its sums
  // Of 64 rows, of a warpgroup. Four warpgroups have too few registers for wide tiles.
  static constexpr int kBlocks = kMatrixRows == 256 ? 2 : 1;
  static constexpr int kConsumers = kMatrixRows / 64 / kBlocks * 128;  // threads
  static constexpr int kSums = kMatrixColumns / 2;                     // of a block, a thread
  // A thread of three warpgroups has 128 registers, too few for these columns: they take more from
  // three idle warps that come with the producer's, and a wgmma has half of the columns.
  static constexpr bool kWide = kTokens == 192 && kColumns > 192;
  static constexpr int kThreads = kConsumers + (kWide ? 128 : 32);
  static constexpr int kABytes = whole_sixteens(kTokens) * kDepth * 2;
  static constexpr int kBBytes = kColumns * kDepth * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kMostBytes = kCtas == 1 ? kSharedMost : (228 / kCtas - 1) * 1024;
  static constexpr int kStages = (kMostBytes - kSharedAlign - 256) / kStageBytes;
  static constexpr int kBarriersAt = kStages * kStageBytes;
  static constexpr int kSharedBytes = kSharedAlign + kBarriersAt + 2 * kStages * 8;
  // The sums that a CTA gets reuse the stages: of each part, kMatrixRows rows of its share of the
  // columns of the sums. Eight floats more a row, or fewer, let the eight rows that a warp writes
  // at once lie in different banks.
  static constexpr int kRowPadding = 8;
  static constexpr bool has_room(int parts) {
    const int columns = 8 * decode_quads(kMatrixColumns / 2, parts);  // of gate and up, or more
    return parts * kMatrixRows * (columns + kRowPadding) * 4 <= kBarriersAt;
  }
};
// Two CTAs share a multiprocessor, or one has it alone, with more in flight for a longer k.
template <int kColumns>
using Tokens64 = DecodeTile<64, kColumns, 2>;
template <int kColumns>
using Tokens128By2 = DecodeTile<128, kColumns, 2>;
template <int kColumns>
using Tokens128 = DecodeTile<128, kColumns, 1>;
template <int kColumns>
using Tokens192 = DecodeTile<192, kColumns, 1>;
template <int kColumns>
using Tokens256 = DecodeTile<256, kColumns, 1>;
template <int kTokens>
using SwappedDown = DecodeTile<kTokens, 128, 1, true>;
using WideSwappedDown = DecodeTile<144, 192, 1, true>;

// Small M too: up to 64 tokens, CTAs that read equal shares of the weights, all of k, in one wave;
// kBlocks blocks of k a stage, so that a stage is worth its barriers. As many stages as fit: a CTA
// has its multiprocessor alone, or, where its share is small, a part of the memory, kMemory bytes.
template <int kColumnsValue, int kMemory = kSharedMost>
struct StreamTile {
  static constexpr int kTokens = 64;  // of a wgmma; rows above a_rows are stale
  static constexpr int kColumns = kColumnsValue;
  static constexpr int kBlocks = kColumns >= 96 ? 1 : kColumns >= 48 ? 2 : kColumns >= 24 ? 4 : 8;
  static constexpr int kConsumers = 128;  // threads
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kCtas = 1;
  static constexpr int kBlockBytes = kColumns * kDepth * 2;
  static constexpr int kMostStages = 16;
  static constexpr int kBarrierBytes = 2 * kMostStages * 8;
  static constexpr int kSharedBytes = kMemory;
  static constexpr int kRingBytes = kSharedBytes - kSharedAlign - kBarrierBytes;
  static constexpr int kPitch = kColumns + 8;  // of the sums, in floats: spreads rows over banks
  static_assert(kTokens * kPitch * 4 <= kRingBytes);
};
// Of a small share, in half of the memory and a little more: two such CTAs would crowd on one
// multiprocessor and leave another idle.
template <int kColumns>
using SmallStream = StreamTile<kColumns, 128 * 1024>;

// The kernels: X(family, rows x columns of a tile, the tile). The columns are those of the
// accumulators, twice the output's in a gated kernel. There are so many because the last wave of
// wide tiles can leave most of a GPU idle.
#define KILN_GATED_PREFILLS(X)          \
  X(prefill, 128x96, PingPong<96>)      \
  X(prefill, 128x128, PingPong<128>)    \
  X(prefill, 128x160, PingPong<160>)    \
  X(prefill, 128x192, PingPong<192>)    \
  X(prefill, 128x224, Cooperative<224>) \
  X(prefill, 128x256, Cooperative<256>)
#define KILN_PLAIN_PREFILLS(X) \
  KILN_GATED_PREFILLS(X)       \
  X(prefill, 128x112, PingPong<112>)
// Tokens and columns of the swapped tiles, and the kernels that have them.
#define KILN_SWAPPED_TOKENS(X, columns) \
  X(96, columns)                        \
  X(104, columns)                       \
  X(112, columns)                       \
  X(120, columns)                       \
  X(128, columns)                       \
  X(136, columns)                       \
  X(144, columns)                       \
  X(152, columns)                       \
  X(160, columns)                       \
  X(168, columns)                       \
  X(176, columns)                       \
  X(184, columns)                       \
  X(192, columns)
#define KILN_SWAPPED_TILES(X) KILN_SWAPPED_TOKENS(X, 128) KILN_SWAPPED_TOKENS(X, 256)
#define KILN_SWAPPED_KERNELS(X)    \
  X(swapped, 128, AnySwapped<128>) \
  X(swapped, 256, AnySwapped<256>)
// Of training_forward, which keeps the sums. 128 x 160 and 128 x 192 fit, too, and are slower.
#define KILN_KEPT_PREFILLS(X)        \
  X(prefill, 128x128, PingPong<128>) \
  X(prefill, 128x256, Cooperative<256>)
// Of backward's products, some of whose operands are turned: of tokens, and those of weights.
#define KILN_WEIGHT_GRADIENTS(X)       \
  X(gradients, 128x128, PingPong<128>) \
  X(gradients, 128x192, PingPong<192>) \
  X(gradients, 128x256, Cooperative<256>)
#define KILN_TOKEN_GRADIENTS(X) \
  KILN_WEIGHT_GRADIENTS(X)      \
  X(gradients, 256x192, Tall<192>)
// And of the product whose epilogue is the gated unit's backward.
#define KILN_GATED_GRADIENTS(X) X(gradients, 128x256, GatedGradient)
#define KILN_BOTH_DECODES(X)          \
  X(decode, 64x64, Tokens64<64>)      \
  X(decode, 128x64, Tokens128By2<64>) \
  X(decode, 192x128, Tokens192<128>)
#define KILN_GATED_DECODES(X)        \
  KILN_BOTH_DECODES(X)               \
  X(decode, 192x160, Tokens192<160>) \
  X(decode, 192x224, Tokens192<224>)
#define KILN_PLAIN_DECODES(X)          \
  KILN_BOTH_DECODES(X)                 \
  X(decode, 128x80, Tokens128<80>)     \
  X(decode, 128x96, Tokens128<96>)     \
  X(decode, 192x64, Tokens192<64>)     \
  X(decode, 192x80, Tokens192<80>)     \
  X(decode, 192x96, Tokens192<96>)     \
  X(decode, 256x64, Tokens256<64>)     \
  X(decode, 144x128, SwappedDown<144>) \
  X(decode, 144x192, WideSwappedDown)  \
  X(decode, 152x128, SwappedDown<152>) \
  X(decode, 160x128, SwappedDown<160>)
#define KILN_GATED_STREAMS(X)             \
  X(stream, 64x32_small, SmallStream<32>) \
  X(stream, 64x48_small, SmallStream<48>) \
  X(stream, 64x64_small, SmallStream<64>) \
  X(stream, 64x32, StreamTile<32>)        \
  X(stream, 64x48, StreamTile<48>)        \
  X(stream, 64x64, StreamTile<64>)        \
  X(stream, 64x96, StreamTile<96>)        \
  X(stream, 64x128, StreamTile<128>)      \
  X(stream, 64x144, StreamTile<144>)      \
  X(stream, 64x192, StreamTile<192>)      \
  X(stream, 64x224, StreamTile<224>)
#define KILN_PLAIN_STREAMS(X)      \
  X(stream, 64x8, StreamTile<8>)   \
  X(stream, 64x16, StreamTile<16>) \
  X(stream, 64x24, StreamTile<24>) \
  X(stream, 64x32, StreamTile<32>) \
  X(stream, 64x40, StreamTile<40>) \
  X(stream, 64x48, StreamTile<48>)
#define KILN_GATED_TILES(X) KILN_GATED_PREFILLS(X) KILN_GATED_DECODES(X) KILN_GATED_STREAMS(X)
#define KILN_PLAIN_TILES(X) KILN_PLAIN_PREFILLS(X) KILN_PLAIN_DECODES(X) KILN_PLAIN_STREAMS(X)

// What a source makes of them: for both types a kernel <family>_<kind>_<type>_<tile>. `variant`
// says what the family's function is to be beside tile and type.
#define KILN_KERNEL(name, family, Element, TileShape, variant, Arguments)            \
  extern "C" __global__ void __launch_bounds__(gated_mlp::TileShape::kThreads,       \
                                               gated_mlp::TileShape::kCtas)          \
      name(const __grid_constant__ gated_mlp::Arguments arguments) {                 \
    gated_mlp::family<gated_mlp::TileShape, gated_mlp::Element, variant>(arguments); \
  }
#define KILN_KERNEL_PAIR(family, kind, variant, Arguments, shape, Tile)                   \
  KILN_KERNEL(family##_##kind##_bf16_##shape, family, Bfloat16, Tile, variant, Arguments) \
  KILN_KERNEL(family##_##kind##_f16_##shape, family, Float16, Tile, variant, Arguments)
#define KILN_GATED_KERNELS(family, shape, Tile) \
  KILN_KERNEL_PAIR(family, gated, true, Sm90Arguments, shape, Tile)
#define KILN_PLAIN_KERNELS(family, shape, Tile) \
  KILN_KERNEL_PAIR(family, plain, false, Sm90Arguments, shape, Tile)
#define KILN_KEPT_KERNELS(family, shape, Tile) \
  KILN_KERNEL_PAIR(family, kept, true, Sm90KeptArguments, shape, Tile)

}  // namespace gated_mlp
