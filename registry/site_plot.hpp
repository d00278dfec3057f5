// SPDX-License-Identifier: Apache-2.0
//
// Site plot: measurements as inline SVG. What is plotted is read out of tables of a card and of
// test records; between site_card or site_facts and the pages. Pure.
//
//   speed    a table with a column "kiln": the columns to its right are rivals, up to the first one
//            whose title has a '/' or begins with "error". A title with a comma is no rival.
//   error    the columns "error, NAME" of the same table; or a column that begins with "worst
//            relative L2", whose cells are like "bfloat16 1.8e-03, float32 6.9e-07"
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "markup.hpp"

namespace kiln::registry {

struct CardTable {
  std::vector<std::string> titles;
  std::vector<std::vector<std::string>> rows;
};

struct PlotPoint {
  std::size_t series = 0;
  double value = 0;  ///< above 0
  std::string name;  ///< shown where a pointer rests on it
};

struct PlotRow {
  std::string label;
  std::vector<PlotPoint> points;
};

/// One scale, logarithmic, and a row a shape.
struct Plot {
  std::string caption;
  std::vector<std::string> series;
  std::string rows_are;  ///< "M, D, H": what stands at the rows
  std::vector<PlotRow> rows;
  std::optional<double> reference;  ///< a line; its label is `reference_label`
  std::string reference_label;

  bool empty() const { return rows.empty(); }
};

/// At most two; none of a table that measures nothing.
std::vector<Plot> plots_of(const CardTable& table);

/// Long ones have a row a series instead, with all shapes in it and their geometric mean.
Html draw(const Plot& plot);

}  // namespace kiln::registry
