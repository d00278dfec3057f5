// SPDX-License-Identifier: Apache-2.0
#include "names.hpp"
#include "documents/names.hpp"

#include <algorithm>
#include <array>

namespace kiln::build {
namespace {

constexpr std::size_t kMaxNameLength = 32;

// Locale-free, unlike <cctype>.
bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Those that are spelt in lower case without a leading underscore: others are no snake_case anyway.
constexpr std::array<std::string_view, 95> kKeywords = {
    "alignas",      "alignof",      "and",           "and_eq",
    "asm",          "auto",         "bitand",        "bitor",
    "bool",         "break",        "case",          "catch",
    "char",         "char16_t",     "char32_t",      "char8_t",
    "class",        "co_await",     "co_return",     "co_yield",
    "compl",        "concept",      "const",         "const_cast",
    "consteval",    "constexpr",    "constinit",     "continue",
    "decltype",     "default",      "delete",        "do",
    "double",       "dynamic_cast", "else",          "enum",
    "explicit",     "export",       "extern",        "false",
    "float",        "for",          "friend",        "goto",
    "if",           "inline",       "int",           "linux",
    "long",         "mutable",      "namespace",     "new",
    "noexcept",     "not",          "not_eq",        "nullptr",
    "operator",     "or",           "or_eq",         "private",
    "protected",    "public",       "register",      "reinterpret_cast",
    "requires",     "return",       "short",         "signed",
    "sizeof",       "static",       "static_assert", "static_cast",
    "struct",       "switch",       "template",      "this",
    "thread_local", "throw",        "true",          "try",
    "typedef",      "typeid",       "typename",      "union",
    "unix",         "unsigned",     "using",         "virtual",
    "void",         "volatile",     "wchar_t",       "while",
    "xor",          "xor_eq",       "main"};

}  // namespace

std::string why_not_identifier(std::string_view name) {
  const bool spelt = !name.empty() && is_lower(name.front()) && name.back() != '_' &&
                     name.find("__") == std::string_view::npos &&
                     std::all_of(name.begin(), name.end(),
                                 [](char c) { return is_lower(c) || is_digit(c) || c == '_'; });
  if (!spelt) return "is not snake_case";
  if (name.size() > kMaxNameLength) return "has more than 32 characters";
  if (std::find(kKeywords.begin(), kKeywords.end(), name) != kKeywords.end()) {
    return "is a word that C++ keeps for itself";
  }
  return "";
}

bool is_symbol(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameLength && is_upper(name.front()) &&
         name != "NULL" && std::all_of(name.begin(), name.end(), [](char c) {
           return is_upper(c) || is_lower(c) || is_digit(c);
         });
}

bool is_word(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameLength) return false;
  bool joined = true;  // a joint may not come first, last, or after another
  for (char c : name) {
    const bool joint = c == '-' || c == '_';
    if (joint ? joined : !(is_lower(c) || is_digit(c))) return false;
    joined = joint;
  }
  return !joined;
}

std::string_view shared_package_of(std::string_view path) {
  constexpr std::string_view kBeside = "../";
  if (!path.starts_with(kBeside)) return {};
  path.remove_prefix(kBeside.size());
  const std::string_view name = path.substr(0, path.find('/'));
  return is_package_name(name) ? name : std::string_view();
}

bool is_source_path(std::string_view path, std::string_view suffix) {
  if (const std::string_view name = shared_package_of(path); !name.empty()) {
    path.remove_prefix(static_cast<std::size_t>(name.end() - path.begin()));
    if (path.empty()) return false;
    path.remove_prefix(1);  // the slash
  }
  if (path.size() <= suffix.size() || !path.ends_with(suffix)) return false;
  bool start = true;  // of a component
  for (char c : path) {
    if (c == '/') {
      if (start) return false;
      start = true;
      continue;
    }
    if (start && c == '.') return false;  // ".", ".." and hidden files
    if (!(is_lower(c) || is_upper(c) || is_digit(c) || c == '_' || c == '-' || c == '.')) {
      return false;
    }
    start = false;
  }
  return !start;
}

std::string stem_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  if (slash != std::string_view::npos) path.remove_prefix(slash + 1);
  return std::string(path.substr(0, path.rfind('.')));
}

bool is_soname(std::string_view name) {
  return name.starts_with("lib") && name.find(".so") != std::string_view::npos &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return is_lower(c) || is_upper(c) || is_digit(c) || c == '_' || c == '-' || c == '.' ||
                  c == '+';
         });
}

std::string soname_for(std::string_view pattern, int cuda_major) {
  constexpr std::string_view kPlace = "{cuda_major}";
  std::string soname(pattern);
  const std::size_t at = soname.find(kPlace);
  if (at != std::string::npos) soname.replace(at, kPlace.size(), std::to_string(cuda_major));
  return soname;
}

bool is_release(std::string_view text) {
  int numbers = 0;
  std::size_t digits = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && is_digit(text[i])) {
      ++digits;
      continue;
    }
    if (digits == 0 || digits > 6 || (i < text.size() && text[i] != '.')) return false;
    digits = 0;
    ++numbers;
  }
  return numbers == 3;
}

std::string camel_case(std::string_view name) {
  std::string text;
  bool start = true;
  for (char c : name) {
    if (c == '-' || c == '_') {
      start = true;
      continue;
    }
    text += start && is_lower(c) ? static_cast<char>(c - 'a' + 'A') : c;
    start = false;
  }
  return text;
}

}  // namespace kiln::build
