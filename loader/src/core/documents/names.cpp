// SPDX-License-Identifier: Apache-2.0
#include "documents/names.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <vector>

#include "base/join.hpp"

namespace kiln {
namespace {

constexpr std::size_t kMaxSoname = 100;

bool is_lower_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

}  // namespace

bool is_word(std::string_view text, std::string_view others) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return is_lower_or_digit(c) || (c >= 'A' && c <= 'Z') ||
           others.find(c) != std::string_view::npos;
  });
}

bool is_package_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxPackageName) return false;
  char previous = '-';
  for (const char c : name) {
    if (!is_lower_or_digit(c) && (c != '-' || previous == '-')) return false;
    previous = c;
  }
  return previous != '-';
}

bool is_package_pattern(std::string_view text) {
  if (!text.ends_with('*')) return is_package_name(text);
  text.remove_suffix(1);
  if (text.ends_with('-')) text.remove_suffix(1);
  return is_package_name(text);
}

std::string label(std::string_view name, int version) {
  return std::string(name) + "@" + std::to_string(version);
}

bool is_variant_id(std::string_view text) {
  return !text.empty() && text.size() <= kMaxVariantId && is_word(text.substr(0, 1), "") &&
         is_word(text, "._-");
}

bool is_soname(std::string_view text) {
  return text.size() <= kMaxSoname && text.starts_with("lib") &&
         text.find(".so") != std::string_view::npos && is_word(text, "._-+");
}

bool matches(std::string_view name, std::string_view patterns) {
  const std::string whole(name);
  const std::vector<std::string_view> all = split(patterns, ',');
  return std::any_of(all.begin(), all.end(), [&](std::string_view pattern) {
    return ::fnmatch(std::string(pattern).c_str(), whole.c_str(), 0) == 0;
  });
}

}  // namespace kiln
