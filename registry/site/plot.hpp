// SPDX-License-Identifier: Apache-2.0
//
// Plot: measurements as inline SVG. What is plotted is read out of tables of a card and of
// test records; between markdown or facts and the pages. Pure.
//
//   speed    a table with a column "kiln": the columns to its right are rivals, up to the first one
//            whose title has a '/' or begins with "error". A title with a comma is not a rival.
//   error    the columns "error, NAME" of the same table; or a column that begins with "worst
//            relative L2", whose cells are like "bfloat16 1.8e-03, float32 6.9e-07"
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "registry/site/markup.hpp"

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

/// As much of a text as there is room for, without a cut in the middle of a character.
std::string short_of(std::string_view text, std::size_t most_bytes = 80);

/// A plot's rows by their label. Labels and names come from a document: a longer one than 80
/// characters is cut, so that a plot has no more bytes than its points have.
class PlotRows {
 public:
  explicit PlotRows(Plot& plot) : plot_(plot) {}
  void add(std::string_view label, double value, std::string_view name);

 private:
  Plot& plot_;
  std::map<std::string, std::size_t, std::less<>> rows_;
};

/// At most two; none of a table that measures nothing.
std::vector<Plot> plots_of(const CardTable& table);

/// Long ones have a row a series instead, with all shapes in it and their geometric mean. At most
/// 4000 marks.
Html draw(const Plot& plot);

}  // namespace kiln::registry
