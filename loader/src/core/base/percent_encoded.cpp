// SPDX-License-Identifier: Apache-2.0
#include "base/percent_encoded.hpp"

#include "base/ascii.hpp"

namespace kiln {

std::string percent_encoded(std::string_view text) {
  constexpr std::string_view kMarks = "-._~";
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    if (is_letter(c) || is_digit(c) || kMarks.find(c) != std::string_view::npos) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += {'%', kHex[byte >> 4], kHex[byte & 0xf]};
    }
  }
  return out;
}

}  // namespace kiln
