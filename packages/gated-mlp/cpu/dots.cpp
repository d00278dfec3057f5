// SPDX-License-Identifier: Apache-2.0
#include "cpu/dots.hpp"

#include "cpu/threads.hpp"
#include "cpu/tile.hpp"
#include "cpu/vector.hpp"

namespace gated_mlp::cpu {
namespace {

// Rows that the workspace holds at one time; then rows and columns of an item of work. Over a run
// of k an item's rows stay in L2, and a tile's operands in L1.
constexpr int64_t kDotBlock = 960;
constexpr int64_t kItemRows = 96;
constexpr int64_t kItemColumns = 16;
constexpr int64_t kRunBytes = 2048;  // of a packed row
static_assert(kDotBlock % kItemRows == 0 && kItemRows % kDotRows == 0);
static_assert(kItemColumns % kLanes == 0 && kItemColumns % kDotColumns == 0);

// Elements of a packed row: whole vectors of any dtype.
constexpr int64_t padded(int64_t k) {
  return round_up(k, 2 * kLanes);
}

// Packed rows: panels of kDotRows, in which the rows take turns, a vector each.
template <class T>
struct Panels {
  using Packed = typename Dot<T>::Packed;
  static constexpr int64_t kStep = Dot<T>::kStep;
  Packed* data;
  int64_t k;  // elements of a row, padded

  Packed* at(int64_t row, int64_t i) const {
    return data + (row / kDotRows * k + i / kStep * kStep) * kDotRows + row % kDotRows * kStep +
           i % kStep;
  }
  void clear_from(int64_t row, int64_t i) const {
    for (; i < k; ++i) *at(row, i) = {};
  }
};

struct alignas(64) ItemSums {
  float at[kItemRows][kItemColumns];
};

// sums = a b^T of `rows` packed rows from `row` on and of `columns` rows of weights.
template <class T>
void multiply(const Panels<T>& a, int64_t row, int64_t rows, const T* b, int64_t k, int64_t columns,
              ItemSums& sums) {
  constexpr int64_t kRun = kRunBytes / static_cast<int64_t>(sizeof(typename Dot<T>::Packed));
  if (k == 0) sums = {};
  for (int64_t from = 0; from < k; from += kRun) {
    const int64_t count = smaller(k - from, kRun);
    for (int64_t column = 0; column < columns; column += kDotColumns) {
      const T* weights[kDotColumns];
      for (int j = 0; j < kDotColumns; ++j) {  // nobody reads the sums beyond the last column
        weights[j] = b + smaller(column + j, columns - 1) * k + from;
      }
      for (int64_t i = 0; i < rows; i += kDotRows) {
        with_rows<kDotRows>(rows - i, [&]<int kRows>() {
          multiply_dots<kRows>(a.at(row + i, from), weights, count, kDotColumns * k, from > 0,
                               &sums.at[i][column], kItemColumns);
        });
      }
    }
  }
}

// A block of rows, from `first` of x and y. Every thread of the team works through all of it.
template <class T>
struct Block {
  const Mlp<T>& call;
  int64_t first;
  int64_t rows;
  Panels<T> x;
  Panels<T> h;
  Team& team;

  void pack_x() const {
    team.for_each_item(rows, [&](int64_t row) {
      const T* from = call.x + (first + row) * call.d;
      for (int64_t i = 0; i < call.d; i += kLanes) {
        store_up_to(x.at(row, i), load_up_to(from + i, call.d - i), call.d - i);
      }
      x.clear_from(row, call.d);
      h.clear_from(row, call.h);
    });
  }

  // Calls function(row, rows, column, columns) for each item of a product.
  template <class Function>
  void for_each_item(int64_t columns, const Function& function) const {
    const int64_t across = parts_of(columns, kItemColumns);
    team.for_each_item(across * parts_of(rows, kItemRows), [&](int64_t item) {
      const int64_t row = item / across * kItemRows;
      const int64_t column = item % across * kItemColumns;
      function(row, smaller(rows - row, kItemRows), column,
               smaller(columns - column, kItemColumns));
    });
  }

  void gated() const {
    for_each_item(call.h, [&](int64_t row, int64_t count, int64_t column, int64_t columns) {
      ItemSums gate;
      ItemSums up;
      multiply(x, row, count, call.gate + column * call.d, call.d, columns, gate);
      multiply(x, row, count, call.up + column * call.d, call.d, columns, up);
      with_gate(call.gating.gate, [&]<Gate kGate>() {
        for (int64_t j = 0; j < columns; j += kLanes) {
          const int64_t left = columns - j;
          const Floats gate_bias = bias_vector(call.gate_bias, column + j, call.h);
          const Floats up_bias = bias_vector(call.up_bias, column + j, call.h);
          for (int64_t i = 0; i < count; ++i) {
            const Floats g = load(&gate.at[i][j]) + gate_bias;
            const Floats u = load(&up.at[i][j]) + up_bias;
            store_up_to(h.at(row + i, column + j), cpu::gated<kGate>(g, u, call.gating.limit),
                        left);
            if (call.gate_out == nullptr) continue;
            const int64_t at = (first + row + i) * call.h + column + j;
            store_up_to(call.gate_out + at, g, left);
            store_up_to(call.up_out + at, u, left);
          }
        }
      });
    });
  }

  void plain() const {
    for_each_item(call.d, [&](int64_t row, int64_t count, int64_t column, int64_t columns) {
      ItemSums sums;
      multiply(h, row, count, call.down + column * call.h, call.h, columns, sums);
      for (int64_t j = 0; j < columns; j += kLanes) {
        const Floats bias = bias_vector(call.down_bias, column + j, call.d);
        for (int64_t i = 0; i < count; ++i) {
          write_y(call, first + row + i, column + j, load(&sums.at[i][j]), bias, columns - j);
        }
      }
    });
  }
};

int64_t block_rows(int64_t m) {
  return round_up(smaller(m, kDotBlock), kDotRows);
}

}  // namespace

size_t dots_workspace_bytes(int64_t m, int64_t d, int64_t h) {
  return 4 * static_cast<size_t>(block_rows(m) * (padded(d) + padded(h)));
}

template <class T>
void mlp_by_dots(const Mlp<T>& call, void* workspace) {
  using Packed = typename Dot<T>::Packed;
  const Panels<T> x = {static_cast<Packed*>(workspace), padded(call.d)};
  const Panels<T> h = {x.data + block_rows(call.m) * x.k, padded(call.h)};
  const int64_t across = parts_of(larger(call.h, call.d), kItemColumns);
  const int64_t most_items = across * parts_of(smaller(call.m, kDotBlock), kItemRows);
  run_team(threads_for(threads_worth(call), most_items, call.threads), [&](Team& team) {
    for (int64_t row = 0; row < call.m; row += kDotBlock) {
      const Block<T> block = {call, row, smaller(call.m - row, kDotBlock), x, h, team};
      block.pack_x();
      block.gated();
      block.plain();
    }
  });
}

template void mlp_by_dots(const Mlp<float>&, void*);
template void mlp_by_dots(const Mlp<Bfloat16>&, void*);
template void mlp_by_dots(const Mlp<Float16>&, void*);

}  // namespace gated_mlp::cpu
