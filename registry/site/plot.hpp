// SPDX-License-Identifier: Apache-2.0
//
// Plot: what a table of a card measured against Kiln, as inline SVG: a bar for each rival, its time
// over Kiln's. Between markdown and the pages. Pure.
//
// Such a table has a column "kiln". The columns to its right are rivals, up to the first one whose
// title has a '/' or begins with "error". A title with a comma is not a rival.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "registry/site/markup.hpp"

namespace kiln::registry {

struct CardTable {
  std::vector<std::string> titles;
  std::vector<std::vector<std::string>> rows;
};

/// A rival's time over Kiln's, above 0: the geometric mean of the rows that have both, and the
/// ends.
struct SpeedBar {
  std::string rival;
  std::size_t rows = 0;
  double mean = 0;
  double least = 0;
  double most = 0;
};

/// At most eight; none of a table that measures nothing.
std::vector<SpeedBar> speed_of(const CardTable& table);

Html draw(const std::vector<SpeedBar>& bars);

}  // namespace kiln::registry
