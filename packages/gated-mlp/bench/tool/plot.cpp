// SPDX-License-Identifier: Apache-2.0
#include "plot.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace gated_mlp_bench {
namespace {

constexpr int kWidth = 760;
constexpr int kLabelWidth = 190;
constexpr int kTextWidth = 170;
constexpr int kRoom = kWidth - kLabelWidth - kTextWidth;
constexpr int kBarHeight = 18;
constexpr int kPitch = 24;
constexpr int kTop = 66;
constexpr int kTitleHeight = 24;  // of a panel
constexpr int kGap = 14;          // below a panel

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

void draw_text(std::ostream& svg, int x, int y, const std::string& attributes,
               const std::string& text) {
  svg << "<text x=\"" << x << "\" y=\"" << y << '"' << attributes << '>' << escaped(text)
      << "</text>\n";
}

/// Draws the panel from `y` down and returns where it ends.
int draw(const Panel& panel, int y, std::ostream& svg) {
  double most = panel.mark;
  for (const Bar& bar : panel.bars) most = std::max(most, bar.value);
  const auto length = [&](double value) {
    return most > 0 && std::isfinite(value) ? static_cast<int>(std::lround(value / most * kRoom))
                                            : 0;
  };
  if (!panel.title.empty()) {
    draw_text(svg, 8, y + 14, " font-weight=\"bold\"", panel.title);
    y += kTitleHeight;
  }
  const int top = y;
  for (const Bar& bar : panel.bars) {
    draw_text(svg, kLabelWidth - 8, y + 14, " text-anchor=\"end\"", bar.label);
    svg << "<rect class=\"" << (bar.emphasised ? 'k' : 'b') << "\" x=\"" << kLabelWidth << "\" y=\""
        << y << "\" width=\"" << length(bar.value) << "\" height=\"" << kBarHeight << "\"/>\n";
    draw_text(svg, kLabelWidth + std::max(length(bar.value), length(panel.mark)) + 8, y + 14, "",
              bar.text);
    y += kPitch;
  }
  if (panel.mark > 0) {
    const int x = kLabelWidth + length(panel.mark);
    svg << "<line class=\"m\" x1=\"" << x << "\" x2=\"" << x << "\" y1=\"" << top - 4 << "\" y2=\""
        << y << "\"/>\n";
  }
  return y + kGap;
}

}  // namespace

std::string bar_chart(const std::string& title, const std::string& subtitle,
                      const std::vector<Panel>& panels) {
  std::ostringstream body;
  int y = kTop;
  for (const Panel& panel : panels) y = draw(panel, y, body);
  std::ostringstream svg;
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << kWidth << "\" height=\"" << y
      << "\" viewBox=\"0 0 " << kWidth << ' ' << y
      << "\" font-family=\"sans-serif\" font-size=\"13\">\n"
      << "<style>.g{fill:#fff}text{fill:#222}.b{fill:#9aa5b1}.k{fill:#c2410c}.m{stroke:#222}"
         "@media(prefers-color-scheme:dark){.g{fill:#111}text{fill:#ddd}.b{fill:#64707d}"
         ".m{stroke:#ddd}}</style>\n"
      << "<rect class=\"g\" width=\"" << kWidth << "\" height=\"" << y << "\"/>\n";
  draw_text(svg, 8, 24, " font-size=\"16\" font-weight=\"bold\"", title);
  draw_text(svg, 8, 46, "", subtitle);
  svg << body.str() << "</svg>\n";
  return svg.str();
}

}  // namespace gated_mlp_bench
