// SPDX-License-Identifier: Apache-2.0
//
// Plot: bar charts as SVG text, readable on white and on black. Pure.
#pragma once

#include <string>
#include <vector>

namespace gated_mlp_bench {

struct Bar {
  std::string label;
  double value = 0;
  std::string text;         ///< behind the bar: "163"
  bool emphasised = false;  ///< ours, or won
};

struct Panel {
  std::string title;
  std::vector<Bar> bars;  ///< from zero; the panel has a scale of its own
  double mark = 0;        ///< a line across at this value; 0: none
};

std::string bar_chart(const std::string& title, const std::string& subtitle,
                      const std::vector<Panel>& panels);

}  // namespace gated_mlp_bench
