// SPDX-License-Identifier: Apache-2.0
#include "step.hpp"

namespace kiln::build {

std::vector<std::filesystem::path> parse_read_list(std::string_view text) {
  std::vector<std::filesystem::path> files;
  std::string file;
  const auto end_file = [&] {
    if (!file.empty()) files.emplace_back(std::move(file));
    file.clear();
  };
  std::size_t at = text.find(": ");
  at = at == std::string_view::npos ? text.size() : at + 2;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    const char next = at + 1 < text.size() ? text[at + 1] : '\0';
    if (c == '\\' && (next == ' ' || next == '#')) {
      file += text[++at];
    } else if (c == '$' && next == '$') {
      file += text[++at];
    } else if (c == ' ' || c == '\n' || (c == '\\' && next == '\n')) {
      end_file();
    } else {
      file += c;
    }
  }
  end_file();
  return files;
}

std::string shell_quoted(std::string_view argument) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(argument);
  }
  std::string quoted = "'";
  for (const char c : argument) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace kiln::build
