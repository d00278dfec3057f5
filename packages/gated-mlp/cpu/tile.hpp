// SPDX-License-Identifier: Apache-2.0
//
// Tile: a product of two matrices as the CPU's GEMMs compute it: operands are packed into fp32
// panels, and a tile is the product of two panels. Pure functions.
#pragma once

#include <stdint.h>

#include "cpu/vector.hpp"

namespace gated_mlp::cpu {

// The register tile: kTileRows x kTileVectors accumulators, one vector of B each, one broadcast.
#if defined(__AVX512F__)
inline constexpr int kTileRows = 14;  // 28 of 32 registers
inline constexpr int kTileVectors = 2;
#elif defined(__AVX2__)
inline constexpr int kTileRows = 6;  // 12 of 16
inline constexpr int kTileVectors = 2;
#else
inline constexpr int kTileRows = 8;  // 24 of 32
inline constexpr int kTileVectors = 3;
#endif
inline constexpr int kTileColumns = kTileVectors * kLanes;

// A multiple of every kTileRows.
inline constexpr int64_t kBlockRows = 1008;
// k is summed in runs of this: rounding grows with its root.
inline constexpr int64_t kSumDepth = 512;
// Below, calling a thread costs more than it saves.
inline constexpr double kFlopsPerThread = 4e6;
inline constexpr double kBytesPerThread = 256 << 10;
static_assert(kBlockRows % kTileRows == 0);

constexpr int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
template <class Number>
constexpr Number larger(Number a, Number b) {
  return a > b ? a : b;
}
// Parts of at most `unit` each.
constexpr int64_t parts_of(int64_t extent, int64_t unit) {
  return (extent + unit - 1) / unit;
}
constexpr int64_t round_up(int64_t value, int64_t unit) {
  return parts_of(value, unit) * unit;
}

// Writes `columns` <= kLanes columns of a strip, kUnit values each, one after the other:
// to[c][r] = strip[r][c]. A column's vectors may run over its end into the next one, which is
// written after it; what lies behind the last one is not touched.
template <int kUnit>
struct Strip {
  static constexpr int kBlocks = (kUnit + kLanes - 1) / kLanes;
  Floats rows[kBlocks][kLanes];

  void write(int64_t columns, float* to) {
    for (int block = 0; block < kBlocks; ++block) transpose(rows[block]);
    constexpr int kRest = kUnit % kLanes;
    for (int64_t c = 0; c < columns; ++c, to += kUnit) {
      for (int block = 0; block < kBlocks; ++block) {
        float* at = to + block * kLanes;
        if (kRest != 0 && block == kBlocks - 1 && c == columns - 1) {
          store_some(at, rows[block][c], kRest);
        } else {
          store(at, rows[block][c]);
        }
      }
    }
  }
};

// packed[k][r] = rows[r * stride + k], kUnit rows wide; rows beyond `count` are zero.
template <int kUnit, class T>
void pack_rows(const T* rows, int64_t stride, int64_t count, int64_t k, float* packed) {
  const int64_t present = smaller(count, kUnit);
  for (int64_t at = 0; at < k; at += kLanes) {
    const int64_t left = smaller(k - at, kLanes);
    Strip<kUnit> strip = {};
    for (int64_t r = 0; r < present; ++r) {
      strip.rows[r / kLanes][r % kLanes] = load_up_to(rows + r * stride + at, left);
    }
    strip.write(left, packed + at * kUnit);
  }
}

// The same of a matrix that lies the other way: packed[k][r] = columns[k * stride + r]. As above, a
// vector may run over its step's end into the next one.
template <int kUnit, class T>
void pack_columns(const T* columns, int64_t stride, int64_t count, int64_t k, float* packed) {
  for (int64_t step = 0; step < k; ++step, columns += stride, packed += kUnit) {
    for (int r = 0; r < kUnit; r += kLanes) {
      const int64_t left = count - r;
      const Floats value = left > 0 ? load_up_to(columns + r, left) : Floats{};
      store_up_to(packed + r, value, step + 1 < k ? kLanes : kUnit - r);
    }
  }
}

struct alignas(64) TileSums {
  float at[kTileRows][kTileColumns];
};

// sums = A B^T, or gets that added, for kRows rows of one packed panel of A, and one panel of B. A
// run of kSumDepth or less of k.
template <int kRows>
[[gnu::noinline]] void multiply_rows(const float* a, const float* b, int64_t depth, bool adds,
                                     TileSums& sums) {
  Floats sum[kRows][kTileVectors] = {};
  for (int64_t step = 0; step < depth; ++step) {
    // Panels are longer than L1 and come from L2; the hardware alone is late (2% of the time).
    __builtin_prefetch(a + 32 * kTileRows);
    __builtin_prefetch(b + 16 * kTileColumns);
    if (kVectorBytes == 64) __builtin_prefetch(b + 16 * kTileColumns + kLanes);
    Floats column[kTileVectors];
#pragma clang loop unroll(full)
    for (int j = 0; j < kTileVectors; ++j) column[j] = load(b + j * kLanes);
#pragma clang loop unroll(full)
    for (int i = 0; i < kRows; ++i) {
#pragma clang loop unroll(full)
      for (int j = 0; j < kTileVectors; ++j) sum[i][j] += column[j] * a[i];
    }
    a += kTileRows;
    b += kTileColumns;
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < kRows; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < kTileVectors; ++j) {
      float* to = sums.at[i] + j * kLanes;
      store(to, adds ? load(to) + sum[i][j] : sum[i][j]);
    }
  }
}

// Calls function.operator()<n>() for the smaller n of kMost and rows.
template <int kMost, class Function>
void with_rows(int64_t rows, const Function& function) {
  if constexpr (kMost > 1) {
    if (rows < kMost) return with_rows<kMost - 1>(rows, function);
  }
  function.template operator()<kMost>();
}

// The same for the first `rows` > 0 rows of the panel: of the last one not all may be there.
inline void multiply_tile(const float* a, const float* b, int64_t depth, int64_t rows, bool adds,
                          TileSums& sums) {
  with_rows<kTileRows>(rows, [&]<int kRows>() { multiply_rows<kRows>(a, b, depth, adds, sums); });
}

}  // namespace gated_mlp::cpu
