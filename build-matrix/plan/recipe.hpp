// SPDX-License-Identifier: Apache-2.0
//
// Recipe: everything about one variant that the steps after its compilers need, and the build id,
// which covers everything that its library is made of. Written as JSON beside the objects, because
// each step is a process of its own. Before it: expand. After it: inspect, pack. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "build-matrix/plan/expand.hpp"
#include "documents/json_fwd.hpp"
#include "documents/target.hpp"

namespace kiln::build {

struct Recipe {
  struct Image {
    std::string stem;
    DeviceCode code;
    bool operator==(const Image&) const = default;
  };

  std::string package;
  int version = 0;
  std::string min_loader;
  std::string variant;
  CpuLevel cpu;
  Version glibc;  ///< highest that the library may need
  std::optional<Version> toolkit;
  std::optional<Version> min_driver;
  std::vector<DeviceCode> targets;     ///< that it runs on; none for a CPU variant
  std::vector<Image> images;           ///< inside
  std::vector<std::string> libraries;  ///< looked up at run time
  std::string build_id;                ///< 32 hex digits
  std::string build;                   ///< compilers and the sources' digest, as JSON text

  std::string library() const;  ///< "libgeglu_mlp.so": its file name and its soname
  std::string subject() const;  ///< "geglu-mlp cu12.9-sm_90a-x86_64"
  bool operator==(const Recipe&) const = default;
};

Json to_json(const Recipe& recipe);
Recipe parse_recipe(std::string_view text, const std::string& subject);

/// What one variant is made of. Names are the same on every machine ("package/csrc/x.cu").
struct Ingredients {
  std::map<std::string, std::string> sources;  ///< name -> SHA-256 in hex
  std::vector<std::string> host_flags;
  std::vector<std::string> device_options;
  /// What compiled the images and its exact version: "nvrtc", "12.9.86"; empty: a CPU variant's.
  std::pair<std::string, std::string> device_compiler;
  std::string zig;
  std::map<std::string, std::string> headers = {};  ///< of the toolchain: name -> version
};

/// The plan as a recipe, with its build id and build facts.
Recipe make_recipe(const Package& package, const VariantPlan& plan, Version glibc,
                   const Ingredients& ingredients);

}  // namespace kiln::build
