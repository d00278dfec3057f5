// SPDX-License-Identifier: Apache-2.0
#include "names.hpp"

#include <regex>

#include "documents/names.hpp"

namespace kiln::build {
namespace {

constexpr std::size_t kMaxNameLength = 32;

bool is_all(std::string_view text, const std::regex& form) {
  return std::regex_match(text.begin(), text.end(), form);
}

// Those that are spelt in lower case without a leading underscore: others are no snake_case anyway.
constexpr std::string_view kKeywords =
    " alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t "
    "char32_t char8_t class co_await co_return co_yield compl concept const const_cast "
    "consteval constexpr constinit continue decltype default delete do double dynamic_cast "
    "else enum explicit export extern false float for friend goto if inline int linux long "
    "mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected "
    "public register reinterpret_cast requires return short signed sizeof static "
    "static_assert static_cast struct switch template this thread_local throw true try "
    "typedef typeid typename union unix unsigned using virtual void volatile wchar_t while "
    "xor xor_eq main ";

}  // namespace

std::string why_not_identifier(std::string_view name) {
  static const std::regex kSnakeCase("[a-z][a-z0-9]*(_[a-z0-9]+)*");
  if (!is_all(name, kSnakeCase)) return "is not snake_case";
  if (name.size() > kMaxNameLength) return "has more than 32 characters";
  if (kKeywords.find(" " + std::string(name) + " ") != std::string_view::npos) {
    return "is a word that C++ keeps for itself";
  }
  return "";
}

bool is_symbol(std::string_view name) {
  static const std::regex kCamelCase("[A-Z][A-Za-z0-9]*");
  return name.size() <= kMaxNameLength && name != "NULL" && is_all(name, kCamelCase);
}

bool is_word(std::string_view name) {
  static const std::regex kWords("[a-z0-9]+([-_][a-z0-9]+)*");
  return name.size() <= kMaxNameLength && is_all(name, kWords);
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
  // No component is ".", ".." or a hidden file.
  static const std::regex kPath("([A-Za-z0-9_-][A-Za-z0-9_.-]*/)*[A-Za-z0-9_-][A-Za-z0-9_.-]*");
  return path.size() > suffix.size() && path.ends_with(suffix) && is_all(path, kPath);
}

std::string stem_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  if (slash != std::string_view::npos) path.remove_prefix(slash + 1);
  return std::string(path.substr(0, path.rfind('.')));
}

std::string soname_for(std::string_view pattern, int cuda_major) {
  constexpr std::string_view kPlace = "{cuda_major}";
  std::string soname(pattern);
  const std::size_t at = soname.find(kPlace);
  if (at != std::string::npos) soname.replace(at, kPlace.size(), std::to_string(cuda_major));
  return soname;
}

bool is_release(std::string_view text) {
  static const std::regex kNumbers("[0-9]{1,6}([.][0-9]{1,6}){2}");
  return is_all(text, kNumbers);
}

std::string camel_case(std::string_view name) {
  std::string text;
  bool start = true;
  for (char c : name) {
    if (c == '-' || c == '_') {
      start = true;
      continue;
    }
    text += start && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    start = false;
  }
  return text;
}

}  // namespace kiln::build
