// SPDX-License-Identifier: Apache-2.0
#include "http/warning.hpp"

#include <algorithm>

#include "base/quote.hpp"

namespace kiln {

std::vector<std::string> parse_warnings(std::string_view header) {
  constexpr std::size_t kMaxBytes = 4096;
  constexpr std::string_view kBegin = "299 - \"";
  std::vector<std::string> texts;
  if (header.size() > kMaxBytes) return texts;
  // A text may hold a comma: an element ends where its quotation does.
  while (!header.empty()) {
    header.remove_prefix(std::min(header.find_first_not_of(", \t"), header.size()));
    const bool wanted = header.starts_with(kBegin);
    header.remove_prefix(std::min(header.find('"'), header.size()));
    if (header.empty()) break;
    std::string text;
    std::size_t at = 1;
    for (; at < header.size() && header[at] != '"'; ++at) {
      if (header[at] == '\\' && at + 1 < header.size()) ++at;
      text += header[at];
    }
    if (at == header.size()) break;  // it does not end
    header.remove_prefix(at + 1);
    if (wanted && !text.empty()) texts.push_back(printable(text));
    // What may follow an element is a date, in a quotation of its own.
    const std::size_t next = header.find_first_not_of(" \t");
    if (next != std::string_view::npos && header[next] == '"') {
      header.remove_prefix(std::min(header.find('"', next + 1), header.size() - 1) + 1);
    }
  }
  return texts;
}

}  // namespace kiln
