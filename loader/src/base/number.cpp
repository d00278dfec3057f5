// SPDX-License-Identifier: Apache-2.0
#include "base/number.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace kiln {

std::optional<std::uint64_t> parse_decimal(std::string_view text, std::uint64_t most) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.empty() || !std::all_of(text.begin(), text.end(), is_digit)) return {};
  if (text.size() > 1 && text.front() == '0') return {};
  std::uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || value > most) return {};
  return value;
}

}  // namespace kiln
