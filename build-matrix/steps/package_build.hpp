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

/// Whose an image or an object is, and where its source's headers are looked for.
struct Owner {
  std::string name;  ///< of the package, of the folder beside it, or of a part of ours
  std::filesystem::path folder;
  std::vector<std::filesystem::path> headers;
  /// Folders, and what they are called in an object.
  std::vector<std::pair<std::filesystem::path, std::string>> prefixes;

  /// Of what is made of a source: "csrc+norm+cpu.cpp", of one beside the owner "+other+cpu.cpp".
  std::string name_of(const std::filesystem::path& source) const;
};

/// The files of one package. The constructor writes those that package.json alone makes.
class PackageFiles {
 public:
  PackageFiles(const Job& job, const Places& places, Sources& sources);

  std::filesystem::path path_of(const std::string& source) const;

  /// Named by the root it lies under, so that the build id is the same in every folder.
  std::string portable_name(const std::filesystem::path& path) const;

  /// A source that reads files of one folder alone, beside what every package reads, belongs to
  /// it: what is made of it is the same in every package that has it, and is compiled once. Else it
  /// may be another one in each of them. A check is what travels with the version.
  const Owner& owner_of_image(const std::filesystem::path& source);
  const Owner& owner_of_object(const std::filesystem::path& source);
  const Owner& owner_of_check(const std::filesystem::path& source);

  /// That of generated sources.
  Owner own() const { return own(headers_); }

  /// Where the headers of host sources are looked for.
  const std::vector<std::filesystem::path>& headers() const { return headers_; }
  /// The files of the dev layer, by their paths in it.
  const std::map<std::string, std::filesystem::path>& dev() const { return dev_; }
  /// One more, which a step makes.
  void add_dev(const std::string& path, const std::filesystem::path& file) { dev_[path] = file; }
  /// The text of the list of exports.
  const std::string& exports() const { return exports_; }

 private:
  using Paths = std::vector<std::filesystem::path>;
  using Owners = std::map<std::filesystem::path, Owner>;

  Owner own(const Paths& headers) const;
  const Owner& find_owner(Owners& known, const std::filesystem::path& source, const Paths& headers,
                          const Paths& common);
  void share(const std::string& name);
  void collect_dev();

  const Job& job_;
  const Places& places_;
  Sources& sources_;
  std::string exports_;
  std::filesystem::path ops_header_;  // what package.json makes of it
  std::filesystem::path ops_stub_;    // the same for Python
  Paths common_;                      // headers of the SDK, which any host source may read
  Paths headers_;                     // and of the package
  std::vector<std::pair<std::filesystem::path, std::string>> folders_;  // its own, then shared ones
  std::vector<std::pair<std::filesystem::path, std::string>> prefixes_;  // all others
  Owners images_;
  Owners objects_;
  Owners checks_;
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
