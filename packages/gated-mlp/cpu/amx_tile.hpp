// SPDX-License-Identifier: Apache-2.0
//
// AMX tile: the tile registers of a CPU with AMX. Each is 16 rows of 64 bytes: 16 x 16 float32, or
// 16 x 16 pairs of bfloat16. A product adds the products of pairs to its sums in float32, rounding
// to nearest even; denormal numbers count as zero. The build's prepare() has asked the system for
// the registers.
#pragma once

#include <stdint.h>

#if defined(__AMX_BF16__)
#include <immintrin.h>

namespace gated_mlp::cpu {

// This thread's registers, while it lives.
class AmxTiles {
 public:
  AmxTiles() {
    struct {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } layout;
    static_assert(sizeof(layout) == 64);
    _tile_loadconfig(&layout);
  }
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  template <int kTile>
  void clear() {
    _tile_zero(kTile);
  }
  template <int kTile>
  void load(const void* rows, int64_t stride) {  // in bytes, from row to row
    _tile_loadd(kTile, rows, static_cast<size_t>(stride));
  }
  // Of what is not read again soon: it leaves L1 to the rest.
  template <int kTile>
  void load_once(const void* rows, int64_t stride) {
    _tile_stream_loadd(kTile, rows, static_cast<size_t>(stride));
  }
  template <int kTile>
  void store(float (&to)[16][16]) {
    _tile_stored(kTile, to, 64);
  }
  // sums[i][j] += the products of a's row i, of 16 pairs, with b's column j.
  template <int kSums, int kA, int kB>
  void add_products() {
    _tile_dpbf16ps(kSums, kA, kB);
  }
};

}  // namespace gated_mlp::cpu
#endif
