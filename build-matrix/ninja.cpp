// SPDX-License-Identifier: Apache-2.0
#include "ninja.hpp"

namespace kiln::build {
namespace {

std::string escaped(std::string_view text, std::string_view specials) {
  std::string out;
  for (const char c : text) {
    if (specials.find(c) != std::string_view::npos) out += '$';
    out += c;
  }
  return out;
}

void append_paths(std::string& line, std::string_view separator,
                  const std::vector<std::string>& paths) {
  if (paths.empty()) return;
  line += separator;
  for (const std::string& path : paths) line += " " + escaped(path, "$ :");
}

}  // namespace

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

void NinjaFile::rule(const std::string& name, const std::string& command,
                     const std::string& description, bool keeps_unchanged) {
  text_ += "rule " + name + "\n  command = " + command + "\n  description = " + description + "\n";
  if (keeps_unchanged) text_ += "  restat = 1\n";
}

void NinjaFile::build(const Build& build) {
  outputs_.insert(build.outputs.begin(), build.outputs.end());
  std::string line = "build";
  append_paths(line, "", build.outputs);
  line += ": " + build.rule;
  append_paths(line, "", build.inputs);
  append_paths(line, " |", build.implicit);
  text_ += line + "\n";
  for (const auto& [name, value] : build.variables) {
    text_ += "  " + name + " = " + escaped(value, "$") + "\n";
  }
  if (!build.depfile.empty()) text_ += "  depfile = " + escaped(build.depfile, "$") + "\n";
}

}  // namespace kiln::build
