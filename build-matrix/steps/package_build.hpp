// SPDX-License-Identifier: Apache-2.0
//
// Package build: what all parts of one package's graph ask: where its files lie, what they are
// called in a build id, which of them go to its users. A part of graph.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "build-matrix/steps/graph.hpp"

namespace kiln::build {

inline constexpr const char* kLaunches = "launches.gen.cpp";
inline constexpr const char* kCalls = "calls.gen.cpp";

/// Whose an image is, and where its source's headers are looked for.
struct ImageOwner {
  std::string name;  ///< of the package, or of the folder beside it
  std::filesystem::path folder;
  std::vector<std::filesystem::path> headers;
};

/// The files of one package. The constructor writes those that package.json alone makes.
class PackageFiles {
 public:
  PackageFiles(const Job& job, const Places& places, Sources& sources);

  std::filesystem::path path_of(const std::string& source) const;

  /// Named by the root it lies under, so that the build id is the same in every folder.
  std::string portable_name(const std::filesystem::path& path) const;

  /// A device source that reads files of one folder alone belongs to it: its image is the same in
  /// every package that has it, and is compiled once. Else it may be another one in each of them.
  const ImageOwner& owner_of(const std::filesystem::path& source);

  /// Where the headers of host sources are looked for.
  const std::vector<std::filesystem::path>& headers() const { return headers_; }
  /// The same for a check that travels with the version.
  std::vector<std::filesystem::path> check_headers() const;
  /// Folders, and what they are called in a library.
  const std::vector<std::pair<std::filesystem::path, std::string>>& prefixes() const {
    return prefixes_;
  }
  /// The files of the dev layer, by their paths in it.
  const std::map<std::string, std::filesystem::path>& dev() const { return dev_; }
  /// One more, which a step makes.
  void add_dev(const std::string& path, const std::filesystem::path& file) { dev_[path] = file; }
  /// The text of the list of exports.
  const std::string& exports() const { return exports_; }

 private:
  void share(const std::string& name);
  void collect_dev();

  const Job& job_;
  const Places& places_;
  Sources& sources_;
  std::string exports_;
  std::filesystem::path ops_header_;  // what package.json makes of it
  std::filesystem::path ops_stub_;    // the same for Python
  std::vector<std::filesystem::path> headers_;
  std::vector<std::pair<std::filesystem::path, std::string>> folders_;  // its own, then shared ones
  std::vector<std::pair<std::filesystem::path, std::string>> prefixes_;
  std::map<std::filesystem::path, ImageOwner> owners_;  // of device sources
  std::map<std::string, std::filesystem::path> dev_;
};

struct PackageBuild {
  const Job& job;
  Version glibc;
  const Toolchain& toolchain;
  const Places& places;
  Sources& sources;
  StepList& steps;
  PackageFiles files;

  std::filesystem::path folder_of(const VariantPlan& plan) const;
  /// How messages and progress name what lies in the work folder.
  std::string in_work(const std::filesystem::path& path) const;
};

}  // namespace kiln::build
