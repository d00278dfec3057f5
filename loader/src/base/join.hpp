// SPDX-License-Identifier: Apache-2.0
//
// Join: words of a list as one text, for messages. Pure.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace kiln {

/// "a, b, c"; empty for none. `text_of` makes the text of an element that is none itself.
template <class List, class TextOf = std::identity>
std::string join(const List& list, std::string_view between = ", ", TextOf text_of = {}) {
  std::string text;
  bool first = true;
  for (const auto& each : list) {
    if (!first) text += between;
    first = false;
    text += std::invoke(text_of, each);
  }
  return text;
}

}  // namespace kiln
