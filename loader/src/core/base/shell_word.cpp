// SPDX-License-Identifier: Apache-2.0
#include "base/shell_word.hpp"

namespace kiln {

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-";
  std::string word;
  for (const char c : text) {
    const bool is_ascii = static_cast<unsigned char>(c) < 0x80;
    if (c == '\n') {  // behind a backslash it would be no character at all
      word += "'\n'";
      continue;
    }
    if (is_ascii && kPlain.find(c) == std::string_view::npos) word += '\\';
    word += c;
  }
  return text.empty() ? "\"\"" : word;
}

}  // namespace kiln
