// SPDX-License-Identifier: Apache-2.0
//
// Which road a call's tokens take, and how a product's CTAs are shared out.
#include <doctest/doctest.h>

#include <initializer_list>

#include "plan.h"

namespace {

using namespace quantized_mlp;

constexpr int64_t kSmall = 2048 * 8192;
constexpr int64_t kLarge = 4096 * 14336;

TEST_CASE("plan: how many tokens decode takes") {
  struct Case {
    Road many;
    int64_t weights;
    int64_t most;
  };
  for (const Case& c : {Case{Road::kTiled, kSmall, 32},
                        {Road::kTiled, kLarge, 32},
                        {Road::kWide, kSmall, 32},
                        {Road::kWide, 19'999'999, 32},
                        {Road::kWide, 20'000'000, 16},
                        {Road::kWide8, kSmall, 16},
                        {Road::kWide8, kLarge, 8}}) {
    CAPTURE(static_cast<int>(c.many));
    CAPTURE(c.weights);
    CHECK(most_decoded(c.many, c.weights) == c.most);
  }
}

TEST_CASE("plan: from how many tokens weights are expanded") {
  CHECK(fewest_expanded(Road::kTiled, Codes::kInt4) == 512);
  CHECK(fewest_expanded(Road::kTiled, Codes::kE4m3) == 512);
  CHECK(fewest_expanded(Road::kWide, Codes::kInt4) == 1280);
  CHECK(fewest_expanded(Road::kWide, Codes::kInt8) == 1024);
  CHECK(fewest_expanded(Road::kWide, Codes::kE4m3) == 1024);
  CHECK(can_expand(1 << 20, 1 << 24, 1 << 24));
  CHECK_FALSE(can_expand((1 << 20) + 1, 4096, 14336));
  CHECK_FALSE(can_expand(2048, (1 << 24) + 8, 14336));
  CHECK_FALSE(can_expand(2048, 4096, (1 << 24) + 16));
  CHECK_FALSE(can_expand(2048, 4096, 0));
}

TEST_CASE(
    "plan: chunks of expanded weights are whole tiles, and as large as memory and waves say") {
  for (const int64_t m : {512, 1300, 4096, 100000}) {
    for (const int64_t width : {8, 200, 4096, 8192, 200000}) {
      for (const int64_t hidden : {16, 1408, 14336, 28672}) {
        CAPTURE(m);
        CAPTURE(width);
        CAPTURE(hidden);
        const ExpandedPlan plan = plan_expanded(m, width, hidden, m != 4096);
        CHECK(plan.first % 128 == 0);
        CHECK(plan.first >= 128);
        CHECK(plan.first <= plan.h.columns);
        const auto check = [](const Chunks& chunks, int64_t columns, int64_t n, int64_t k) {
          CHECK(chunks.columns % columns == 0);
          CHECK(chunks.columns * chunks.number >= n);
          CHECK(chunks.columns * (chunks.number - 1) < n);
          CHECK(chunks.bytes == chunks.columns / columns * 512 * k);
          CHECK((chunks.bytes <= kMostExpandedBytes || chunks.columns == columns));
        };
        check(plan.h, 128, hidden, width);
        check(plan.y, 256, width, hidden);
      }
    }
  }
  // 512 tokens are two rows of tiles: all 16 of y, which are 117 MB, do not fill a wave of 66.
  CHECK(plan_expanded(512, 4096, 14336, true).y.columns == 4096);
  CHECK(plan_expanded(4096, 4096, 14336, true).y.bytes <= kBesideBytes);
  CHECK(plan_expanded(4096, 4096, 14336, false).y.columns == 4096);
  // 16 rows: four tiles of h are the most of a wave.
  CHECK(plan_expanded(4096, 4096, 14336, true).first == 4 * 128);
  const ExpandedPlan alone = plan_expanded(4096, 4096, 14336, false);
  CHECK(alone.first == alone.h.columns);
}

TEST_CASE("plan: all tokens and rows have a CTA") {
  for (const Road road : {Road::kDecode, Road::kTiled, Road::kWide, Road::kWide8}) {
    for (const bool gated : {true, false}) {
      for (const int64_t row_tiles : {1, 352, 512, 896, 1088, 1184}) {
        for (const int64_t m : {1, 8, 9, 32, 33, 64, 65, 300, 777, 4096}) {
          CAPTURE(static_cast<int>(road));
          CAPTURE(gated);
          CAPTURE(row_tiles);
          CAPTURE(m);
          const ProductPlan plan = plan_product(gated, m, row_tiles, 64, road);
          const int64_t tokens = plan.tokens;
          const int64_t rows = road == Road::kDecode ? 1 : gated ? kTiledWarps : 2 * kTiledWarps;
          const int64_t tiles = plan.token_blocks * plan.row_blocks;
          CHECK(plan.road == road);
          CHECK(plan.gated == gated);
          CHECK(plan.token_blocks * tokens >= m);
          CHECK((plan.token_blocks - 1) * tokens < m);
          CHECK(plan.row_blocks * rows >= row_tiles);
          CHECK((plan.row_blocks - 1) * rows < row_tiles);
          CHECK(plan.splits >= 1);
          if (is_wide(road)) {
            CHECK((plan.whole == tiles) == (plan.splits == 1));
            CHECK(plan.whole <= tiles);
            CHECK((plan.splits == 1 || plan.whole % kCtas == 0));
            CHECK((plan.splits == 1 || (tiles - plan.whole) * plan.splits <= kCtas));
          } else {
            CHECK((plan.splits == 1 || (!gated && road == Road::kTiled)));
          }
        }
      }
    }
  }
}

TEST_CASE("plan: k is split where a wave is not full and parts take less time") {
  struct Case {
    bool gated;
    int64_t m;
    int64_t row_tiles;
    int64_t depth_tiles;
    int64_t whole;
    int splits;
  };
  for (const Case& c : {Case{false, 64, 256, 224, 0, 8},
                        {false, 64, 256, 24, 0, 6},
                        {false, 64, 256, 7, 16, 1},  // less k than two parts should have
                        {false, 4096, 256, 224, 512, 1},
                        {true, 64, 896, 64, 112, 1},     // 112 CTAs: one wave as it is
                        {true, 64, 512, 48, 0, 2},       // 64: half of one
                        {true, 64, 1088, 80, 132, 14},   // 136: one, and four tiles
                        {true, 128, 1184, 56, 132, 7}})  // 148
  {
    CAPTURE(c.row_tiles);
    CAPTURE(c.depth_tiles);
    const ProductPlan plan = plan_product(c.gated, c.m, c.row_tiles, c.depth_tiles, Road::kWide);
    CHECK(plan.whole == c.whole);
    CHECK(plan.splits == c.splits);
  }
}

// A part of six tiles instead of eight is worth another sum; one of 18 instead of 22 is not.
TEST_CASE("plan: parts of wide8 are whole pairs of tiles") {
  CHECK(plan_product(false, 64, 64, 33, Road::kWide8).splits == 6);
  CHECK(plan_product(false, 200, 128, 65, Road::kWide8).splits == 3);
}

TEST_CASE("plan: sums of parts need room where there are parts") {
  const auto bytes = [](bool gated, int64_t m, int64_t row_tiles, int64_t depth_tiles, Road road) {
    return bytes_of_sums(plan_product(gated, m, row_tiles, depth_tiles, road), m, 16 * row_tiles);
  };
  CHECK(bytes(true, 64, 896, 64, Road::kWide) == 0);
  CHECK(bytes(false, 50, 256, 224, Road::kWide) == 8 * 64 * 4096 * 4);
  CHECK(bytes(false, 50, 256, 224, Road::kTiled) == 8 * 50 * 4096 * 4);
  // 4 tiles, 14 parts, 64 tokens, 128 columns of gate and of up; or 32 tokens.
  CHECK(bytes(true, 50, 1088, 80, Road::kWide) == 4 * 14 * 64 * 256 * 4);
  CHECK(bytes(true, 32, 1088, 80, Road::kWide) == 4 * 14 * 32 * 256 * 4);
}

TEST_CASE("plan: where x is normed") {
  struct Case {
    Codes codes;
    int64_t columns;
    int64_t most;  // tokens in shared memory
  };
  for (const Case& c : {Case{Codes::kInt4, 1, 8},
                        {Codes::kInt4, 2048, 6},
                        {Codes::kInt4, 3584, 3},
                        {Codes::kInt4, 4096, 3},
                        {Codes::kInt4, 5120, 2},
                        {Codes::kInt4, 8192, 1},
                        {Codes::kInt8, 4096, 1},
                        {Codes::kE4m3, 8192, 1}}) {
    CAPTURE(c.columns);
    CHECK(normed_tokens(c.codes, c.columns) == c.most);
    CHECK(norms_in_decode(Road::kDecode, false, c.codes, c.most, c.columns));
    CHECK(!norms_in_decode(Road::kDecode, false, c.codes, c.most + 1, c.columns));
    CHECK(!norms_in_decode(Road::kDecode, true, c.codes, 1, c.columns));
    CHECK(!norms_in_decode(Road::kWide, false, c.codes, 1, c.columns));
    // The last token ends within the room that a CTA has.
    const int64_t end = normed_room_at(bits_of(c.codes)) + (c.most - 1) * normed_stride(c.columns) +
                        2 * normed_columns(c.columns);
    CHECK(end <= kNormedBytes);
  }
  CHECK(!norms_in_decode(Road::kDecode, false, Codes::kInt4, 1, kMostNormed + 1));
  CHECK(2 * (kNormedBytes + 1024) <= 228 * 1024);  // two CTAs of a multiprocessor of SM 9.0
  CHECK(normed_kernel_of(false, Codes::kInt4) == kNormedKernels);
  CHECK(normed_kernel_of(true, Codes::kE4m3) == kNormRows - 1);
}

}  // namespace
