// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the sm_90a kernels, and the tile shapes that host and device agree on. Included by
// both sides; NVRTC has no <stdint.h>, hence the plain types.
#pragma once

namespace geglu_mlp {

// A CUtensorMap: opaque, made by the driver, read by the copy engine from the kernel's parameters.
struct alignas(128) TensorMap {
  unsigned char opaque[128];
};

// out[m, n] = epilogue(a[m, k] b^T), as GemmArguments, through tensor maps.
struct Sm90Arguments {
  TensorMap a;    // x or h
  TensorMap b0;   // gate or down
  TensorMap b1;   // up; unused in a plain kernel
  TensorMap out;  // prefill kernels only
  const void* bias0;
  const void* bias1;
  void* out_data;  // decode kernels only
  long long m;
  long long n;
  unsigned k_blocks;  // of kDepth; the last one may be partly outside and is then filled with zeros
  unsigned tiles_m;   // prefill: of two CTAs' rows
  unsigned tiles_n;
  unsigned panel;   // tiles in a column panel (tile.h)
  unsigned a_rows;  // decode: rows of a that one copy brings; at most the tile's
  int exact;        // gelu by erf instead of tanh
};

inline constexpr int kDepth = 64;         // k of a stage: 128 bytes, the width of the swizzle
inline constexpr int kPanelColumns = 32;  // of output that are staged and stored at once

// Large M. Two consumer warpgroups of kWarpgroupRows x kColumns accumulators each: one tile of both
// (cooperative), or each its own tile in turns, so that one multiplies while the other is in its
// epilogue (ping-pong). Two CTAs of a cluster lie below each other and share b by multicast.
template <int kWarpgroupRowsValue, int kColumnsValue, int kStagesValue, bool kPingPongValue>
struct PrefillTile {
  static constexpr int kWarpgroupRows = kWarpgroupRowsValue;
  static constexpr int kColumns = kColumnsValue;
  static constexpr int kStages = kStagesValue;
  static constexpr bool kPingPong = kPingPongValue;
  static constexpr int kRows = kPingPong ? kWarpgroupRows : 2 * kWarpgroupRows;  // of one CTA
  static constexpr int kThreads = 3 * 128;
  static constexpr int kABytes = kRows * kDepth * 2;
  static constexpr int kBBytes = kColumns * kDepth * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kPanelBytes = kWarpgroupRows * kPanelColumns * 2;
  static constexpr int kPanelsAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kPanelsAt + 2 * 2 * kPanelBytes;  // two a warpgroup
  static constexpr int kBarriers = 2 * kStages + 2;
  static constexpr int kSharedBytes = 1024 + kBarriersAt + kBarriers * 8;  // 1024: to align
};
using Prefill128x192 = PrefillTile<128, 192, 4, true>;
using Prefill128x128 = PrefillTile<128, 128, 5, true>;
using Prefill128x256 = PrefillTile<64, 256, 4, false>;

// Small M. kTokens rows of a, stale above a_rows, against kColumns rows of b; the CTAs of a cluster
// split k and add their sums in the order of their ranks.
template <int kTokensValue, int kColumnsValue, int kStagesValue, int kCtasValue>
struct DecodeTile {
  static constexpr int kTokens = kTokensValue;
  static constexpr int kColumns = kColumnsValue;
  static constexpr int kStages = kStagesValue;
  static constexpr int kCtas = kCtasValue;               // that share a multiprocessor
  static constexpr int kConsumers = kTokens / 64 * 128;  // threads
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kABytes = kTokens * kDepth * 2;
  static constexpr int kBBytes = kColumns * kDepth * 2;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kBarriersAt = kStages * kStageBytes;
  static constexpr int kSharedBytes = 1024 + kBarriersAt + 2 * kStages * 8;
  // The sums that a CTA gets reuse the stages: of each rank, kTokens rows of its share of the
  // columns. Eight floats more a row let the eight rows that a warp writes at once lie in different
  // banks.
  static constexpr int kMostRanks = 8;
  static constexpr int kRowPadding = 8;
  static_assert(kTokens * (kColumns + kMostRanks * kRowPadding) * 4 <= kBarriersAt);
  static_assert(kCtas * (kSharedBytes + 1024) <= 228 * 1024);  // CUDA reserves 1 KiB a CTA
};
using Decode64x64 = DecodeTile<64, 64, 6, 2>;
using Decode64x128 = DecodeTile<64, 128, 4, 2>;
using Decode128x64 = DecodeTile<128, 64, 4, 2>;
using Decode128x128 = DecodeTile<128, 128, 3, 2>;
using Decode128x128Deep = DecodeTile<128, 128, 6, 1>;

}  // namespace geglu_mlp
