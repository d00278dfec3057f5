// SPDX-License-Identifier: Apache-2.0
//
// The plan of the sm_90a kernels: what it chooses and refuses, and what its choices lose against
// the best of those that were measured (bench/results/*-choices*.json).
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "host/pins.h"
#include "plan_paths.hpp"
#include "sm90/sm90_plan.h"

namespace {

using namespace gated_mlp;

constexpr GpuFacts kH200 = {132, 232448};

GemmShape gated(int64_t m, int64_t d, int64_t h) {
  return {true, Element::kBFloat16, m, h, d, true};
}
GemmShape plain(int64_t m, int64_t d, int64_t h) {
  return {false, Element::kBFloat16, m, d, h, true};
}

std::string text_of(const Sm90Plan& plan, bool is_gated) {
  std::array<char, 200> text{};
  describe(plan, is_gated, text.data(), text.size());
  return text.data();
}

TEST_CASE("sm90 plan: the tile and the parts of k follow the shape") {
  struct Row {
    GemmShape shape;
    std::string text;
  };
  const std::vector<Row> rows = {
      {gated(8192, 768, 3072),
       "prefill_128x192: kernel 58, 32 x 32 tiles, panel 32, 132 CTAs in clusters of 2"},
      {plain(8192, 768, 3072),
       "prefill_128x192: kernel 106, 32 x 4 tiles, panel 4, 132 CTAs in clusters of 2"},
      {plain(4096, 4096, 14336),
       "prefill_128x256: kernel 108, 16 x 16 tiles, panel 12, 132 CTAs in clusters of 2"},
      {gated(16384, 2048, 8192),
       "prefill_128x192: kernel 58, 64 x 86 tiles, panel 16, 132 CTAs in clusters of 2"},
      {plain(600, 1000, 4000),
       "decode_128x80: kernel 113, 5 x 13 tiles, panel 1, 130 CTAs in clusters of 2"},
      {gated(256, 3584, 14336),
       "prefill_128x224: kernel 59, 1 x 128 tiles, panel 1, 132 CTAs in clusters of 2"},
      {gated(384, 3584, 14336),
       "swapped_192x128: kernel 53, 1 x 224 tiles, panel 1, 132 CTAs in clusters of 2, the last 26 "
       "tiles in 2 pieces"},
      {plain(640, 4096, 14336),
       "prefill_128x160 across: kernel 105, 5 x 13 tiles, panel 1, 130 CTAs in clusters of 2"},
      {gated(1, 3584, 14336),
       "decode_64x64: kernel 61, 1 x 448 tiles, panel 1, 448 CTAs in clusters of 1"},
      {plain(1, 2048, 8192),
       "decode_64x64: kernel 110, 1 x 32 tiles, panel 1, 192 CTAs in clusters of 6"},
      {gated(192, 3584, 14336),
       "swapped_192x128 across: kernel 53, 1 x 112 tiles, panel 1, 132 CTAs in clusters of 2"},
      {gated(150, 2048, 8192),
       "swapped_96x128: kernel 53, 1 x 128 tiles, panel 1, 132 CTAs in clusters of 2"},
      {gated(288, 2048, 8192),
       "swapped_144x128: kernel 53, 1 x 128 tiles, panel 1, 132 CTAs in clusters of 2"},
      {gated(289, 2048, 8192),
       "swapped_152x128: kernel 53, 1 x 128 tiles, panel 1, 132 CTAs in clusters of 2"},
      {gated(339, 4096, 13696),
       "swapped_176x128: kernel 53, 1 x 214 tiles, panel 1, 132 CTAs in clusters of 2, the last 16 "
       "tiles in 4 pieces"},
      {gated(448, 2048, 8192),
       "swapped_112x256: kernel 54, 2 x 64 tiles, panel 1, 132 CTAs in clusters of 2"},
      {plain(300, 2048, 8192),
       "decode_192x64: kernel 115, 2 x 32 tiles, panel 1, 128 CTAs in clusters of 2"},
      {plain(288, 2304, 9216),
       "decode_192x80 across: kernel 116, 2 x 15 tiles, panel 1, 120 CTAs in clusters of 4"},
      {plain(900, 1024, 4096),
       "decode_192x80: kernel 116, 5 x 13 tiles, panel 1, 130 CTAs in clusters of 2"},
      {plain(256, 3584, 14336),
       "decode_256x64 across: kernel 118, 1 x 28 tiles, panel 1, 112 CTAs in clusters of 4"},
  };
  for (const Row& row : rows) {
    CHECK(text_of(plan_sm90(row.shape, true, kH200), row.shape.gated) == row.text);
  }
}

TEST_CASE("sm90 plan: small weights and few rows") {
  const GemmShape down = plain(1, 768, 3072);
  CHECK(text_of(plan_sm90(gated(1, 768, 3072), true, kH200), true) ==
        "stream_64x48_small: kernel 67, 1 x 128 tiles, panel 1, 128 CTAs in clusters of 1");
  CHECK(text_of(plan_sm90(down, true, kH200), false) ==
        "decode_64x64: kernel 110, 1 x 12 tiles, panel 1, 96 CTAs in clusters of 8");
  GemmShape invariant = down;
  invariant.invariant = true;  // k is not split
  CHECK(text_of(plan_sm90(invariant, true, kH200), false) ==
        "stream_64x8: kernel 123, 1 x 96 tiles, panel 1, 96 CTAs in clusters of 1");
  // A larger share does not fit, and larger weights are worth a ring of their own.
  CHECK(plan_sm90(gated(1, 768, 4608), true, kH200).kernel != 67);
  CHECK(plan_sm90(plain(1, 2048, 8192), true, kH200).cluster < 8);
  // Of more rows than 32 the parts' sums cost what the parts spare.
  CHECK(text_of(plan_sm90(plain(32, 1024, 4096), true, kH200), false) ==
        "decode_64x64: kernel 110, 1 x 16 tiles, panel 1, 128 CTAs in clusters of 8");
  CHECK(text_of(plan_sm90(plain(33, 1024, 4096), true, kH200), false) ==
        "stream_64x8: kernel 123, 1 x 128 tiles, panel 1, 128 CTAs in clusters of 1");
}

TEST_CASE("sm90 plan: what the kernels cannot take is refused with the reason") {
  struct Row {
    GemmShape shape;
    bool mapped;
    std::string text;
  };
  const std::vector<Row> rows = {
      {gated(16, 0, 64), true, "portable kernels: k is 0"},
      {gated(16, 12, 64), true, "portable kernels: D or H is not a multiple of 8"},
      {gated(16, 64, 20), true, "portable kernels: D or H is not a multiple of 8"},
      {gated(16, 64, 64), false, "portable kernels: a tensor is not 16-byte aligned"},
      {gated(int64_t{1} << 31, 64, 64), true, "portable kernels: an extent is near 2^31"},
      {plain(1 << 24, 1 << 20, 64), true, "portable kernels: there are too many tiles"},
  };
  for (const Row& row : rows) {
    CHECK(text_of(plan_sm90(row.shape, row.mapped, kH200), row.shape.gated) == row.text);
  }
  GemmShape adding = plain(4096, 64, 64);
  adding.adds = true;
  CHECK(text_of(plan_sm90(adding, true, kH200), false) ==
        "portable kernels: it adds to what is there");
  const Sm90Plan tiny = plan_sm90(gated(16, 64, 64), true, {1, 232448});
  CHECK(text_of(tiny, true) == "portable kernels: a cluster needs two multiprocessors");
}

TEST_CASE("sm90 plan: the tiles cover every output once, the boxes fit the copy engine") {
  for (const int64_t m : {1, 7, 64, 65, 128, 300, 513, 768, 769, 2061, 8192}) {
    for (const int64_t d : {8, 72, 768, 3584}) {
      for (const int64_t h : {8, 88, 3072, 14336}) {
        for (const GemmShape& shape : {gated(m, d, h), plain(m, d, h)}) {
          const Sm90Plan plan = plan_sm90(shape, true, kH200);
          CAPTURE(text_of(plan, shape.gated));
          REQUIRE(plan.refused == nullptr);
          const Sm90Tile& facts = sm90_tile(shape.gated, plan.choice.tile);
          const bool is_prefill = facts.family == Sm90Family::kPrefill;
          const int64_t ctas_m = is_prefill && !plan.choice.across ? 2 : 1;  // of a tile
          const int64_t ctas_n = plan.choice.across ? 2 : 1;
          const int64_t columns = shape.gated ? facts.columns / 2 : facts.columns;
          CHECK(plan.tiles_m == tiles_of(shape.m, facts.rows * ctas_m));
          CHECK(plan.tiles_n == tiles_of(shape.n, columns * ctas_n));
          if (is_prefill) {
            const int64_t loaded = plan.choice.across ? whole_sixteens(facts.rows) : facts.rows;
            CHECK(plan.a_box_rows * ctas_n == (facts.swapped ? loaded : kTokenBox * ctas_n));
            CHECK(plan.tile_rows == (facts.swapped ? facts.rows : 0));
            const int64_t tiles = int64_t{plan.tiles_m} * plan.tiles_n;
            const int64_t tail = tiles - plan.tail_from;
            if (plan.pieces == 1) {
              CHECK(tail == 0);
            } else {
              CHECK(facts.swapped);
              CHECK(tail * plan.pieces <= kH200.multiprocessors / 2);
              CHECK(plan.tail_from % (kH200.multiprocessors / 2) == 0);
              CHECK(int64_t{plan.tail_rows} * plan.pieces >= plan.tile_rows);
              CHECK(plan.tail_rows >= kFewestPiece);
              CHECK(plan.tail_box_rows % 8 == 0);
            }
          } else {
            CHECK(int64_t{plan.tile_rows} * plan.tiles_m >= shape.m);
            CHECK(plan.tile_rows <= facts.rows);
            CHECK(plan.tile_rows <= plan.a_rows);
            CHECK(plan.cluster == plan.choice.parts * ctas_n);
            CHECK(plan.cluster <= 8);  // the most that every GPU takes
            CHECK(plan.choice.parts <= facts.most_parts);
            CHECK(plan.a_rows % (8 * ctas_n) == 0);  // whole groups of the swizzle
            const bool streams = facts.family == Sm90Family::kStream;  // only the rows that exist
            CHECK(plan.a_box_rows * ctas_n == (streams ? shape.m : plan.a_rows));
            CHECK(plan.a_rows <= whole_sixteens(facts.rows));
          }
          if (facts.family == Sm90Family::kDecode) {
            const int64_t shared = facts.swapped ? facts.rows : columns;
            CHECK(int64_t{plan.quads} * 4 * plan.choice.parts >= shared);
          }
          CHECK(plan.ctas % plan.cluster == 0);
          CHECK(plan.ctas > 0);
          CHECK(plan.a_box_rows >= 1);
          CHECK(plan.a_box_rows <= 256);  // the most that a box has
          CHECK(plan.b_rows <= 256);
          CHECK(facts.shared_bytes <= static_cast<uint32_t>(kH200.shared_bytes_per_block));
          CHECK(plan.kernel == sm90_kernel(shape.gated, shape.element, plan.choice.tile));
        }
      }
    }
  }
}

TEST_CASE(
    "sm90 plan: the sums of an invariant shape are one accumulator each, at any number of rows") {
  for (const int64_t m : {1, 16, 64, 65, 128, 150, 300, 513, 768, 769, 900, 1100, 2061, 8192}) {
    for (const auto& [d, h] : {std::pair{768, 3072}, {2048, 8192}, {3584, 14336}, {72, 88}}) {
      for (GemmShape shape : {gated(m, d, h), plain(m, d, h)}) {
        shape.invariant = true;
        const Sm90Plan plan = plan_sm90(shape, true, kH200);
        CAPTURE(text_of(plan, shape.gated));
        REQUIRE(plan.refused == nullptr);
        const Sm90Tile& tile = sm90_tile(shape.gated, plan.choice.tile);
        CHECK(plan.choice.parts == 1);
        CHECK_FALSE(tile.swapped);
      }
    }
  }
}

TEST_CASE("sm90 plan: down starts the next kernel early where gate and up fill the GPU") {
  struct Row {
    GemmShape shape;
    bool early;
  };
  const std::vector<Row> rows = {
      {gated(1, 768, 3072), true},      // 96 CTAs of 264, but few rows
      {gated(32, 768, 3072), true},     //
      {gated(33, 768, 3072), true},     // 128 of 132
      {gated(128, 1024, 4096), true},   // 256 of 264
      {gated(128, 2048, 8192), true},   // 256 of 264
      {gated(128, 2304, 9216), false},  // 116 of 132
      {gated(8192, 768, 3072), true},
  };
  for (const Row& row : rows) {
    const Sm90Plan plan = plan_sm90(row.shape, true, kH200);
    CAPTURE(text_of(plan, true));
    CHECK(starts_next_early(row.shape, plan, kH200) == row.early);
  }
}

TEST_CASE("sm90 plan: no rows or no columns launch nothing") {
  CHECK(plan_sm90(gated(0, 64, 64), true, kH200).ctas == 0);
  CHECK(plan_sm90(plain(0, 64, 64), true, kH200).ctas == 0);
  CHECK(plan_sm90(gated(9, 64, 0), true, kH200).ctas == 0);
  CHECK(plan_sm90(plain(9, 0, 64), true, kH200).ctas == 0);
}

TEST_CASE("sm90 plan: what training keeps is stored by tiles that can, at any number of rows") {
  for (const int64_t m : {1, 8, 33, 64, 65, 100, 768, 8192}) {
    for (const int64_t d : {64, 768, 1024, 4096}) {
      for (const int64_t h : {d, int64_t{1048}, 4 * d, int64_t{14336}}) {  // one stream tile's, too
        GemmShape shape = gated(m, d, h);
        shape.keeps = true;
        const Sm90Plan plan = plan_sm90(shape, true, kH200);
        CAPTURE(text_of(plan, true));
        REQUIRE(plan.refused == nullptr);
        const Sm90Tile& tile = sm90_tile(true, plan.choice.tile);
        REQUIRE(keeping_place(tile) < kKeepingTileCount);
        CHECK(plan.kernel == keeping_kernel(Element::kBFloat16, tile));
        CHECK(plan.out_rows == tile.store_rows);
      }
    }
  }
}

TEST_CASE("sm90 plan: kernel numbers follow the portable ones without gaps") {
  std::set<int> numbers;
  for (const bool is_gated : {true, false}) {
    for (const Element element : {Element::kBFloat16, Element::kFloat16}) {
      for (int tile = 0; tile < sm90_tile_count(is_gated); ++tile) {
        numbers.insert(sm90_kernel(is_gated, element, tile));
      }
    }
  }
  CHECK(numbers.size() == static_cast<std::size_t>(kSm90Kernels));
  for (const Element element : {Element::kBFloat16, Element::kFloat16}) {
    for (const Sm90Tile& tile : kGatedTiles) {
      if (keeping_place(tile) < kKeepingTileCount) numbers.insert(keeping_kernel(element, tile));
    }
    for (const GradientKind kind :
         {GradientKind::kTokens, GradientKind::kWeights, GradientKind::kGated}) {
      for (int tile = 0; tile < gradient_tile_count(kind); ++tile) {
        numbers.insert(gradient_kernel(kind, element, tile));
      }
    }
    numbers.insert(column_sums_kernel(element));
  }
  CHECK(numbers.size() == static_cast<std::size_t>(kAllKernels - kKernels));
  CHECK(*numbers.begin() == kKernels);
  CHECK(*numbers.rbegin() == kAllKernels - 1);
}

nlohmann::json results(const std::string& name) {
  std::ifstream file(kiln::paths::kResults + ("/" + name));
  REQUIRE(file);
  return nlohmann::json::parse(file);
}

struct Loss {  // of a forward
  int products = 0;
  double mean = 0;
  double worst = 0;
};

Loss loss_of(std::initializer_list<const char*> names) {
  nlohmann::json shapes = nlohmann::json::array();
  for (const char* name : names) {
    const nlohmann::json data = results(name);
    for (const auto& one : data.at("shapes")) shapes.push_back(one);
  }
  double sum = 0;
  Loss loss;
  for (const auto& one : shapes) {
    for (const bool is_gated : {true, false}) {
      const GemmShape shape = is_gated ? gated(one.at("m"), one.at("d"), one.at("h"))
                                       : plain(one.at("m"), one.at("d"), one.at("h"));
      double best = 1e30;
      double least = 1e30;  // expected, of those that were measured
      double found = 0;
      for (const auto& [name, time] :
           one.at(is_gated ? "gated" : "down").get<std::vector<std::pair<std::string, double>>>()) {
        Pins pins;
        std::array<char, 512> wrong{};
        const std::string text = (is_gated ? "gated=" : "down=") + name;
        REQUIRE(read_pins(text.c_str(), {.forward = true}, &pins, {wrong.data(), wrong.size()}));
        const Sm90Choice& choice = *pins.of(is_gated ? Pinned::kGated : Pinned::kDown);
        best = std::min(best, time);
        const double expected = sm90_time(shape, choice, kH200);
        if (expected >= least) continue;
        least = expected;
        found = time;
      }
      const double whole = one.at("kiln_us");  // of which either product is a part
      sum += (found - best) / whole;
      loss.worst = std::max(loss.worst, (found - best) / whole);
      ++loss.products;
    }
  }
  loss.mean = sum / loss.products;
  MESSAGE(loss.products << " products, mean loss of a forward " << loss.mean << ", worst "
                        << loss.worst);
  return loss;
}

TEST_CASE("sm90 plan: its choices lose little against the best measured ones") {
  const Loss loss = loss_of({"nvidia-h100-choices.json", "nvidia-h100-choices-180.json",
                             "nvidia-h100-choices-1200.json", "nvidia-h200-choices.json"});
  CHECK(loss.products > 900);
  CHECK(loss.mean < 0.007);
  CHECK(loss.worst < 0.12);
}

TEST_CASE("sm90 plan: of forwards that draw the most power, too") {
  const Loss loss = loss_of({"nvidia-h200-large.json"});
  CHECK(loss.products == 82);
  CHECK(loss.mean < 0.004);
  CHECK(loss.worst < 0.12);
}

}  // namespace
