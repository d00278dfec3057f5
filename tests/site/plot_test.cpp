// SPDX-License-Identifier: Apache-2.0
//
// Which tables are plotted, and with which values.
#include <doctest/doctest.h>

#include "html.hpp"
#include "registry/site/plot.hpp"

namespace {

using kiln::registry::CardTable;
using kiln::registry::speed_of;
using kiln::registry::SpeedBar;

using kiln::test::has;

}  // namespace

TEST_CASE(
    "plot: rivals stand between kiln and the first ratio, and are compared where both have a "
    "time") {
  const std::vector<SpeedBar> bars =
      speed_of({{"M, D, H", "kiln", "eager", "quack", "kiln, recompute", "eager / kiln", "portable",
                 "error, kiln", "error, eager"},
                {{"1, 2, 3", "10.0", "20.0", "failed", "7", "2.00", "99", "2.0e-03", "4e-03"},
                 {"4, 5, 6", "10.0", "5", "15", "7", "0.90", "99", "1.0e-03", "3e-03"},
                 {"no time", "", "9.0", "15", "7", "0.90", "99", "", ""}}});
  REQUIRE(bars.size() == 2);
  CHECK(bars[0].rival == "eager");
  CHECK(bars[0].rows == 2);
  CHECK(bars[0].least == doctest::Approx(0.5));
  CHECK(bars[0].mean == doctest::Approx(1));
  CHECK(bars[0].most == doctest::Approx(2));
  CHECK(bars[1].rival == "quack");
  CHECK(bars[1].rows == 1);
  CHECK(bars[1].mean == doctest::Approx(1.5));
}

TEST_CASE("plot: a table that measures nothing has none") {
  const CardTable tables[] = {{{}, {}},
                              {{"op", "inputs"}, {{"forward", "x"}}},
                              {{"M", "kiln"}, {{"1", "2.0"}}},
                              {{"M", "kiln", "eager / kiln"}, {{"1", "2.0", "3"}}},
                              {{"M", "kiln", "eager"}, {{"1", "x", "3"}, {"2", "0", "1"}}},
                              {{"M", "kiln", "eager"}, {{"1", "1", "-3"}, {"2", "inf", "nan"}}},
                              {{"M", "kiln", "eager"}, {{"1"}}}};
  for (const CardTable& table : tables) CHECK(speed_of(table).empty());
}

TEST_CASE("plot: drawn, with each name escaped") {
  const std::string html =
      kiln::registry::draw({{.rival = "<s>", .rows = 3, .mean = 2, .least = 0.5, .most = 4}}).str();
  CHECK(has(html, "&lt;s&gt;"));
  CHECK_FALSE(has(html, "<s>"));
  CHECK(has(html, "2 (0.5 to 4)"));
  CHECK(has(html, "<rect class=\"time\" x=\"170\" y=\"26\" width=\"150\""));  // half of 300
  CHECK(has(html, "<path class=\"reference\" d=\"M245 18"));
  CHECK_FALSE(has(html, "nan"));
}
