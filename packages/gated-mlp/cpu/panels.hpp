// SPDX-License-Identifier: Apache-2.0
//
// Panels: products of packed rows with weights as they lie. A thread packs the weights that it
// multiplies with, a panel and a run of k at a time, into scratch memory of its own: none waits for
// another between the begin of a product and its end. Runs of k are those of the sums, so how the
// work is shared out changes no bit.
#pragma once

#include <stdint.h>
#include <unistd.h>

#include "cpu/threads.hpp"
#include "cpu/tile.hpp"

namespace gated_mlp::cpu {

// A group of row panels, against one panel of weights, is an item of work. Packing the weights for
// it costs as much as so many rows.
inline constexpr int64_t kPackingRows = 48;

// How many groups the row panels are cut into: the busiest thread then has the least to do.
constexpr int64_t groups_of(int64_t row_panels, int64_t weight_panels, int threads) {
  int64_t best = 1;
  int64_t least = INT64_MAX;
  for (int64_t groups = 1; groups <= smaller(row_panels, 8); ++groups) {
    const int64_t group = parts_of(row_panels, groups);
    if (parts_of(row_panels, group) < groups) continue;  // the last ones would be empty
    const int64_t rows = group * kTileRows + kPackingRows;
    const int64_t work = parts_of(weight_panels * groups, threads) * rows;
    if (work < least) least = work, best = groups;
  }
  return best;
}

// The CPUs of this machine, up to kMostThreads. The same in every call: it decides how much memory
// a caller is asked for.
inline int cpus_configured() {
  static int cpus = 0;
  int known = __atomic_load_n(&cpus, __ATOMIC_RELAXED);
  if (known == 0) {
    const long asked = sysconf(_SC_NPROCESSORS_CONF);
    const int found = asked < 1 ? 1 : asked < kMostThreads ? static_cast<int>(asked) : kMostThreads;
    const bool first = __atomic_compare_exchange_n(&cpus, &known, found, false, __ATOMIC_RELAXED,
                                                   __ATOMIC_RELAXED);
    if (first) known = found;
  }
  return known;
}

// Floats of each thread's scratch memory, for up to so many row panels and matrices of weights.
constexpr int64_t panel_floats(int64_t row_panels, int64_t matrices) {
  return matrices * (kSumDepth * kTileColumns + row_panels * kTileRows * kTileColumns);
}

// Scratch memory of the threads that a product can have, at the begin of a workspace.
struct PanelScratch {
  int threads;
  int64_t floats;  // of each

  int64_t all() const { return threads * floats; }

  // The next thread's; `taken` counts those that have theirs.
  float* take(void* workspace, int& taken) const {
    const int before = __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    return static_cast<float*>(workspace) + before * floats;
  }
};

// For products of up to so many panels of rows with so many of each matrix of weights, that are
// worth `worth` threads.
inline PanelScratch panel_scratch(int64_t row_panels, int64_t weight_panels, int64_t matrices,
                                  double worth) {
  const auto items = static_cast<double>(row_panels * weight_panels);
  const double most = larger(worth < items ? worth : items, 1.0);
  const int cpus = cpus_configured();
  return {most < cpus ? static_cast<int>(most) : cpus, panel_floats(row_panels, matrices)};
}

// The products of `rows` rows, packed into panels at `a`, with `columns` rows of each matrix of
// weights. Every thread of the team calls it, with scratch memory of its own, aligned to 64 bytes.
//   pack(matrix, column, from, count, to)   kTileColumns rows of a matrix, `count` of k
//   write(panel, column, sums)              of a panel of rows; TileSums of each matrix
template <int kMatrices, class Pack, class Write>
void multiply_panels(Team& team, int threads, float* scratch, const float* a, int64_t rows,
                     int64_t columns, int64_t k, const Pack& pack, const Write& write) {
  constexpr int64_t kPacked = kSumDepth * kTileColumns;
  auto* const sums = reinterpret_cast<TileSums*>(scratch + kMatrices * kPacked);
  const int64_t row_panels = parts_of(rows, kTileRows);
  const int64_t weight_panels = parts_of(columns, kTileColumns);
  const int64_t groups = groups_of(row_panels, weight_panels, threads);
  const int64_t group = parts_of(row_panels, groups);
  team.for_each_item(weight_panels * groups, [&](int64_t item) {
    const int64_t column = item / groups * kTileColumns;
    const int64_t first = item % groups * group;
    const int64_t end = smaller(first + group, row_panels);
    for (int64_t from = 0; from == 0 || from < k; from += kSumDepth) {
      const int64_t count = smaller(k - from, kSumDepth);
      for (int matrix = 0; matrix < kMatrices; ++matrix) {
        pack(matrix, column, from, count, scratch + matrix * kPacked);
      }
      for (int64_t i = first; i < end; ++i) {
        for (int matrix = 0; matrix < kMatrices; ++matrix) {
          multiply_tile(a + (i * k + from) * kTileRows, scratch + matrix * kPacked, count,
                        rows - i * kTileRows, from > 0, sums[(i - first) * kMatrices + matrix]);
        }
      }
    }
    for (int64_t i = first; i < end; ++i) write(i, column, sums + (i - first) * kMatrices);
  });
}

}  // namespace gated_mlp::cpu
