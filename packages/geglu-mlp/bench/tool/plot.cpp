// SPDX-License-Identifier: Apache-2.0
#include "plot.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace geglu_mlp_bench {
namespace {

constexpr int kWidth = 760;
constexpr int kLabelWidth = 190;
constexpr int kTextWidth = 130;
constexpr int kBarHeight = 18;
constexpr int kPitch = 26;
constexpr int kTop = 64;

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

}  // namespace

std::string bar_chart(const std::string& title, const std::string& subtitle,
                      const std::vector<Bar>& bars, double mark) {
  double most = mark;
  for (const Bar& bar : bars) most = std::max(most, bar.value);
  const int room = kWidth - kLabelWidth - kTextWidth;
  const auto length = [&](double value) {
    return most > 0 && std::isfinite(value) ? static_cast<int>(std::lround(value / most * room))
                                            : 0;
  };
  const int height = kTop + kPitch * static_cast<int>(bars.size()) + 12;
  std::ostringstream svg;
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << kWidth << ' ' << height
      << "\" font-family=\"sans-serif\" font-size=\"13\">\n"
      << "<style>text{fill:#222}.b{fill:#9aa5b1}.k{fill:#c2410c}.m{stroke:#222}"
         "@media(prefers-color-scheme:dark){text{fill:#ddd}.m{stroke:#ddd}}</style>\n"
      << "<text x=\"8\" y=\"22\" font-size=\"16\" font-weight=\"bold\">" << escaped(title)
      << "</text>\n<text x=\"8\" y=\"44\">" << escaped(subtitle) << "</text>\n";
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const Bar& bar = bars[i];
    const int y = kTop + kPitch * static_cast<int>(i);
    svg << "<text x=\"" << kLabelWidth - 8 << "\" y=\"" << y + 14 << "\" text-anchor=\"end\">"
        << escaped(bar.label) << "</text><rect class=\"" << (bar.emphasised ? 'k' : 'b')
        << "\" x=\"" << kLabelWidth << "\" y=\"" << y << "\" width=\"" << length(bar.value)
        << "\" height=\"" << kBarHeight << "\"/><text x=\"" << kLabelWidth + length(bar.value) + 6
        << "\" y=\"" << y + 14 << "\">" << escaped(bar.text) << "</text>\n";
  }
  if (mark > 0) {
    const int x = kLabelWidth + length(mark);
    svg << "<line class=\"m\" x1=\"" << x << "\" x2=\"" << x << "\" y1=\"" << kTop - 6 << "\" y2=\""
        << height - 8 << "\" stroke-dasharray=\"4 3\"/>\n";
  }
  svg << "</svg>\n";
  return svg.str();
}

}  // namespace geglu_mlp_bench
