// SPDX-License-Identifier: Apache-2.0
#include "kiln/event.hpp"

#include <iterator>

namespace kiln {

std::string_view to_string(Event::Stage stage) {
  static constexpr std::string_view kWords[] = {"index",   "manifest", "config", "layer",
                                                "unpack",  "retry",    "wait",   "fallback",
                                                "compile", "warning"};
  static_assert(std::size(kWords) == static_cast<std::size_t>(Event::Stage::kWarning) + 1);
  return kWords[static_cast<std::size_t>(stage)];
}

}  // namespace kiln
