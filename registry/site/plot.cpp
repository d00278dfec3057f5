// SPDX-License-Identifier: Apache-2.0
#include "registry/site/plot.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/join.hpp"

namespace kiln::registry {
namespace {

constexpr std::size_t kMostRows = 16;   // more are condensed
constexpr std::size_t kMostSeries = 8;  // colours and marks of style.css
constexpr std::size_t kMostPoints = 4000;

/// A cell that is a number and nothing else; 0 for another.
double number_of(std::string_view cell) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  const bool whole = error == std::errc() && end == cell.data() + cell.size();
  return whole && std::isfinite(value) && value > 1e-30 && value < 1e30 ? value : 0;
}

std::string cell_of(const std::vector<std::string>& row, std::size_t column) {
  return column < row.size() ? row[column] : "";
}

std::string shown(double value) {
  const bool small = value < 0.01;
  char text[32];
  std::snprintf(text, sizeof text, small ? "%.2e" : "%.3g", value);
  if (!small) return text;
  // "2.35e-03" as "2.35e-3", "1.00e-03" as "1e-3".
  std::string digits(text);
  const std::size_t e = digits.find('e');
  std::string exponent = digits.substr(e);
  digits.resize(e);
  while (digits.ends_with('0')) digits.pop_back();
  if (digits.ends_with('.')) digits.pop_back();
  if (exponent.size() == 4 && exponent[2] == '0') exponent.erase(2, 1);
  return digits + exponent;
}

std::optional<std::size_t> column_named(const CardTable& table, std::string_view title) {
  const auto found = std::ranges::find(table.titles, title);
  if (found == table.titles.end()) return std::nullopt;
  return static_cast<std::size_t>(found - table.titles.begin());
}

/// Columns as series, of each row the values that are numbers over `divisor`'s.
Plot plot_columns(const CardTable& table, const std::vector<std::size_t>& columns,
                  std::optional<std::size_t> divisor) {
  Plot plot;
  plot.rows_are = table.titles.front();
  for (const std::vector<std::string>& row : table.rows) {
    PlotRow made{short_of(cell_of(row, 0)), {}};
    const double by = divisor ? number_of(cell_of(row, *divisor)) : 1;
    if (by == 0) continue;
    for (std::size_t series = 0; series < columns.size(); ++series) {
      const double value = number_of(cell_of(row, columns[series])) / by;
      if (value == 0) continue;
      made.points.push_back(
          {series, value,
           short_of(table.titles[columns[series]]) + ", " + made.label + ": " + shown(value)});
    }
    if (!made.points.empty()) plot.rows.push_back(std::move(made));
  }
  return plot;
}

Plot speed_of(const CardTable& table) {
  const std::optional<std::size_t> kiln = column_named(table, "kiln");
  if (!kiln) return {};
  std::vector<std::size_t> rivals;
  std::vector<std::string> names;
  for (std::size_t i = *kiln + 1; i < table.titles.size() && rivals.size() < kMostSeries; ++i) {
    const std::string& title = table.titles[i];
    if (title.find('/') != std::string::npos || title.starts_with("error")) break;
    if (title.empty() || title.find(',') != std::string::npos) continue;
    rivals.push_back(i);
    names.push_back(title);
  }
  if (rivals.empty()) return {};
  Plot plot = plot_columns(table, rivals, kiln);
  plot.series = names;
  plot.caption = "Time of each rival over Kiln's. Right of 1, Kiln is faster.";
  plot.reference = 1;
  plot.reference_label = "kiln";
  return plot;
}

Plot errors_of(const CardTable& table) {
  constexpr std::string_view kError = "error, ";
  std::vector<std::size_t> columns;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < table.titles.size() && columns.size() < kMostSeries; ++i) {
    if (!table.titles[i].starts_with(kError)) continue;
    columns.push_back(i);
    names.push_back(table.titles[i].substr(kError.size()));
  }
  if (columns.empty()) return {};
  Plot plot = plot_columns(table, columns, std::nullopt);
  plot.series = names;
  plot.caption = "Error, as the table gives it. Left is better.";
  return plot;
}

/// "backward bfloat16 3.19e-03" of a cell, by its words: a row a kind, a point a variant.
Plot worst_errors_of(const CardTable& table) {
  Plot plot;
  PlotRows rows(plot);
  for (std::size_t column = 0; column < table.titles.size(); ++column) {
    if (!table.titles[column].starts_with("worst relative L2")) continue;
    for (const std::vector<std::string>& row : table.rows) {
      const std::string cell = cell_of(row, column);
      for (std::string_view each : split(cell, ',')) {
        each.remove_prefix(std::min(each.find_first_not_of(' '), each.size()));
        const std::size_t space = each.rfind(' ');
        if (space == std::string_view::npos) continue;
        const double value = number_of(each.substr(space + 1));
        if (value == 0) continue;
        rows.add(each.substr(0, space), value, cell_of(row, 0));
      }
    }
    plot.series = {"a variant"};
    plot.caption = "Worst relative L2 error against fp64, a mark a variant. Left is better.";
    break;
  }
  return plot;
}

/// A row a series. The geometric mean is drawn as a mark of its own.
Plot condense(const Plot& plot) {
  Plot condensed = plot;
  condensed.rows.clear();
  condensed.rows_are.clear();
  for (const std::string& name : plot.series) condensed.rows.push_back({name, {}});
  for (const PlotRow& row : plot.rows) {
    for (const PlotPoint& point : row.points) {
      condensed.rows[point.series].points.push_back(point);
    }
  }
  return condensed;
}

/// The plot with its first kMostPoints.
Plot bounded(Plot plot) {
  std::size_t room = kMostPoints;
  for (PlotRow& row : plot.rows) {
    row.points.resize(std::min(row.points.size(), room));
    room -= row.points.size();
  }
  return plot;
}

double geometric_mean(const PlotRow& row) {
  double sum = 0;
  for (const PlotPoint& point : row.points) sum += std::log(point.value);
  return std::exp(sum / static_cast<double>(row.points.size()));
}

// ---- drawing ----

constexpr double kWidth = 720;
constexpr double kLeft = 150;  // the labels' column
constexpr double kRight = 16;
constexpr double kTop = 22;
constexpr double kRowHeight = 24;
constexpr double kBottom = 26;

/// From values to pixels, logarithmic, with room at both ends.
class Scale {
 public:
  explicit Scale(const Plot& plot) {
    double low = plot.reference.value_or(std::numeric_limits<double>::max());
    double high = plot.reference.value_or(0);
    for (const PlotRow& row : plot.rows) {
      for (const PlotPoint& point : row.points) {
        low = std::min(low, point.value);
        high = std::max(high, point.value);
      }
    }
    if (low > high) low = high = 1;
    const double room = std::max(0.06 * std::log(high / low), 0.02);
    low_ = std::log(low) - room;
    high_ = std::log(high) + room;
  }

  double x(double value) const {
    return kLeft + (kWidth - kLeft - kRight) * (std::log(value) - low_) / (high_ - low_);
  }

  /// Round values, few enough to stand side by side.
  std::vector<double> ticks() const {
    using Steps = std::vector<double>;
    for (const Steps& steps : {Steps{1, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7, 2, 2.5, 3, 4, 5, 7, 9.5},
                               Steps{1, 1.2, 1.5, 2, 3, 5, 7}, Steps{1, 2, 5}, Steps{1}}) {
      std::vector<double> found;
      double last = -kWidth;
      bool fits = true;
      const int first = static_cast<int>(std::floor(low_ / std::log(10.0)));
      const int end = static_cast<int>(std::ceil(high_ / std::log(10.0)));
      for (int exponent = first; exponent <= end && fits; ++exponent) {
        for (const double step : steps) {
          const double value = step * std::pow(10.0, exponent);
          if (std::log(value) < low_ || std::log(value) > high_) continue;
          fits = fits && x(value) - last >= kLabelWidth;
          last = x(value);
          found.push_back(value);
        }
      }
      if (fits) return found;
    }
    return {};
  }

 private:
  static constexpr double kLabelWidth = 44;
  double low_ = 0;
  double high_ = 0;
};

/// The shape and colour of a series, in a box of 12 by 12 around 0, 0; by turns beyond eight.
Html mark(std::size_t series) {
  static constexpr std::array<Literal, kMostSeries> kMarks = {
      Literal("<path class=\"s0\" d=\"M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0\"/>"),
      Literal("<path class=\"s1\" d=\"M-4.5-4.5h9v9h-9z\"/>"),
      Literal("<path class=\"s2\" d=\"M0-5.5L5.5 4.5h-11z\"/>"),
      Literal("<path class=\"s3\" d=\"M0-6L6 0L0 6L-6 0z\"/>"),
      Literal("<path class=\"s4\" d=\"M0 5.5L5.5-4.5h-11z\"/>"),
      Literal("<path class=\"s5\" d=\"M-2-5.5h4v3.5h3.5v4h-3.5v3.5h-4v-3.5h-3.5v-4h3.5z\"/>"),
      Literal("<path class=\"s6\" d=\"M-5.5-2.5h11v5h-11z\"/>"),
      Literal("<path class=\"s7\" d=\"M-2.5-5.5h5v11h-5z\"/>")};
  return std::move(Html().markup(kMarks[series % kMostSeries]));
}

Html legend(const Plot& plot) {
  Html html;
  if (plot.series.size() < 2) return html;
  html.markup("<ul class=\"legend\">");
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    html.markup("<li><svg viewBox=\"-7 -7 14 14\" width=\"14\" height=\"14\" aria-hidden=\"true\">")
        .part(mark(i))
        .markup("</svg>")
        .text(plot.series[i])
        .markup("</li>");
  }
  html.markup("</ul>");
  return html;
}

void draw_axis(Html& svg, const Plot& plot, const Scale& scale, double bottom) {
  for (const double tick : scale.ticks()) {
    svg.markup("<path class=\"grid\" d=\"M").number(scale.x(tick)).markup(" ").number(kTop);
    svg.markup("V").number(bottom).markup("\"/><text class=\"tick\" x=\"").number(scale.x(tick));
    svg.markup("\" y=\"").number(bottom + 17).markup("\">").text(shown(tick)).markup("</text>");
  }
  svg.markup("<text class=\"label tick\" x=\"").number(kLeft - 10).markup("\" y=\"");
  svg.number(kTop - 7).markup("\">").text(plot.rows_are).markup("</text>");
  if (!plot.reference) return;
  svg.markup("<path class=\"reference\" d=\"M").number(scale.x(*plot.reference)).markup(" ");
  svg.number(kTop).markup("V").number(bottom).markup("\"/><text class=\"tick strong\" x=\"");
  svg.number(scale.x(*plot.reference)).markup("\" y=\"").number(kTop - 7).markup("\">");
  svg.text(plot.reference_label).markup("</text>");
}

void draw_row(Html& svg, const PlotRow& row, const Scale& scale, double y, bool condensed) {
  svg.markup("<path class=\"row\" d=\"M").number(kLeft).markup(" ").number(y).markup("H");
  svg.number(kWidth - kRight).markup("\"/><text class=\"label\" x=\"").number(kLeft - 10);
  svg.markup("\" y=\"").number(y + 4).markup("\">").text(row.label).markup("</text>");
  for (const PlotPoint& point : row.points) {
    svg.markup("<g transform=\"translate(").number(scale.x(point.value)).markup(" ").number(y);
    svg.markup(")\"><title>").text(point.name).markup("</title>").part(mark(point.series));
    svg.markup("</g>");
  }
  if (!condensed || row.points.empty()) return;
  const double mean = geometric_mean(row);
  svg.markup("<g transform=\"translate(").number(scale.x(mean)).markup(" ").number(y);
  svg.markup(")\"><title>").text("geometric mean " + shown(mean));
  svg.markup("</title><path class=\"mean\" d=\"M0-10V10\"/></g>");
}

}  // namespace

std::string short_of(std::string_view text, std::size_t most_bytes) {
  if (text.size() <= most_bytes) return std::string(text);
  std::size_t end = most_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "\xe2\x80\xa6";
}

void PlotRows::add(std::string_view label, double value, std::string_view name) {
  const auto [found, is_new] = rows_.try_emplace(short_of(label), plot_.rows.size());
  if (is_new) plot_.rows.push_back({found->first, {}});
  plot_.rows[found->second].points.push_back({0, value, short_of(name) + ": " + shown(value)});
}

std::vector<Plot> plots_of(const CardTable& table) {
  std::vector<Plot> plots;
  for (Plot& plot : std::array{speed_of(table), errors_of(table), worst_errors_of(table)}) {
    if (!plot.empty()) plots.push_back(std::move(plot));
  }
  return plots;
}

Html draw(const Plot& given) {
  const bool condensed = given.rows.size() > kMostRows;
  const Plot plot = bounded(condensed ? condense(given) : given);
  const Scale scale(plot);
  const double bottom = kTop + kRowHeight * static_cast<double>(plot.rows.size());
  Html html;
  html.markup("<figure class=\"plot\"><figcaption>").text(plot.caption);
  if (condensed) {
    html.text(" A mark is one of " + std::to_string(given.rows.size()) +
              " rows of the table, the bar their geometric mean.");
  }
  html.markup("</figcaption>").part(legend(plot));
  html.markup(
      "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Plot\"><svg viewBox=\"0 0 ");
  html.number(kWidth).markup(" ").number(bottom + kBottom).markup("\" role=\"img\" aria-label=\"");
  html.text(plot.caption + " The table has the same numbers.").markup("\">");
  draw_axis(html, plot, scale, bottom);
  double y = kTop + kRowHeight / 2;
  for (const PlotRow& row : plot.rows) {
    draw_row(html, row, scale, y, condensed);
    y += kRowHeight;
  }
  html.markup("</svg></div></figure>\n");
  return html;
}

}  // namespace kiln::registry
