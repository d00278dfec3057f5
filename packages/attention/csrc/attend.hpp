// SPDX-License-Identifier: Apache-2.0
//
// Attend: the CPU's softmax(scale q k^T) v of a few query rows that share keys, block of keys after
// block with a running maximum, in fp32. The queries of a group of heads read a key once. Before
// it: cpu.cpp, which says which rows see which keys and where those lie. No heap, no state.
#pragma once

#include <math.h>
#include <stdint.h>

#include "cpu/vector.hpp"

namespace attention {

using gated_mlp::cpu::broadcast;
using gated_mlp::cpu::Floats;
using gated_mlp::cpu::kLanes;
using gated_mlp::cpu::load;
using gated_mlp::cpu::select;
using gated_mlp::cpu::store;

inline constexpr int kMostRows = 16;
inline constexpr int kMostColumns = 256;  // of D, which is a multiple of kColumns
inline constexpr int kColumns = 16;       // two vectors of eight, or one of sixteen
inline constexpr int kKeys = 64;          // of a block
inline constexpr int kRowsAtOnce = 4;     // whose sums stay in registers
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// The keys that a row sees: [first, end).
struct Span {
  int64_t first = 0;
  int64_t end = 0;
};

// Of one row: the sum of 2^(s - most) v, that of 2^(s - most), and the largest score, in units of
// log 2. No key: 0, 0, -inf.
struct Sums {
  float* values;  // D of them
  float total;
  float most;
};

inline float sum_of(Floats value) {
  float total = 0;
  for (int i = 0; i < kLanes; ++i) total += value[i];
  return total;
}
inline float largest_of(Floats value) {
  float most = value[0];
  for (int i = 1; i < kLanes; ++i) most = value[i] > most ? value[i] : most;
  return most;
}

// 2^x for x <= 0; 0 where it is below the smallest normal number, so of -inf.
inline Floats exp2_or_zero(Floats x) {
  return select(x < -126.0f, Floats{},
                gated_mlp::cpu::exp2(gated_mlp::cpu::clamp(x, -126.0f, 126.0f)));
}

struct alignas(64) Rows {
  float q[kMostRows][kMostColumns];       // scaled, with log2(e)
  float scores[kMostRows][kKeys];         // then the powers
  float values[kMostRows][kMostColumns];  // the sums
  float extra[kMostRows][kMostColumns];   // by how much they are too large: roundings do not add up
  double total[kMostRows];
  float most[kMostRows];
  Span sees[kMostRows];
  int count = 0;
  int columns = 0;

  template <class T>
  void add(const T* row, float scale, Span span) {
    for (int d = 0; d < columns; d += kLanes) {
      store(&q[count][d], load(row + d) * (scale * kLog2E));
      store(&values[count][d], Floats{});
      store(&extra[count][d], Floats{});
    }
    total[count] = 0;
    most[count] = -INFINITY;
    sees[count] = span;
    ++count;
  }
  Span all() const {
    Span span{INT64_MAX, 0};
    for (int r = 0; r < count; ++r) {
      if (sees[r].first >= sees[r].end) continue;
      if (sees[r].first < span.first) span.first = sees[r].first;
      if (sees[r].end > span.end) span.end = sees[r].end;
    }
    return span.end == 0 ? Span{} : span;
  }
};

// Scores of kRowsAtOnce rows and two keys.
template <class T>
void score(Rows& rows, int row, int column, const T* one, const T* other) {
  Floats of_one[kRowsAtOnce] = {};
  Floats of_other[kRowsAtOnce] = {};
  for (int d = 0; d < rows.columns; d += kLanes) {
    const Floats a = load(one + d);
    const Floats b = load(other + d);
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const Floats q = load(&rows.q[row + r][d]);
      of_one[r] += q * a;
      of_other[r] += q * b;
    }
  }
  for (int r = 0; r < kRowsAtOnce; ++r) {
    rows.scores[row + r][column] = sum_of(of_one[r]);
    rows.scores[row + r][column + 1] = sum_of(of_other[r]);
  }
}

// The scores of `keys` keys from `first` become powers of 2, 0 where the row does not see the key;
// what was summed before is scaled to the new maximum.
inline void normalise(Rows& rows, int r, int64_t first, int keys) {
  float* scores = rows.scores[r];
  const Span span = rows.sees[r];
  for (int j = 0; j < kKeys; ++j) {
    const int64_t key = first + j;
    if (j >= keys || key < span.first || key >= span.end) scores[j] = -INFINITY;
  }
  Floats largest = broadcast(rows.most[r]);
  for (int j = 0; j < kKeys; j += kLanes) {
    const Floats s = load(&scores[j]);
    largest = select(s > largest, s, largest);
  }
  const float most = largest_of(largest);
  if (most == -INFINITY) {  // it has seen no key, or scores that are all -inf or NaN
    for (int j = 0; j < kKeys; j += kLanes) {
      const Floats s = load(&scores[j]);
      store(&scores[j], select(s != s, s, Floats{}));
      rows.total[r] += sum_of(load(&scores[j]));
    }
    return;
  }
  const float shrink = exp2_or_zero(broadcast(rows.most[r] - most))[0];
  Floats total = {};
  for (int j = 0; j < kKeys; j += kLanes) {
    const Floats power = exp2_or_zero(load(&scores[j]) - most);
    store(&scores[j], power);
    total += power;
  }
  rows.total[r] = rows.total[r] * double{shrink} + double{sum_of(total)};
  rows.most[r] = most;
  if (shrink == 1) return;
  for (int d = 0; d < rows.columns; d += kLanes) {
    store(&rows.values[r][d], load(&rows.values[r][d]) * shrink);
    store(&rows.extra[r][d], load(&rows.extra[r][d]) * shrink);
  }
}

// Adds the values of `keys` keys to kRowsAtOnce rows: they are summed, then their sum is added with
// what the last one lost (Kahan).
template <class T, class Value>
void add_values(Rows& rows, int row, int keys, const Value& value) {
  constexpr int kVectors = kColumns / kLanes;
  for (int d = 0; d < rows.columns; d += kColumns) {
    Floats sums[kRowsAtOnce][kVectors] = {};
    for (int j = 0; j < keys; ++j) {
      const T* v = value[j] + d;
      for (int i = 0; i < kVectors; ++i) {
        const Floats one = load(v + i * kLanes);
        for (int r = 0; r < kRowsAtOnce; ++r) sums[r][i] += one * rows.scores[row + r][j];
      }
    }
    for (int r = 0; r < kRowsAtOnce; ++r) {
      for (int i = 0; i < kVectors; ++i) {
        float* const value = &rows.values[row + r][d + i * kLanes];
        float* const extra = &rows.extra[row + r][d + i * kLanes];
        const Floats more = sums[r][i] - load(extra);
        const Floats sum = load(value) + more;
        const Floats lost = sum - load(value) - more;
        store(extra, select(lost == lost, lost, Floats{}));  // of infinity it is a NaN
        store(value, sum);
      }
    }
  }
}

// Sums over those keys of `range` that the rows see. Key n lies at k + key_place(n), its value at
// v + value_place(n).
template <class T, class KeyPlace, class ValuePlace>
void attend(Rows& rows, const T* k, const T* v, Span range, const KeyPlace& key_place,
            const ValuePlace& value_place) {
  // What is computed at once may be more rows than there are: those of nothing.
  for (int r = rows.count; r % kRowsAtOnce != 0; ++r) {
    rows.sees[r] = {};
    rows.total[r] = 0;
    rows.most[r] = -INFINITY;
    for (int d = 0; d < rows.columns; d += kLanes) {
      store(&rows.q[r][d], Floats{});
      store(&rows.values[r][d], Floats{});
      store(&rows.extra[r][d], Floats{});
    }
  }
  for (int64_t first = range.first; first < range.end; first += kKeys) {
    const int keys = range.end - first < kKeys ? static_cast<int>(range.end - first) : kKeys;
    const T* key[kKeys + 1];
    const T* value[kKeys];
    for (int j = 0; j < keys; ++j) {
      key[j] = k + key_place(first + j);
      value[j] = v + value_place(first + j);
    }
    key[keys] = key[keys - 1];
    for (int row = 0; row < rows.count; row += kRowsAtOnce) {
      for (int j = 0; j < keys; j += 2) score(rows, row, j, key[j], key[j + 1]);
      for (int r = row; r < row + kRowsAtOnce; ++r) normalise(rows, r, first, keys);
      add_values<T>(rows, row, keys, value);
    }
  }
}

// What the sums of a row give.
template <class T>
void finish(const Sums& sums, int columns, T* out, float* lse) {
  const float scale = sums.total == 0 ? 0 : 1 / sums.total;
  for (int d = 0; d < columns; d += kLanes) store(out + d, load(sums.values + d) * scale);
  if (lse != nullptr) {
    *lse = sums.total == 0 ? -INFINITY : sums.most * kLn2 + logf(sums.total);
  }
}

}  // namespace attention
