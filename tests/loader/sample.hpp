// SPDX-License-Identifier: Apache-2.0
//
// Sample: a registry and a request for its one package, in a folder that goes with the object.
#pragma once

#include <set>
#include <string>

#include "install/install.hpp"
#include "kiln/request.hpp"
#include "published.hpp"
#include "scratch.hpp"

namespace kiln::test {

struct Sample {
  Scratch scratch;
  Published published{scratch / "registry"};
  Request request{.version = 1,
                  .device = Device::cpu(),
                  .registry = published.root().string(),
                  .cache = scratch / "cache"};

  Cache cache() const { return Cache(request.cache); }
  std::filesystem::path operator/(std::string_view name) const { return request.cache / name; }

  /// Publishes and installs a version, and lets go of it.
  void install_version(int version) {
    published.publish(
        {cpu_draft(sample_library(version == 1 ? "plain" : "version2"), "sample", version)});
    Request of_version = request;
    of_version.version = version;
    install("sample", of_version);
  }

  /// The descriptors of the variant that was published last.
  VariantManifest manifest() const { return published.manifest(); }

  /// Every file of the cache, relative to it.
  std::set<std::string> files() const {
    std::set<std::string> found;
    if (!std::filesystem::exists(request.cache)) return found;
    for (const auto& each : std::filesystem::recursive_directory_iterator(request.cache)) {
      if (!each.is_directory() || each.is_symlink()) {
        found.insert(each.path().lexically_relative(request.cache).string());
      }
    }
    return found;
  }
};

}  // namespace kiln::test
