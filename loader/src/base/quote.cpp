// SPDX-License-Identifier: Apache-2.0
#include "base/quote.hpp"

namespace kiln {

std::string quote(std::string_view text) {
  constexpr std::size_t kShown = 80;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7e) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 0xf];
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  out += text.size() > kShown ? "\"..." : "\"";
  return out;
}

}  // namespace kiln
