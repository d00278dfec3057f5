// SPDX-License-Identifier: Apache-2.0
//
// Products of packed rows with weights that each thread packs for itself: every output comes once
// and is right, and no thread leaves its scratch memory.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/panels.hpp"

namespace gated_mlp::cpu {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr int kMatrices = 2;

// Small whole numbers, whose sums are exact.
std::vector<float> numbers(int64_t count, int64_t step) {
  std::vector<float> all(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] =
        static_cast<float>((static_cast<int64_t>(i) * step + static_cast<int64_t>(i) / 7) % 5 - 2);
  }
  return all;
}

struct Aligned {
  explicit Aligned(int64_t floats) : memory(static_cast<std::size_t>(floats) + 16, kPoison) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
    first = memory.data() + (64 - at % 64) % 64 / sizeof(float);
  }
  std::vector<float> memory;
  float* first;
};

void check_product(int threads, int64_t rows, int64_t columns, int64_t k) {
  CAPTURE(threads);
  CAPTURE(rows);
  CAPTURE(columns);
  CAPTURE(k);
  const std::vector<float> a = numbers(rows * k, 3);
  const std::vector<float> b[kMatrices] = {numbers(columns * k, 2), numbers(columns * k, 4)};
  const int64_t panels = parts_of(rows, kTileRows);
  std::vector<float> packed(static_cast<std::size_t>(panels * kTileRows * k) + 1);
  for (int64_t panel = 0; panel < panels; ++panel) {
    pack_rows<kTileRows>(a.data() + panel * kTileRows * k, k, rows - panel * kTileRows, k,
                         packed.data() + panel * kTileRows * k);
  }
  const PanelScratch room = {threads, panel_floats(panels, kMatrices)};
  Aligned scratch(room.all() + 16);
  std::vector<float> out[kMatrices];
  for (auto& matrix : out) matrix.assign(static_cast<std::size_t>(rows * columns), kPoison);
  std::vector<int> written(static_cast<std::size_t>(rows * columns));
  int taken = 0;
  run_team(threads, [&](Team& team) {
    multiply_panels<kMatrices>(
        team, threads, room.take(scratch.first, taken), packed.data(), rows, columns, k,
        [&](int matrix, int64_t column, int64_t from, int64_t count, float* to) {
          pack_rows<kTileColumns>(b[matrix].data() + column * k + from, k, columns - column, count,
                                  to);
        },
        [&](int64_t panel, int64_t column, const TileSums* sums) {
          for (int64_t i = 0; i < kTileRows && panel * kTileRows + i < rows; ++i) {
            for (int64_t j = 0; j < kTileColumns && column + j < columns; ++j) {
              const auto at =
                  static_cast<std::size_t>((panel * kTileRows + i) * columns + column + j);
              for (int matrix = 0; matrix < kMatrices; ++matrix)
                out[matrix][at] = sums[matrix].at[i][j];
              ++written[at];
            }
          }
        });
  });
  int64_t wrong = 0;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const auto at = static_cast<std::size_t>(i * columns + j);
      for (int matrix = 0; matrix < kMatrices; ++matrix) {
        float sum = 0;
        for (int64_t step = 0; step < k; ++step) {
          sum += a[static_cast<std::size_t>(i * k + step)] *
                 b[matrix][static_cast<std::size_t>(j * k + step)];
        }
        if (out[matrix][at] != sum || written[at] != 1) ++wrong;
      }
    }
  }
  CHECK(wrong == 0);
  for (int i = 0; i < 16; ++i) CHECK(std::isnan(scratch.first[room.all() + i]));
}

TEST_CASE("a product of panels is right, whoever computes what of it") {
  for (const int threads : {1, 3, 5}) {
    for (const int64_t rows : {1, kTileRows, 97, 340}) {
      for (const int64_t columns : {1, 33, 100}) {
        for (const int64_t k : {0, 1, 511, 513}) check_product(threads, rows, columns, k);
      }
    }
    check_product(threads, 200, 70, 1537);
  }
}

TEST_CASE("few panels of weights are work for all threads, and of many none is packed twice") {
  CHECK(groups_of(10, 128, 1) == 1);
  CHECK(groups_of(720, 448, 16) == 1);
  CHECK(groups_of(720, 1, 16) == 8);   // as many as there may be
  CHECK(groups_of(720, 24, 16) == 2);  // 3 rounds of half, not 2 of all
  CHECK(groups_of(10, 1, 16) == 5);    // of two panels each; six to nine would leave some empty
  CHECK(groups_of(1, 3, 64) == 1);
  CHECK(groups_of(0, 3, 4) == 1);
}

}  // namespace
}  // namespace gated_mlp::cpu
