// SPDX-License-Identifier: Apache-2.0
#include "registry/site/plot.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace kiln::registry {
namespace {

constexpr std::size_t kMostBars = 8;
constexpr std::size_t kNameBytes = 20;  // what fits the names' column

/// A cell that is a number and nothing else; 0 for another.
double number_of(const std::vector<std::string>& row, std::size_t column) {
  if (column >= row.size()) return 0;
  const std::string& cell = row[column];
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  const bool whole = error == std::errc() && end == cell.data() + cell.size();
  return whole && std::isfinite(value) && value > 1e-30 && value < 1e30 ? value : 0;
}

std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

SpeedBar bar_of(const CardTable& table, std::size_t kiln, std::size_t rival) {
  SpeedBar bar{.rival = short_of(table.titles[rival], kNameBytes)};
  double logarithms = 0;
  for (const std::vector<std::string>& row : table.rows) {
    const double ours = number_of(row, kiln);
    const double theirs = number_of(row, rival);
    if (ours == 0 || theirs == 0) continue;
    const double ratio = theirs / ours;
    logarithms += std::log(ratio);
    bar.least = bar.rows == 0 ? ratio : std::min(bar.least, ratio);
    bar.most = std::max(bar.most, ratio);
    ++bar.rows;
  }
  if (bar.rows > 0) bar.mean = std::exp(logarithms / static_cast<double>(bar.rows));
  return bar;
}

// ---- drawing ----

constexpr double kWidth = 720;
constexpr double kLeft = 170;   // the names' column
constexpr double kRight = 250;  // the figures'
constexpr double kTop = 22;
constexpr double kRowHeight = 28;

}  // namespace

std::vector<SpeedBar> speed_of(const CardTable& table) {
  std::vector<SpeedBar> bars;
  const auto kiln =
      static_cast<std::size_t>(std::ranges::find(table.titles, "kiln") - table.titles.begin());
  for (std::size_t i = kiln + 1; i < table.titles.size() && bars.size() < kMostBars; ++i) {
    const std::string& title = table.titles[i];
    if (title.find('/') != std::string::npos || title.starts_with("error")) break;
    if (title.empty() || title.find(',') != std::string::npos) continue;
    SpeedBar bar = bar_of(table, kiln, i);
    if (bar.rows > 0) bars.push_back(std::move(bar));
  }
  return bars;
}

Html draw(const std::vector<SpeedBar>& bars) {
  double most = 1;
  for (const SpeedBar& bar : bars) most = std::max(most, bar.most);
  const auto x = [most](double value) { return kLeft + (kWidth - kLeft - kRight) * value / most; };
  Html rows;
  double y = kTop;
  for (const SpeedBar& bar : bars) {
    rows.add("<text class=\"label\" x=\"{}\" y=\"{}\">{}</text>", kLeft - 10, y + 17, bar.rival);
    rows.add("<rect class=\"time\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"18\"/>", kLeft, y + 4,
             x(bar.mean) - kLeft);
    rows.add("<path class=\"range\" d=\"M{} {}H{}\"/>", x(bar.least), y + 13, x(bar.most));
    rows.add("<text x=\"{}\" y=\"{}\">{}</text>", kWidth - kRight + 10, y + 17,
             shown(bar.mean) + " (" + shown(bar.least) + " to " + shown(bar.most) + ")");
    y += kRowHeight;
  }
  return Html(
      "<figure class=\"plot\"><figcaption>Time of each rival over Kiln's: the geometric mean of "
      "the table's rows, and from the least to the most. Right of 1, Kiln is faster."
      "</figcaption><div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Plot\">"
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Times over Kiln's. The table has the "
      "numbers.\">{}<path class=\"reference\" d=\"M{} {}V{}\"/>"
      "<text class=\"kiln\" x=\"{}\" y=\"{}\">kiln</text></svg></div></figure>\n",
      kWidth, y + 4, rows, x(1), kTop - 4, y, x(1), kTop - 8);
}

}  // namespace kiln::registry
