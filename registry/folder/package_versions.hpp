// SPDX-License-Identifier: Apache-2.0
//
// PackageVersions: the versions of a package that somebody names, on a command line or in signed
// metadata: one, or all. Before push, attest, describe, export and check.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oci/layout.hpp"

namespace kiln::registry {

struct PackageVersions {
  std::string name;
  int version = 0;  ///< 0: all

  bool has(int each) const { return version == 0 || each == version; }
  std::string text() const;  ///< as it is written: "geglu-mlp", "geglu-mlp@1"
};

/// Those tags of a package that name a version of `versions`, ascending. Throws kNotFound where
/// there are none: "push tiny-op@3: … nothing was sent".
std::vector<Tag> version_tags(const std::filesystem::path& registry,
                              const PackageVersions& versions, const char* operation,
                              const char* done);

/// The version that "geglu-mlp/1" means in signed metadata. Nothing for the target of another
/// client.
std::optional<PackageVersions> version_of_target(std::string_view name);

/// Throws kUsage, whose text begins with the operation, for text that is neither.
PackageVersions parse_package_versions(const std::string& text, std::string_view operation);

}  // namespace kiln::registry
