// SPDX-License-Identifier: Apache-2.0
//
// forward by the tile registers of a CPU with AMX (gated-mlp/cpu/amx_tile.hpp), for any number of
// tokens. Codes become bfloat16, which holds a code less its zero exactly; a group's products are
// added in fp32, and times its scale to the item's sums. x and h are bfloat16; of calls in float16
// they are two of them: the value rounded, and what that leaves out.
//
//   operand      codes of 16 rows and 32 columns, as bfloat16, in the order that a line has them
//   tokens       [panel of 16 tokens][part of the value][32 columns][pair of columns][token][pair]
//   an item      two row tiles, gate's and up's or two of down, times tokens that stay in L2
//   registers    4 of sums: 2 row tiles x 2 panels | 2 of operands | 2 of tokens
//
// An item's sums run through k in order, whatever the number of tokens: a row's bits depend on the
// row alone.
#pragma once

#if defined(__AMX_BF16__)
#include <immintrin.h>

#include "cpu/amx.hpp"
#include "cpu/amx_tile.hpp"
#include "cpu/gate.hpp"
#include "cpu/threads.hpp"
#include "cpu_float8.hpp"
#include "cpu_norm.hpp"
#include "cpu_operands.hpp"

namespace quantized_mlp::cpu {

inline constexpr int64_t kTokens = 512;  // that the workspace holds
inline constexpr int kRun = 8;           // operands along k, of which two runs stay in L1
inline constexpr int kRunOfFew = 4;      // for 32 tokens: some are made while others are multiplied
inline constexpr int64_t kFewTokens = 2 * kAmxSide;
static_assert(kRunOfFew * kDepth % 128 == 0 && kRun % kRunOfFew == 0);  // whole groups

struct Operand {
  __m512i rows[kAmxSide];
};

// From operand number `from` on, an even one, to `to`.
template <Codes kCodes>
void make_operands(const RowTile& rows, int64_t from, int64_t to, Operand* operands) {
  const Making<kCodes> making;
  const __m512i middle = making.less(middle_of(kCodes));
  for (int64_t i = from; i < to; i += 2, operands += 2) {
    for (int r = 0; r < kGroupRows; ++r) {
      Two line[2];
      rows.make_line(making, middle, i, r, line);
      for (int step = 0; step < 2; ++step) {
        operands[step].rows[r] = line[step].low;
        operands[step].rows[r + kGroupRows] = line[step].high;
      }
    }
  }
}

// x or h, in the order of `codes`, whose operands it is multiplied by.
struct Tokens {
  Bfloat16* data;
  int64_t operands;  // along k
  int parts;
  Codes codes;

  static int64_t values(int64_t tokens, int64_t operands, int parts) {
    return round_up(tokens, kAmxSide) * operands * kDepth * parts;
  }
  int64_t part_values() const { return operands * kAmxSide * kDepth; }
  Bfloat16* at(int64_t token, int64_t operand) const {
    return data + token / kAmxSide * parts * part_values() + operand * kAmxSide * kDepth;
  }

  // Columns 2 c and 2 c + 1 of a panel.
  void write(int64_t token, int64_t c, Floats even, Floats odd) const {
    Bfloat16* const to =
        at(token, c / kPairs) + row_of_pair(codes, static_cast<int>(c % kPairs)) * 2 * kAmxSide;
    store_pairs(to, even, odd);
    if (parts == 2) store_pairs(to + part_values(), rest_of(even), rest_of(odd));
  }

  // The 16 tokens of a panel, as FP8.
  template <class T>
  void round(int64_t token, float most) const {
    for (int64_t i = 0; i < kAmxSide; ++i) {
      round_pairs<T>({at(token, 0) + 2 * i, 2 * kAmxSide, kAmxSide * kDepth, part_values()},
                     operands, most);
    }
  }

  // `count` rows of x, of `width` values.
  template <class T>
  void pack(int64_t token, const T* rows, int64_t count, int64_t width) const {
    for (int64_t k = 0; k < operands * kDepth; k += kLanes) {
      Floats words[kLanes] = {};
      for (int64_t i = 0; i < count && k < width; ++i) {
        words[i] = load_up_to(rows + i * width + k, width - k);
      }
      transpose(words);
      for (int i = 0; i < kLanes; i += 2) write(token, (k + i) / 2, words[i], words[i + 1]);
    }
  }
};

// [panel][row tile][row][token]
struct alignas(64) Sums {
  float of[kAmxMostItem / kAmxSide][2][kAmxSide][kAmxSide];
};

// A run of operands of two row tiles.
struct alignas(64) Run {
  Operand operands[2][kRun];
  float scales[2][kRun][kAmxSide];  // of a group
};

// Products of a run's groups on their way to the item's sums. What tile registers stored is read
// one run later: a load waits until it is in the cache.
class Scaling {
 public:
  // Of panels, and of the two row tiles.
  using Products = float[2][2][kAmxSide][kAmxSide];

  // Where those of a group of the next run go.
  Products& of(int64_t group) { return products_[turn_][group]; }

  // They are there: adds those of the run before it.
  void add(const Run& run, int64_t groups, int panels, bool is_first,
           float (*sums)[2][kAmxSide][kAmxSide]) {
    finish();
    memcpy(scales_, run.scales, sizeof(scales_));
    groups_ = groups;
    panels_ = panels;
    is_first_ = is_first;
    sums_ = sums;
    turn_ = 1 - turn_;
  }

  void finish() {
    for (int i = 0; i < panels_; ++i) {
      for (int half = 0; half < 2; ++half) {
        for (int row = 0; row < kAmxSide; ++row) {
          float* const to = sums_[i][half][row];
          Floats sum = is_first_ ? Floats{} : load(to);
          for (int64_t group = 0; group < groups_; ++group) {
            sum += load(products_[1 - turn_][group][i][half][row]) *
                   broadcast(scales_[half][group][row]);
          }
          store(to, sum);
        }
      }
    }
    panels_ = 0;
  }

 private:
  alignas(64) Products products_[2][kRun];
  alignas(64) float scales_[2][kRun][kAmxSide];
  int turn_ = 0;
  int64_t groups_ = 0;
  int panels_ = 0;
  bool is_first_ = true;
  float (*sums_)[2][kAmxSide][kAmxSide] = nullptr;
};

// Sums that begin at 0, or at what they are.
template <int kPanels>
void begin_sums(AmxTiles& tiles, bool at_zero, float (*sums)[2][kAmxSide][kAmxSide]) {
  const auto begin = [&]<int kTile>(float(&at)[kAmxSide][kAmxSide]) {
    at_zero ? tiles.clear<kTile>() : tiles.load<kTile>(at, sizeof(at[0]));
  };
  begin.template operator()<0>(sums[0][0]);
  begin.template operator()<1>(sums[0][1]);
  if constexpr (kPanels == 2) {
    begin.template operator()<2>(sums[1][0]);
    begin.template operator()<3>(sums[1][1]);
  }
}

template <int kPanels>
void store_sums(AmxTiles& tiles, float (*sums)[2][kAmxSide][kAmxSide]) {
  tiles.store<0>(sums[0][0]);
  tiles.store<1>(sums[0][1]);
  if constexpr (kPanels == 2) {
    tiles.store<2>(sums[1][0]);
    tiles.store<3>(sums[1][1]);
  }
}

// Adds the products of operands [from, to) of the run with one or two panels, which are given from
// the run's first column on.
template <int kPanels>
void add_products(AmxTiles& tiles, const Run& run, int64_t from, int64_t to, const Tokens& tokens,
                  const Bfloat16* panel) {
  for (int64_t i = from; i < to; ++i) {
    tiles.load<4>(&run.operands[0][i], sizeof(__m512i));
    tiles.load<5>(&run.operands[1][i], sizeof(__m512i));
    for (int part = 0; part < tokens.parts; ++part) {
      const Bfloat16* const at = panel + part * tokens.part_values() + i * kAmxSide * kDepth;
      tiles.load_once<6>(at, sizeof(__m512i));
      tiles.add_products<0, 4, 6>();
      tiles.add_products<1, 5, 6>();
      if constexpr (kPanels == 2) {
        tiles.load_once<7>(at + tokens.parts * tokens.part_values(), sizeof(__m512i));
        tiles.add_products<2, 4, 7>();
        tiles.add_products<3, 5, 7>();
      }
    }
  }
}

// Two row tiles of one shape and one group, times `count` tokens from `token` on.
class Item {
 public:
  Item(AmxTiles& tiles, const RowTile (&rows)[2], const Tokens& tokens, int64_t token,
       int64_t count)
      : tiles_(tiles),
        rows_(rows),
        tokens_(tokens),
        token_(token),
        count_(count),
        whole_(rows[0].matrix.groups <= 1),
        group_(whole_ ? kRun : (int64_t{1} << rows[0].matrix.shift) / kDepth) {}

  void multiply(Sums& sums) {
    if (tokens_.operands == 0) sums = {};
    // A run is made while the one before it is multiplied.
    Run runs[2];
    const int64_t length = count_ <= kFewTokens ? kRunOfFew : kRun;
    int turn = 0;
    for (int64_t from = 0; from < tokens_.operands; from += length, turn = 1 - turn) {
      if (from == 0) make(runs[0], 0, smaller(length, tokens_.operands));
      const int64_t next = from + length;
      if (next < tokens_.operands) {
        make(runs[1 - turn], next, smaller(length, tokens_.operands - next));
      }
      multiply_run(runs[turn], from, smaller(length, tokens_.operands - from), sums);
    }
    scaling_.finish();
    if (whole_ && rows_[0].matrix.groups == 1) scale_whole(sums);
  }

 private:
  void make(Run& run, int64_t from, int64_t length) const {
    for (int half = 0; half < 2; ++half) {
      with_codes(rows_[half].matrix.kind, [&]<Codes kCodes>() {
        make_operands<kCodes>(rows_[half], from, from + length, run.operands[half]);
      });
      for (int64_t i = 0; i < length && !whole_; i += group_) {
        store(run.scales[half][i / group_], rows_[half].scales_of(from + i));
      }
    }
  }

  void multiply_run(const Run& run, int64_t from, int64_t length, Sums& sums) {
    for (int64_t i = 0; i < count_; i += 2 * kAmxSide) {
      const Bfloat16* const panel = tokens_.at(token_ + i, from);
      auto* const at = sums.of + i / kAmxSide;
      if (count_ - i > kAmxSide) {
        multiply_panels<2>(run, from, length, panel, at);
      } else {
        multiply_panels<1>(run, from, length, panel, at);
      }
    }
  }

  template <int kPanels>
  void multiply_panels(const Run& run, int64_t from, int64_t length, const Bfloat16* panel,
                       float (*sums)[2][kAmxSide][kAmxSide]) {
    if (whole_) {
      begin_sums<kPanels>(tiles_, from == 0, sums);
      add_products<kPanels>(tiles_, run, 0, length, tokens_, panel);
      store_sums<kPanels>(tiles_, sums);
      return;
    }
    for (int64_t i = 0; i < length; i += group_) {
      begin_sums<kPanels>(tiles_, true, sums);
      add_products<kPanels>(tiles_, run, i, smaller(i + group_, length), tokens_, panel);
      store_sums<kPanels>(tiles_, scaling_.of(i / group_));
    }
    scaling_.add(run, parts_of(length, group_), kPanels, from == 0, sums);
  }

  void scale_whole(Sums& sums) const {
    for (int half = 0; half < 2; ++half) {
      alignas(64) float scales[kAmxSide];
      store(scales, rows_[half].scales_of(0));
      for (int64_t i = 0; i < count_; i += kAmxSide) {
        for (int row = 0; row < kAmxSide; ++row) {
          float* const sum = sums.of[i / kAmxSide][half][row];
          store(sum, load(sum) * scales[row]);
        }
      }
    }
  }

  AmxTiles& tiles_;
  const RowTile (&rows_)[2];
  const Tokens& tokens_;
  int64_t token_, count_;
  bool whole_;
  int64_t group_;  // operands
  Scaling scaling_;
};

// A block of tokens of one call, from `first` on. Every thread of the team works through all of it.
template <class T>
struct AmxBlock {
  const ForwardArguments& call;
  const Mlp& mlp;
  int64_t first;
  int64_t count;
  Tokens x;
  Tokens h;
  T* normed;
  Team& team;
  AmxTiles& tiles;

  void run() const {
    team.for_each_item(parts_of(count, kAmxSide), [&](int64_t panel) {
      const int64_t token = panel * kAmxSide;
      const int64_t tokens = smaller(count - token, kAmxSide);
      const T* rows = row_of(call, first + token, normed + token * call.D);
      for (int64_t i = 1; i < tokens && call.norm_weight.present; ++i) {
        row_of(call, first + token + i, normed + (token + i) * call.D);
      }
      x.pack(token, rows, tokens, call.D);
      if (rounds_activations(call)) x.template round<T>(token, kUnbounded);
      for (int64_t c = call.HR * kTileRows / 2; c < h.operands * kDepth / 2; ++c) {
        h.write(token, c, Floats{}, Floats{});
      }
    });
    for_each_item(x.operands, call.HR, [&](int64_t tile, int64_t token, int64_t tokens) {
      Sums sums;
      const Real scales = real_of(call.gate_scales.dtype);
      const RowTile rows[2] = {{mlp.gate, tile, scales}, {mlp.up, tile, scales}};
      Item(tiles, rows, x, token, tokens).multiply(sums);
      with_gate(mlp.gating.gate, [&]<Gate kGate>() {
        for (int64_t i = 0; i < tokens; i += kAmxSide) {
          write_h<kGate>(sums.of[i / kAmxSide], tile, token + i);
        }
      });
    });
    if (rounds_activations(call)) {
      team.for_each_item(parts_of(count, kAmxSide), [&](int64_t panel) {
        h.template round<T>(panel * kAmxSide, most_of_hidden<T>(mlp.gating));
      });
    }
    for_each_item(
        h.operands, parts_of(call.DR, 2), [&](int64_t item, int64_t token, int64_t tokens) {
          Sums sums;
          const Real scales = real_of(call.down_scales.dtype);
          const int64_t tile = 2 * item;
          const int64_t other =
              smaller(tile + 1, call.DR - 1);  // the same again: nobody reads its sums
          const RowTile rows[2] = {{mlp.down, tile, scales}, {mlp.down, other, scales}};
          Item(tiles, rows, h, token, tokens).multiply(sums);
          for (int64_t i = 0; i < tokens; i += kAmxSide) {
            for (int half = 0; half < 2 && tile + half < call.DR; ++half) {
              write_rows(sums.of[i / kAmxSide][half], (tile + half) * kTileRows, token + i);
            }
          }
        });
  }

  // Calls function(row tile, token, tokens); those of the same tokens follow each other.
  template <class Function>
  void for_each_item(int64_t operands, int64_t row_tiles, const Function& function) const {
    const int64_t tokens = amx_item_tokens(count, operands * kDepth);
    team.for_each_item(row_tiles * parts_of(count, tokens), [&](int64_t item) {
      const int64_t token = item / row_tiles * tokens;
      function(item % row_tiles, token, smaller(count - token, tokens));
    });
  }

  template <Gate kGate>
  void write_h(const float (&sums)[2][kAmxSide][kAmxSide], int64_t tile, int64_t token) const {
    const int64_t column = tile * kTileRows;
    const auto gated_row = [&](int row) {
      return gated<kGate>(load(sums[0][row]) + bias_of(call.gate_bias, column + row),
                          load(sums[1][row]) + bias_of(call.up_bias, column + row),
                          mlp.gating.limit);
    };
    for (int row = 0; row < kTileRows; row += 2) {
      h.write(token, (column + row) / 2, gated_row(row), gated_row(row + 1));
    }
  }
  static Floats bias_of(const sdk::Tensor& bias, int64_t column) {
    return bias.present ? broadcast(load_one(static_cast<const T*>(bias.data) + column)) : Floats{};
  }

  void write_rows(const float (&sums)[kAmxSide][kAmxSide], int64_t column, int64_t token) const {
    alignas(64) float rows[kAmxSide][kAmxSide];
    transpose_words(sums, rows);
    for (int64_t i = 0; i < kAmxSide && token + i < count; ++i) {
      write_y<T>(call, first + token + i, column, rows[i]);
    }
  }
};

// Of x and h.
inline size_t amx_bytes(const ForwardArguments& call) {
  const int64_t tokens = smaller(call.M, kTokens);
  const int parts = call.x.dtype == sdk::DType::kFloat16 ? kParts<Float16> : kParts<Bfloat16>;
  return sizeof(Bfloat16) *
         static_cast<size_t>(Tokens::values(tokens, x_operands(call) + h_operands(call), parts));
}
inline size_t amx_workspace_bytes(const ForwardArguments& call) {
  return with_normed(call, amx_bytes(call), smaller(call.M, kTokens));
}

template <class T>
void forward_by_amx(const ForwardArguments& call, const Mlp& mlp) {
  const int64_t tokens = smaller(call.M, kTokens);
  auto* const data = static_cast<Bfloat16*>(call.workspace);
  const Tokens x = {data, x_operands(call), kParts<T>, mlp.gate.kind};
  const Tokens h = {data + Tokens::values(tokens, x.operands, kParts<T>), h_operands(call),
                    kParts<T>, mlp.down.kind};
  auto* const normed =
      reinterpret_cast<T*>(static_cast<char*>(call.workspace) + normed_at(amx_bytes(call)));
  const int64_t items = larger(call.HR, call.DR) * parts_of(tokens, kAmxLeastItem);
  run_team(threads_for(worth_of(call, kAmxSide), items, call.threads), [&](Team& team) {
    AmxTiles tiles;
    for (int64_t first = 0; first < call.M; first += kTokens) {
      AmxBlock<T>{call, mlp, first, smaller(call.M - first, kTokens), x, h, normed, team, tiles}
          .run();
    }
  });
}

}  // namespace quantized_mlp::cpu
#endif
