// SPDX-License-Identifier: Apache-2.0
#include "base/quote.hpp"

#include <cstddef>
#include <cstdint>

namespace kiln {
namespace {

struct Character {
  std::size_t bytes = 1;
  std::uint32_t code = 0;
  bool valid = false;
};

/// The first character of text that is not empty. What is not UTF-8 is one byte, not valid.
Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return {1, lead, true};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc0 || lead > 0xf7 || text.size() < bytes) return {};
  std::uint32_t code = lead & (0x7fu >> bytes);
  for (const char c : text.substr(1, bytes - 1)) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) != 0x80) return {};
    code = code << 6 | (byte & 0x3fu);
  }
  // Longer than needed, half of a UTF-16 pair, or beyond Unicode: a decoder may read these as
  // anything.
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool valid = code >= kLeast[bytes] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return valid ? Character{bytes, code, true} : Character{};
}

bool obeyed_by_terminals(std::uint32_t code) {
  const bool control = code < 0x20 || (code >= 0x7f && code <= 0x9f);
  const bool line_end = code == 0x2028 || code == 0x2029;
  const bool direction = code == 0x061c || code == 0x200e || code == 0x200f ||
                         (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return control || line_end || direction;
}

std::string printable_but(std::string_view text, std::uint32_t allowed) {
  std::string out;
  while (!text.empty()) {
    const Character first = first_character(text);
    const std::string_view bytes = text.substr(0, first.bytes);
    const bool good = first.valid && (first.code == allowed || !obeyed_by_terminals(first.code));
    out += good ? std::string(bytes) : hex_of(bytes, "\\x");
    text.remove_prefix(first.bytes);
  }
  return out;
}

}  // namespace

std::string hex_of(std::string_view bytes, std::string_view before) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += before;
    out += kHex[byte >> 4];
    out += kHex[byte & 0xf];
  }
  return out;
}

std::string quote(std::string_view text) {
  constexpr std::size_t kShown = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7e) {
      out += hex_of({&c, 1}, "\\x");
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  out += text.size() > kShown ? "\"..." : "\"";
  return out;
}

std::string printable(std::string_view text) {
  constexpr std::uint32_t kNone = UINT32_MAX;
  return printable_but(text, kNone);
}

std::string printable_lines(std::string_view text) {
  return printable_but(text, '\n');
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Character first = first_character(text);
    if (!first.valid) return false;
    text.remove_prefix(first.bytes);
  }
  return true;
}

}  // namespace kiln
