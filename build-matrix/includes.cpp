// SPDX-License-Identifier: Apache-2.0
#include "includes.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "files.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

struct Include {
  std::string_view name;  // empty: the line includes nothing
  bool quoted = false;    // "name": looked for beside the including file first
};

Include include_of(std::string_view line) {
  const auto skip_blanks = [&line] {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  };
  skip_blanks();
  if (!line.starts_with('#')) return {};
  line.remove_prefix(1);
  skip_blanks();
  if (!line.starts_with("include")) return {};
  line.remove_prefix(std::string_view("include").size());
  skip_blanks();
  if (!line.starts_with('"') && !line.starts_with('<')) return {};
  const bool quoted = line.front() == '"';
  line.remove_prefix(1);
  return {line.substr(0, line.find(quoted ? '"' : '>')), quoted};
}

fs::path resolve_include(const Include& include, const fs::path& beside,
                         const std::vector<fs::path>& folders) {
  std::error_code failed;
  if (include.quoted && fs::is_regular_file(beside / include.name, failed)) {
    return beside / include.name;
  }
  for (const fs::path& folder : folders) {
    if (fs::is_regular_file(folder / include.name, failed)) return folder / include.name;
  }
  return {};
}

}  // namespace

std::set<fs::path> include_closure(const std::vector<fs::path>& sources,
                                   const std::vector<fs::path>& folders) {
  std::set<fs::path> seen;
  std::vector<fs::path> open;
  const auto add = [&](const fs::path& path) {
    fs::path normal = fs::absolute(path).lexically_normal();
    if (seen.insert(normal).second) open.push_back(std::move(normal));
  };
  for (const fs::path& source : sources) add(source);
  while (!open.empty()) {
    const fs::path file = std::move(open.back());
    open.pop_back();
    const std::string text = read_file(file);
    std::string_view rest = text;
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      const Include include = include_of(rest.substr(0, end));
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      if (include.name.empty()) continue;
      const fs::path found = resolve_include(include, file.parent_path(), folders);
      if (!found.empty()) add(found);
    }
  }
  return seen;
}

}  // namespace kiln::build
