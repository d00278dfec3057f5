// SPDX-License-Identifier: Apache-2.0
//
// Pack: one inspected library becomes one archive with its documents. The bytes depend on the
// inputs alone: sorted names, no times, no owners. Before it: inspect. After it: the registry.
// Pure.
#pragma once

#include <string>
#include <vector>

#include "build-matrix/library/inspect.hpp"
#include "build-matrix/plan/recipe.hpp"

namespace kiln::build {

/// The file of the dev layer, in a variant's folder.
inline constexpr const char* kDevArchive = "dev.tar.zst";

struct ArchiveEntry {
  std::string path;
  std::string bytes;
  int mode = 0644;
};

struct PackInput {
  Recipe recipe;
  Facts facts;
  std::string library;                 ///< the bytes of the .so
  std::string package_json;            ///< as it lies in the package's folder
  std::string license;                 ///< the licence's text
  std::vector<ArchiveEntry> dev = {};  ///< headers, modules, card; may be none
};

struct Packed {
  std::string layer;       ///< tar.zst: lib/lib….so, LICENSE, package.json
  std::string dev;         ///< tar.zst: include/…, python/…, CARD.md; empty: there are none
  std::string config;      ///< serialize_config
  std::string manifest;    ///< serialize_manifest
  std::string descriptor;  ///< the variant's line for an index, untested
};

Packed pack(const PackInput& input);

/// A reproducible tar.zst of the entries, sorted by path.
std::string make_archive(std::vector<ArchiveEntry> entries);

}  // namespace kiln::build
