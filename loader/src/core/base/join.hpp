// SPDX-License-Identifier: Apache-2.0
//
// Join: words of a list as one text, and a text as its words. Pure.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kiln {

/// "a, b, c"; empty for none. `text_of` makes text of an element that is not text itself.
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

/// The words of "a,b,c"; empty ones are left out. They point into the text.
inline std::vector<std::string_view> split(std::string_view text, char between) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(between));
    if (!word.empty()) words.push_back(word);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return words;
}

}  // namespace kiln
