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
    bool is_e4m3;
    int64_t weights;
    int64_t most;
  };
  for (const Case& c : {Case{Road::kTiled, false, kSmall, 32},
                        {Road::kTiled, false, kLarge, 32},
                        {Road::kTiled, true, kLarge, 32},
                        {Road::kWide, false, kSmall, 32},
                        {Road::kWide, false, 31'999'999, 32},
                        {Road::kWide, false, 32'000'000, 16},
                        {Road::kWide, true, kLarge, 32},
                        {Road::kWide8, true, kSmall, 16},
                        {Road::kWide8, true, kLarge, 8}}) {
    CAPTURE(static_cast<int>(c.many));
    CAPTURE(c.weights);
    CHECK(most_decoded(c.many, c.is_e4m3, c.weights) == c.most);
  }
}

TEST_CASE("plan: all tokens and rows have a CTA") {
  for (const Road road : {Road::kDecode, Road::kTiled, Road::kWide, Road::kWide8}) {
    for (const bool gated : {true, false}) {
      for (const int64_t m : {1, 8, 9, 33, 64, 65, 300, 4096}) {
        CAPTURE(static_cast<int>(road));
        CAPTURE(m);
        const ProductPlan plan = plan_product(gated, m, 896, 64, road);
        const int64_t tokens = plan.token_tiles * (road == Road::kDecode ? 8 : kWideBlock);
        const int64_t tiles = road == Road::kDecode ? 1 : gated ? kTiledWarps : 2 * kTiledWarps;
        CHECK(plan.road == road);
        CHECK(plan.token_blocks * tokens >= m);
        CHECK((plan.token_blocks - 1) * tokens < m);
        CHECK(plan.row_blocks * tiles >= 896);
        CHECK(plan.splits >= 1);
        CHECK((plan.splits == 1 || (!gated && road != Road::kDecode)));
      }
    }
  }
}

TEST_CASE("plan: k is split where few CTAs would have work, in parts of eight tiles or more") {
  CHECK(plan_product(false, 64, 256, 224, Road::kWide).splits == 8);
  CHECK(plan_product(false, 64, 256, 24, Road::kWide).splits == 3);
  CHECK(plan_product(false, 64, 256, 8, Road::kWide).splits == 1);
  CHECK(plan_product(false, 4096, 256, 224, Road::kWide).splits == 1);
}

}  // namespace
