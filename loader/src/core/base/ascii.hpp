// SPDX-License-Identifier: Apache-2.0
//
// ASCII: letters, digits, blanks and decimal fractions as documents and protocols spell them,
// whatever locale the host program has set. The C library's own (tolower, isalnum, strcasecmp,
// printf's %f) change with it: in Turkish, "I" has no "i". Pure.
#pragma once

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

namespace kiln {

constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

constexpr bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

constexpr char lower_case(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

inline std::string lower_case(std::string text) {
  for (char& c : text) c = lower_case(c);
  return text;
}

constexpr bool equal_but_for_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return lower_case(x) == lower_case(y); });
}

/// A line without what stands around its words; a file may have come from Windows.
constexpr std::string_view trimmed(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
  return line.substr(0, line.find_last_not_of(kBlanks) + 1);
}

/// 1.25 with one digit: "1.2"; with a point in every locale. Of numbers below 1e30.
inline std::string fixed_text(double value, int digits) {
  char text[64];
  const auto end =
      std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, digits).ptr;
  return {text, end};
}

}  // namespace kiln
