// SPDX-License-Identifier: Apache-2.0
#include "cpu/gemm.hpp"

#include "cpu/amx.hpp"
#include "cpu/amx_tile.hpp"
#include "cpu/dots.hpp"
#include "cpu/panels.hpp"
#include "cpu/threads.hpp"
#include "cpu/tile.hpp"
#include "cpu/vector.hpp"

namespace gated_mlp::cpu {
namespace {

struct Sizes {
  int64_t rows;  // of a block, padded to tiles
  int64_t x;     // floats
  int64_t h;     // floats
  PanelScratch scratch;
};

Sizes sizes_of(int64_t m, int64_t d, int64_t h) {
  const int64_t rows = m < kBlockRows ? round_up(m, kTileRows) : kBlockRows;
  return {rows, rows * d, rows * h,
          panel_scratch(rows / kTileRows, parts_of(larger(d, h), kTileColumns), 2,
                        threads_worth(m, d, h, sizeof(float), 1))};
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

// One block of rows, [first, first + rows) of x and y. Every thread of the team works through all
// of it.
template <class T>
struct Block {
  const Mlp<T>& call;
  int64_t first;
  int64_t rows;
  float* x;
  float* h;
  float* scratch;  // of this thread
  int threads;
  Team& team;

  void pack_x() const {
    team.for_each_item(parts_of(rows, kTileRows), [&](int64_t panel) {
      const int64_t row = first + panel * kTileRows;
      pack_rows<kTileRows>(call.x + row * call.d, call.d, call.m - row, call.d,
                           x + panel * kTileRows * call.d);
    });
  }

  void gated() const {
    multiply_panels<2>(
        team, threads, scratch, x, rows, call.h, call.d,
        [&](int matrix, int64_t column, int64_t from, int64_t count, float* to) {
          const T* weights = (matrix == 0 ? call.gate : call.up) + column * call.d + from;
          pack_rows<kTileColumns>(weights, call.d, call.h - column, count, to);
        },
        [&](int64_t i, int64_t column, const TileSums* sums) {
          with_gate(call.gating.gate, [&]<Gate kGate>() {
            write_gated<kGate>(call, sums[0], sums[1], first + i * kTileRows, column,
                               h + i * kTileRows * call.h);
          });
        });
  }

  void plain() const {
    multiply_panels<1>(
        team, threads, scratch, h, rows, call.d, call.h,
        [&](int, int64_t column, int64_t from, int64_t count, float* to) {
          pack_rows<kTileColumns>(call.down + column * call.h + from, call.h, call.d - column,
                                  count, to);
        },
        [&](int64_t i, int64_t column, const TileSums* sums) {
          write_plain(call, sums[0], first + i * kTileRows, column);
        });
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
  return larger(bytes, 4 * static_cast<size_t>(sizes.scratch.all() + sizes.x + sizes.h));
}

template <class T>
void mlp(const Mlp<T>& call, void* workspace) {
  if (call.m <= kMostDotRows<T> || call.invariant) {
    mlp_by_dots(call, workspace);
    return;
  }
  const Sizes sizes = sizes_of(call.m, call.d, call.h);
  float* x = static_cast<float*>(workspace) + sizes.scratch.all();
  float* h = x + sizes.x;
  const int threads = threads_for(threads_worth(call), sizes.scratch.threads, call.threads);
  int taken = 0;
  run_team(threads, [&](Team& team) {
    float* mine = sizes.scratch.take(workspace, taken);
    for (int64_t row = 0; row < call.m; row += kBlockRows) {
      const Block<T> block = {call,    row, smaller(call.m - row, kBlockRows), x, h, mine,
                              threads, team};
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
