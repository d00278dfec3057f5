// SPDX-License-Identifier: Apache-2.0
//
// Which tables are plotted, with which values, and where a mark stands.
#include <doctest/doctest.h>

#include "html.hpp"
#include "registry/site/plot.hpp"

namespace {

using kiln::registry::CardTable;
using kiln::registry::Plot;
using kiln::registry::plots_of;

using kiln::test::has;

}  // namespace

TEST_CASE("plot: rivals stand between kiln and the first ratio") {
  const CardTable table{
      {"M, D, H", "kiln", "eager", "quack", "kiln, recompute", "eager / kiln", "portable",
       "error, kiln", "error, eager"},
      {{"1, 2, 3", "10.0", "20.0", "failed", "7", "2.00", "99", "2.0e-03", "4e-03"},
       {"4, 5, 6", "10.0", "9.0", "15", "7", "0.90", "99", "1.0e-03", "3e-03"},
       {"no time", "", "9.0", "15", "7", "0.90", "99", "", ""}}};
  const std::vector<Plot> plots = plots_of(table);
  REQUIRE(plots.size() == 2);
  const Plot& speed = plots[0];
  CHECK(speed.series == std::vector<std::string>{"eager", "quack"});
  CHECK(speed.rows_are == "M, D, H");
  REQUIRE(speed.rows.size() == 2);
  REQUIRE(speed.rows[0].points.size() == 1);
  CHECK(speed.rows[0].points[0].value == doctest::Approx(2));
  REQUIRE(speed.rows[1].points.size() == 2);
  CHECK(speed.rows[1].points[0].value == doctest::Approx(0.9));
  CHECK(speed.rows[1].points[1].value == doctest::Approx(1.5));
  CHECK(speed.rows[1].points[1].series == 1);
  const Plot& errors = plots[1];
  CHECK(errors.series == std::vector<std::string>{"kiln", "eager"});
  REQUIRE(errors.rows.size() == 2);
  CHECK(errors.rows[0].points[0].value == doctest::Approx(2e-3));
}

TEST_CASE("plot: worst errors by kind") {
  const std::vector<Plot> plots =
      plots_of({{"variant", "tested on", "worst relative L2 against fp64"},
                {{"a", "x", "backward bfloat16 3.19e-03, float32 7e-07"},
                 {"b", "untested", ""},
                 {"c", "x", "float32 8e-07, nonsense"}}});
  REQUIRE(plots.size() == 1);
  REQUIRE(plots[0].rows.size() == 2);
  CHECK(plots[0].rows[0].label == "backward bfloat16");
  CHECK(plots[0].rows[1].points.size() == 2);
  CHECK(plots[0].rows[1].points[1].name == "c: 8e-7");
}

TEST_CASE("plot: a table that measures nothing has none") {
  const CardTable tables[] = {{{"op", "inputs"}, {{"forward", "x"}}},
                              {{"M", "kiln"}, {{"1", "2.0"}}},
                              {{"M", "kiln", "eager / kiln"}, {{"1", "2.0", "3"}}},
                              {{"M", "kiln", "eager"}, {{"1", "x", "3"}, {"2", "0", "1"}}},
                              {{"M", "kiln", "eager"}, {{"1", "1", "-3"}, {"2", "inf", "nan"}}},
                              {{"M", "kiln", "eager"}, {{"1"}}}};
  for (const CardTable& table : tables) CHECK(plots_of(table).empty());
}

TEST_CASE("plot: drawn, with each word escaped") {
  Plot plot{.caption = "<c>",
            .series = {"<s>", "t"},
            .rows_are = "<w>",
            .rows = {{"<r>", {{0, 2, "<n>"}, {1, 4, "x"}}}},
            .reference = 1,
            .reference_label = "<k>"};
  const std::string html = draw(plot).str();
  for (const char* word : {"c", "s", "w", "r", "n", "k"}) {
    CAPTURE(word);
    CHECK(has(html, "&lt;" + std::string(word) + "&gt;"));
    CHECK_FALSE(has(html, "<" + std::string(word) + ">"));
  }
  CHECK(has(html, "class=\"reference\""));
  CHECK_FALSE(has(html, "nan"));
}

TEST_CASE("plot: a long one has a row a series, with the geometric mean") {
  Plot plot{.caption = "c", .series = {"a", "b"}, .rows = {}, .reference = 1};
  for (int i = 0; i < 40; ++i) plot.rows.push_back({"r", {{0, i % 2 == 0 ? 2.0 : 8.0, "p"}}});
  const std::string html = draw(plot).str();
  CHECK(has(html, "A mark is one of 40 rows"));
  CHECK(has(html, "geometric mean 4"));
}
