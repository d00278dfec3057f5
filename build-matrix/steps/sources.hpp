// SPDX-License-Identifier: Apache-2.0
//
// Sources: the files that a build reads: the digest of each, as it was when it was read first, and
// which others it includes. For the build id, which must cover everything that a library is made
// of, and for execute, which runs a step anew when one of these bytes changed: both have the same
// answer, because both ask here. Safe from several threads at once.
//
// Includes are found by their text. Conditions are not evaluated and comments are dropped: a file
// too many costs a rebuild, one too few would be a wrong build. So a name that is not written out
// ("#include NAME", ".incbin") is refused.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"

namespace kiln::build {

/// One name behind #include, #include_next, #embed, #import, __has_include or __has_embed.
struct Include {
  std::string name;
  bool quoted = false;    ///< "…", also looked for beside the file; else <…>
  bool any = false;       ///< of include_next: not the first of that name, so each counts
  bool embedded = false;  ///< its bytes are taken as they are
  bool operator==(const Include&) const = default;
};

struct Includes {
  std::vector<Include> names;
  /// The first that is not written out: "#include NAME"; empty if there is none.
  std::string computed;
};

/// What a source's text includes. Pure.
Includes scan_includes(std::string_view text);

class Sources {
 public:
  /// Files below `tools` are a compiler's own: of them nothing is refused.
  explicit Sources(std::vector<std::filesystem::path> tools = {}) : tools_(std::move(tools)) {}

  Digest digest(const std::filesystem::path& path);

  /// The sources and every file that they include, directly or not, as absolute paths. A quoted
  /// name is looked for beside the including file, then in `folders`; one in angle brackets in
  /// `folders` alone. What is found nowhere belongs to a compiler and is left out. Throws
  /// Error(kBuild) for a file that cannot be read, and for a computed name.
  std::set<std::filesystem::path> closure(const std::vector<std::filesystem::path>& sources,
                                          const std::vector<std::filesystem::path>& folders);

 private:
  const Includes& includes(const std::filesystem::path& path);

  std::vector<std::filesystem::path> tools_;
  std::mutex lock_;  ///< of all below
  std::map<std::filesystem::path, Digest> digests_;
  std::map<std::filesystem::path, Includes> includes_;
};

/// What is left of a path below a folder; empty if it is not in there.
std::filesystem::path below(const std::filesystem::path& folder, const std::filesystem::path& path);

}  // namespace kiln::build
