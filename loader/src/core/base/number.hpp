// SPDX-License-Identifier: Apache-2.0
//
// Number: decimal numbers as documents, tags and options spell them. Pure.
#pragma once

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace kiln {

/// A decimal number without sign or leading zero, at most `most`.
inline std::optional<std::uint64_t> parse_decimal(std::string_view text, std::uint64_t most) {
  if (text.size() > 1 && text.front() == '0') return {};
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > most) return {};
  return value;
}

/// The number of a version, which begins at 1; 0 for any other text.
inline int parse_version_number(std::string_view text) {
  return static_cast<int>(parse_decimal(text, std::numeric_limits<int>::max()).value_or(0));
}

}  // namespace kiln
