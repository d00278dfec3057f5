// SPDX-License-Identifier: Apache-2.0
//
// AMX: the CPU's forward in bfloat16 by tile registers (cpu_amx_tile.hpp). The tokens are packed,
// 16 in a panel, so that a tile of them is one piece of memory. The weights are read where they
// are, 16 rows and 32 values of k at a time, if there are few tokens; for many, a run of k is
// copied into L1 first. h is written in the tokens' form, rounded to bfloat16. A sum runs through k
// in order, whatever the number of tokens.
//
//   a tile of weights   | 16 rows, 32 values of k each |
//   a tile of tokens    | 16 pairs of k, each of 16 tokens |
//   registers           | 4 of sums: 2 of weights x 2 of tokens | 2 of weights | 2 of tokens |
//
// Tiles: AmxTiles, or what a test has instead.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpu/gemm.hpp"
#include "cpu/threads.hpp"

namespace gated_mlp::cpu {

inline constexpr int64_t kAmxSide = 16;               // weight rows, or tokens, of a tile
inline constexpr int64_t kAmxDepth = 32;              // values of k of a tile
inline constexpr int64_t kAmxRun = 512;               // values of k: two copies, 32 KiB, stay in L1
inline constexpr int64_t kAmxInPlace = 128;           // tokens for which copying does not pay
inline constexpr int64_t kAmxItemBytes = 1600 << 10;  // an item's tokens stay in L2
inline constexpr int64_t kAmxLeastItem = 128;         // tokens of an item, whatever k is
inline constexpr int64_t kAmxMostItem = 512;          // its sums are on the stack
inline constexpr int64_t kAmxBlock = 1024;            // tokens that the workspace holds at one time
inline constexpr double kAmxSpeedup = 6;  // of float32 arithmetic: what a thread is worth
static_assert(kAmxMostItem % (2 * kAmxSide) == 0 && kAmxBlock % kAmxSide == 0);

constexpr int64_t amx_block_tokens(int64_t m) {
  return round_up(smaller(m, kAmxBlock), kAmxSide);
}

constexpr size_t amx_workspace_bytes(int64_t m, int64_t d, int64_t h) {
  return sizeof(Bfloat16) * static_cast<size_t>(amx_block_tokens(m) *
                                                (round_up(d, kAmxDepth) + round_up(h, kAmxDepth)));
}

// Tokens of an item, of `count` > 0 of k values each: what there is in parts of about one size.
constexpr int64_t amx_item_tokens(int64_t count, int64_t k) {
  const int64_t row = static_cast<int64_t>(sizeof(Bfloat16)) * (k > 0 ? k : 1);
  const int64_t most = larger(smaller(kAmxItemBytes / row, kAmxMostItem), kAmxLeastItem);
  return round_up(parts_of(count, parts_of(count, most)), 2 * kAmxSide);
}
static_assert(amx_item_tokens(kAmxBlock, 0) == kAmxMostItem);

// to[j][i] = from[i][j]
inline void transpose_words(const float (&from)[kAmxSide][kAmxSide],
                            float (&to)[kAmxSide][kAmxSide]) {
  for (int64_t i = 0; i < kAmxSide; i += kLanes) {
    for (int64_t j = 0; j < kAmxSide; j += kLanes) {
      Floats words[kLanes];
      for (int64_t l = 0; l < kLanes; ++l) words[l] = load(&from[i + l][j]);
      transpose(words);
      for (int64_t l = 0; l < kLanes; ++l) store(&to[j + l][i], words[l]);
    }
  }
}

// Packed tokens: [panel of 16 tokens][tile of k][pair of k][token][of a pair].
struct AmxTokens {
  Bfloat16* data;
  int64_t k;  // padded to tiles

  Bfloat16* tile(int64_t token, int64_t i) const {
    return data + token / kAmxSide * kAmxSide * k + i / kAmxDepth * kAmxSide * kAmxDepth;
  }

  // The panel from `token` on, of `count` rows of `width` values; the rest is zero.
  void pack(int64_t token, const Bfloat16* rows, int64_t count, int64_t width) const {
    for (int64_t i = 0; i < k; i += kAmxDepth) {
      alignas(64) float words[kAmxSide][kAmxSide] = {};
      alignas(64) float turned[kAmxSide][kAmxSide];
      const auto bytes = static_cast<size_t>(smaller(width - i, kAmxDepth)) * sizeof(Bfloat16);
      for (int64_t j = 0; j < count; ++j) __builtin_memcpy(words[j], rows + j * width + i, bytes);
      transpose_words(words, turned);
      memcpy(tile(token, i), turned, sizeof(turned));
    }
  }
};

struct alignas(64) AmxCopy {
  Bfloat16 tiles[kAmxRun / kAmxDepth][kAmxSide][kAmxDepth];
};

// Tiles of weights, one after the other along k.
struct AmxTileRow {
  const Bfloat16* first;
  int64_t step;    // values from one tile to the next
  int64_t stride;  // bytes from one row of a tile to the next
};

// A matrix of weights: rows of k values. 16 of them from `row` on.
struct AmxWeights {
  const Bfloat16* data;
  int64_t rows, k;
  int64_t row;

  // The tiles of a run: where they are, unless a copy is wanted or a tile goes beyond the matrix.
  AmxTileRow run(int64_t from, int64_t to, bool copied, AmxCopy& copy) const {
    if (!copied && row + kAmxSide <= rows && to <= k) {
      return {data + row * k + from, kAmxDepth, k * static_cast<int64_t>(sizeof(Bfloat16))};
    }
    for (int64_t j = 0; j < kAmxSide; ++j) copy_row(row + j, from, to, j, copy);
    return {&copy.tiles[0][0][0], kAmxSide * kAmxDepth, sizeof(copy.tiles[0][0])};
  }

  // Row number j of the copy's tiles, with zeros beyond the matrix.
  void copy_row(int64_t one, int64_t from, int64_t to, int64_t j, AmxCopy& copy) const {
    const int64_t end = one < rows ? smaller(to, k) : from;
    for (int64_t i = from; i < to; i += kAmxDepth) {
      Bfloat16(&values)[kAmxDepth] = copy.tiles[(i - from) / kAmxDepth][j];
      if (i + kAmxDepth <= end) {
        memcpy(values, data + one * k + i, sizeof(values));
        continue;
      }
      memset(values, 0, sizeof(values));
      if (i < end) {
        __builtin_memcpy(values, data + one * k + i,
                         static_cast<size_t>(end - i) * sizeof(Bfloat16));
      }
    }
  }
};

// An item's sums: of two tiles of weights, [weight row][token].
struct alignas(64) AmxSums {
  float at[kAmxMostItem / kAmxSide][2][kAmxSide][kAmxSide];
};

// sums += the products of two rows of tiles with one or two panels of tokens, over a run of k.
template <int kPanels, class Tiles>
void add_amx_run(Tiles& tiles, const AmxTokens& tokens, int64_t token, const AmxTileRow& one,
                 const AmxTileRow& other, int64_t from, int64_t to,
                 float (*sums)[2][kAmxSide][kAmxSide]) {
  const auto begin = [&]<int kTile>(float(&at)[kAmxSide][kAmxSide]) {
    if (from == 0) {
      tiles.template clear<kTile>();
    } else {
      tiles.template load<kTile>(at, sizeof(at[0]));
    }
  };
  begin.template operator()<0>(sums[0][0]);
  begin.template operator()<1>(sums[0][1]);
  if constexpr (kPanels == 2) {
    begin.template operator()<2>(sums[1][0]);
    begin.template operator()<3>(sums[1][1]);
  }
  const Bfloat16* packed = tokens.tile(token, from);
  for (int64_t i = 0; i < (to - from) / kAmxDepth; ++i, packed += kAmxSide * kAmxDepth) {
    tiles.template load<4>(one.first + i * one.step, one.stride);
    tiles.template load<5>(other.first + i * other.step, other.stride);
    tiles.template load_once<6>(packed, 64);
    tiles.template add_products<0, 4, 6>();
    tiles.template add_products<1, 5, 6>();
    if constexpr (kPanels == 2) {
      tiles.template load_once<7>(packed + kAmxSide * tokens.k, 64);
      tiles.template add_products<2, 4, 7>();
      tiles.template add_products<3, 5, 7>();
    }
  }
  tiles.template store<0>(sums[0][0]);
  tiles.template store<1>(sums[0][1]);
  if constexpr (kPanels == 2) {
    tiles.template store<2>(sums[1][0]);
    tiles.template store<3>(sums[1][1]);
  }
}

// The products of an item: `count` tokens from `token` on.
template <class Tiles>
void multiply_amx(Tiles& tiles, const AmxTokens& tokens, int64_t token, int64_t count,
                  const AmxWeights& one, const AmxWeights& other, AmxSums& sums) {
  if (tokens.k == 0) sums = {};
  AmxCopy copies[2];
  for (int64_t from = 0; from < tokens.k; from += kAmxRun) {
    const int64_t to = smaller(from + kAmxRun, tokens.k);
    const AmxTileRow first = one.run(from, to, count > kAmxInPlace, copies[0]);
    const AmxTileRow second = other.run(from, to, count > kAmxInPlace, copies[1]);
    for (int64_t i = 0; i < count; i += 2 * kAmxSide) {
      auto* const at = &sums.at[i / kAmxSide];
      if (count - i > kAmxSide) {
        add_amx_run<2>(tiles, tokens, token + i, first, second, from, to, at);
      } else {
        add_amx_run<1>(tiles, tokens, token + i, first, second, from, to, at);
      }
    }
  }
}

// A block of tokens, from `first` of x and y. Every thread of the team works through all of it.
template <class Tiles>
struct AmxBlock {
  const Mlp<Bfloat16>& call;
  int64_t first;
  int64_t count;
  AmxTokens x;
  AmxTokens h;
  Team& team;
  Tiles& tiles;

  void pack_x() const {
    team.for_each_item(parts_of(count, kAmxSide), [&](int64_t panel) {
      const int64_t token = panel * kAmxSide;
      x.pack(token, call.x + (first + token) * call.d, smaller(count - token, kAmxSide), call.d);
    });
  }

  // Calls function(token, tokens, column) for each item of a product over k: of `unit` columns.
  // Those of the same tokens follow each other.
  template <class Function>
  void for_each_item(int64_t k, int64_t columns, int64_t unit, const Function& function) const {
    const int64_t across = parts_of(columns, unit);
    const int64_t tokens = amx_item_tokens(count, k);
    team.for_each_item(across * parts_of(count, tokens), [&](int64_t item) {
      const int64_t token = item / across * tokens;
      function(token, smaller(count - token, tokens), item % across * unit);
    });
  }

  // Up to h's padding, which is zero.
  void gated() const {
    for_each_item(x.k, h.k, kAmxSide, [&](int64_t token, int64_t tokens, int64_t column) {
      AmxSums sums;
      if (column < call.h) {
        multiply_amx(tiles, x, token, tokens, {call.gate, call.h, call.d, column},
                     {call.up, call.h, call.d, column}, sums);
      }
      with_gate(call.gating.gate, [&]<Gate kGate>() {
        for (int64_t i = 0; i < tokens; i += kAmxSide) {
          write_gated<kGate>(sums.at[i / kAmxSide], token + i, column);
        }
      });
    });
  }

  // h of 16 columns of 16 tokens, and gate_out and up_out of them where they are kept.
  template <Gate kGate>
  void write_gated(float (&sums)[2][kAmxSide][kAmxSide], int64_t token, int64_t column) const {
    Bfloat16* const pairs = h.tile(token, column) + column % kAmxDepth * kAmxSide;
    for (int64_t i = 0; i < kAmxSide; i += 2) {
      for (int64_t j = 0; j < kAmxSide; j += kLanes) {
        store_pairs(pairs + i * kAmxSide + j * 2, gated_column<kGate>(sums, column, i, j),
                    gated_column<kGate>(sums, column, i + 1, j));
      }
    }
    if (call.gate_out == nullptr || column >= call.h) return;
    keep(sums[0], call.gate_out, token, column);
    keep(sums[1], call.up_out, token, column);
  }

  // h of column number i; zero beyond the last one. Adds the biases to the sums.
  template <Gate kGate>
  Floats gated_column(float (&sums)[2][kAmxSide][kAmxSide], int64_t column, int64_t i,
                      int64_t j) const {
    if (column + i >= call.h) return Floats{};
    const Floats g = load(&sums[0][i][j]) + bias_of(call.gate_bias, column + i);
    const Floats u = load(&sums[1][i][j]) + bias_of(call.up_bias, column + i);
    store(&sums[0][i][j], g);
    store(&sums[1][i][j], u);
    return cpu::gated<kGate>(g, u, call.gating.limit);
  }

  void keep(const float (&sums)[kAmxSide][kAmxSide], Bfloat16* out, int64_t token,
            int64_t column) const {
    for_each_vector(sums, token, column, call.h, [&](int64_t row, int64_t at, Floats value) {
      store_up_to(out + row * call.h + at, value, call.h - at);
    });
  }

  void plain() const {
    for_each_item(h.k, call.d, 2 * kAmxSide, [&](int64_t token, int64_t tokens, int64_t column) {
      AmxSums sums;
      // Beyond the last column the same tile again: nobody reads its sums.
      const int64_t other = column + kAmxSide < call.d ? column + kAmxSide : column;
      multiply_amx(tiles, h, token, tokens, {call.down, call.d, call.h, column},
                   {call.down, call.d, call.h, other}, sums);
      for (int64_t i = 0; i < tokens; i += kAmxSide) {
        for (int half = 0; half < 2; ++half) {
          for_each_vector(sums.at[i / kAmxSide][half], token + i, column + half * kAmxSide, call.d,
                          [&](int64_t row, int64_t at, Floats value) {
                            write_y(call, row, at, value, bias_vector(call.down_bias, at, call.d),
                                    call.d - at);
                          });
        }
      }
    });
  }

  // Calls function(row of the call, column, values) for what there is of 16 tokens, turned into
  // rows.
  template <class Function>
  void for_each_vector(const float (&sums)[kAmxSide][kAmxSide], int64_t token, int64_t column,
                       int64_t columns, const Function& function) const {
    alignas(64) float rows[kAmxSide][kAmxSide];
    transpose_words(sums, rows);
    for (int64_t i = 0; i < kAmxSide && token + i < count; ++i) {
      for (int64_t j = 0; j < kAmxSide && column + j < columns; j += kLanes) {
        function(first + token + i, column + j, load(&rows[i][j]));
      }
    }
  }

  static float bias_of(const Bfloat16* bias, int64_t column) {
    return bias == nullptr ? 0.0f : load_one(bias + column);
  }
};

// Threads for a call: one token costs as much as the 16 of a tile.
inline int amx_threads(const Mlp<Bfloat16>& call) {
  Mlp<Bfloat16> whole = call;
  whole.m = round_up(call.m, kAmxSide);
  const int64_t count = smaller(call.m, kAmxBlock);
  const int64_t gated =
      parts_of(call.h, kAmxSide) * parts_of(count, amx_item_tokens(count, call.d));
  const int64_t plain =
      parts_of(call.d, 2 * kAmxSide) * parts_of(count, amx_item_tokens(count, call.h));
  return threads_for(threads_worth(whole, kAmxSpeedup), larger(gated, plain), call.threads);
}

template <class Tiles>
void mlp_by_amx(const Mlp<Bfloat16>& call, void* workspace) {
  const AmxTokens x = {static_cast<Bfloat16*>(workspace), round_up(call.d, kAmxDepth)};
  const AmxTokens h = {x.data + amx_block_tokens(call.m) * x.k, round_up(call.h, kAmxDepth)};
  run_team(amx_threads(call), [&](Team& team) {
    Tiles tiles;
    for (int64_t first = 0; first < call.m; first += kAmxBlock) {
      const AmxBlock<Tiles> block = {call, first, smaller(call.m - first, kAmxBlock), x, h,
                                     team, tiles};
      block.pack_x();
      block.gated();
      block.plain();
    }
  });
}

}  // namespace gated_mlp::cpu
