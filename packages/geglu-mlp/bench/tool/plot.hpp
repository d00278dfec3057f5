// SPDX-License-Identifier: Apache-2.0
//
// Plot: bar charts as SVG text, readable on white and on black. Pure.
#pragma once

#include <string>
#include <vector>

namespace geglu_mlp_bench {

struct Bar {
  std::string label;
  double value = 0;
  std::string text;         ///< behind the bar: "163 us"
  bool emphasised = false;  ///< ours
};

/// Horizontal bars from zero, with a line at `mark` where that is greater than 0.
std::string bar_chart(const std::string& title, const std::string& subtitle,
                      const std::vector<Bar>& bars, double mark = 0);

}  // namespace geglu_mlp_bench
