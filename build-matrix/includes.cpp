// SPDX-License-Identifier: Apache-2.0
#include "includes.hpp"

#include <algorithm>
#include <regex>
#include <sstream>
#include <string>

#include "files.hpp"

namespace kiln::build {
namespace fs = std::filesystem;

std::set<fs::path> include_closure(const std::vector<fs::path>& sources,
                                   const std::vector<fs::path>& folders) {
  static const std::regex kInclude(R"([ \t]*#[ \t]*include[ \t]*(["<])([^">]+))");
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
    std::istringstream lines(read_file(file));
    for (std::string line; std::getline(lines, line);) {
      std::smatch include;
      if (!std::regex_search(line, include, kInclude, std::regex_constants::match_continuous)) {
        continue;
      }
      const std::string name = include[2];
      std::vector<fs::path> places = folders;
      if (include[1] == "\"") places.insert(places.begin(), file.parent_path());
      const auto has_it = [&](const fs::path& folder) {
        std::error_code failed;
        return fs::is_regular_file(folder / name, failed);
      };
      const auto found = std::ranges::find_if(places, has_it);
      if (found != places.end()) add(*found / name);
    }
  }
  return seen;
}

}  // namespace kiln::build
