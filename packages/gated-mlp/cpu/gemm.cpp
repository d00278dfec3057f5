// SPDX-License-Identifier: Apache-2.0
#include "cpu/gemm.hpp"

#include "cpu/amx.hpp"
#include "cpu/amx_tile.hpp"
#include "cpu/dots.hpp"
#include "cpu/threads.hpp"
#include "cpu/tile.hpp"
#include "cpu/vector.hpp"

namespace gated_mlp::cpu {
namespace {

struct Sizes {
  int64_t rows;     // of a block, padded to tiles
  int64_t x;        // floats
  int64_t h;        // floats
  int64_t weights;  // floats
};

Sizes sizes_of(int64_t m, int64_t d, int64_t h) {
  const int64_t rows = m < kBlockRows ? round_up(m, kTileRows) : kBlockRows;
  const int64_t gated = 2 * columns_at_once(h, d, 2, kPackedWeights) * d;
  const int64_t plain = columns_at_once(d, h, 1, kPackedWeights) * h;
  return {rows, rows * d, rows * h, larger(gated, plain)};
}

// h of one tile into its packed panel: packed[column][row]. `row` is that of x.
template <Gate kGate, class T>
void write_gated(const Mlp<T>& call, const TileSums& gate, const TileSums& up, int64_t row,
                 int64_t column, float* panel) {
  for (int j = 0; j < kTileColumns && column + j < call.h; j += kLanes) {
    const int64_t left = call.h - column - j;
    const Floats gate_bias = bias_vector(call.gate_bias, column + j, call.h);
    const Floats up_bias = bias_vector(call.up_bias, column + j, call.h);
    Strip<kTileRows> strip = {};
    for (int64_t i = 0; i < kTileRows && row + i < call.m; ++i) {
      const Floats g = load(gate.at[i] + j) + gate_bias;
      const Floats u = load(up.at[i] + j) + up_bias;
      strip.rows[i / kLanes][i % kLanes] = gated<kGate>(g, u, call.gating.limit);
      if (call.gate_out == nullptr) continue;
      const int64_t at = (row + i) * call.h + column + j;
      store_up_to(call.gate_out + at, g, left);
      store_up_to(call.up_out + at, u, left);
    }
    strip.write(smaller(left, kLanes), panel + (column + j) * kTileRows);
  }
}

template <class T>
void write_plain(const Mlp<T>& call, const TileSums& sums, int64_t row, int64_t column) {
  for (int j = 0; j < kTileColumns && column + j < call.d; j += kLanes) {
    const Floats bias = bias_vector(call.down_bias, column + j, call.d);
    for (int64_t i = 0; i < kTileRows && row + i < call.m; ++i) {
      write_y(call, row + i, column + j, load(sums.at[i] + j), bias, call.d - column - j);
    }
  }
}

// The most items that a region of a block has.
int64_t most_items(int64_t panels, int64_t d, int64_t h) {
  const int64_t gated = columns_at_once(h, d, 2, kPackedWeights);
  const int64_t plain = columns_at_once(d, h, 1, kPackedWeights);
  return larger(larger(gated, plain) / kTileColumns, int64_t{1}) * panels;
}

// One block of rows, [first, first + rows) of x and y. Every thread of the team works through all
// of it.
template <class T>
struct Block {
  const Mlp<T>& call;
  int64_t first;
  int64_t panels;  // of kTileRows rows
  float* x;
  float* h;
  float* weights;
  int64_t packed_bytes;  // of weights, at one time
  Team& team;

  void pack_x() const {
    team.for_each_item(panels, [&](int64_t panel) {
      const int64_t row = first + panel * kTileRows;
      pack_rows<kTileRows>(call.x + row * call.d, call.d, call.m - row, call.d,
                           x + panel * kTileRows * call.d);
    });
  }

  // `count` of k of panel number `panel` of those that begin at `column`.
  static void pack_weights(const T* matrix, int64_t column, int64_t panel, int64_t all_columns,
                           int64_t k, int64_t from, int64_t count, float* packed) {
    const int64_t at = column + panel * kTileColumns;
    pack_rows<kTileColumns>(matrix + at * k + from, k, all_columns - at, count,
                            packed + (panel * k + from) * kTileColumns);
  }

  void gated() const {
    const int64_t at_once = columns_at_once(call.h, call.d, 2, packed_bytes);
    for (int64_t column = 0; column < call.h; column += at_once) {
      const int64_t columns = smaller(round_up(call.h - column, kTileColumns), at_once);
      float* up_weights = weights + at_once * call.d;
      const int64_t weight_panels = columns / kTileColumns;
      team.for_each_run(
          2 * weight_panels, call.d, kPackDepth, [&](int64_t panel, int64_t from, int64_t count) {
            if (panel < weight_panels) {
              pack_weights(call.gate, column, panel, call.h, call.d, from, count, weights);
            } else {
              pack_weights(call.up, column, panel - weight_panels, call.h, call.d, from, count,
                           up_weights);
            }
          });
      team.for_each_pair(panels, weight_panels, kGroup, [&](int64_t i, int64_t panel) {
        const int64_t offset = panel * kTileColumns * call.d;
        const float* a = x + i * kTileRows * call.d;
        const int64_t row = first + i * kTileRows;
        TileSums gate_sums;
        TileSums up_sums;
        multiply_tile(a, weights + offset, call.d, call.m - row, gate_sums);
        multiply_tile(a, up_weights + offset, call.d, call.m - row, up_sums);
        with_gate(call.gating.gate, [&]<Gate kGate>() {
          write_gated<kGate>(call, gate_sums, up_sums, row, column + panel * kTileColumns,
                             h + i * kTileRows * call.h);
        });
      });
    }
  }

  void plain() const {
    const int64_t at_once = columns_at_once(call.d, call.h, 1, packed_bytes);
    for (int64_t column = 0; column < call.d; column += at_once) {
      const int64_t columns = smaller(round_up(call.d - column, kTileColumns), at_once);
      const int64_t weight_panels = columns / kTileColumns;
      team.for_each_run(
          weight_panels, call.h, kPackDepth, [&](int64_t panel, int64_t from, int64_t count) {
            pack_weights(call.down, column, panel, call.d, call.h, from, count, weights);
          });
      team.for_each_pair(panels, weight_panels, kGroup, [&](int64_t i, int64_t panel) {
        const int64_t row = first + i * kTileRows;
        TileSums sums;
        multiply_tile(h + i * kTileRows * call.h, weights + panel * kTileColumns * call.h, call.h,
                      call.m - row, sums);
        write_plain(call, sums, row, column + panel * kTileColumns);
      });
    }
  }
};

}  // namespace

size_t mlp_workspace_bytes(int64_t m, int64_t d, int64_t h) {
  // Beyond this no tensor of such a shape exists, and the sums below would overflow.
  constexpr int64_t kMostExtent = int64_t{1} << 40;
  if (d > kMostExtent || h > kMostExtent) return SIZE_MAX;
  size_t bytes = dots_workspace_bytes(m, d, h);
#if defined(__AMX_BF16__)
  bytes = larger(bytes, amx_workspace_bytes(m, d, h));
#endif
  if (m <= kMostFloatDotRows) return bytes;
  const Sizes sizes = sizes_of(m, d, h);
  return larger(bytes, 4 * static_cast<size_t>(sizes.x + sizes.h + sizes.weights));
}

template <class T>
void mlp(const Mlp<T>& call, void* workspace) {
  if (call.m <= kMostDotRows<T> || call.invariant) {
    mlp_by_dots(call, workspace);
    return;
  }
  const Sizes sizes = sizes_of(call.m, call.d, call.h);
  float* x = static_cast<float*>(workspace);
  float* h = x + sizes.x;
  float* weights = h + sizes.h;
  const int64_t items = most_items(sizes.rows / kTileRows, call.d, call.h);
  const int threads = threads_for(threads_worth(call), items, call.threads);
  run_team(threads, [&](Team& team) {
    for (int64_t row = 0; row < call.m; row += kBlockRows) {
      const int64_t rows = smaller(call.m - row, kBlockRows);
      const Block<T> block = {call, row,     parts_of(rows, kTileRows), x,
                              h,    weights, packed_weights(threads),   team};
      block.pack_x();
      block.gated();
      block.plain();
    }
  });
}

#if defined(__AMX_BF16__)
template <>
void mlp(const Mlp<Bfloat16>& call, void* workspace) {
  mlp_by_amx<AmxTiles>(call, workspace);
}
#else
template void mlp(const Mlp<Bfloat16>&, void*);
#endif
template void mlp(const Mlp<float>&, void*);
template void mlp(const Mlp<Float16>&, void*);

}  // namespace gated_mlp::cpu
