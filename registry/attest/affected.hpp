// SPDX-License-Identifier: Apache-2.0
//
// Affected: which published binaries an advisory means that speaks of what they were made with:
// found in the configs and in the provenance of a registry folder, and named by the digests of
// their manifests, so that a client need know no compiler. Before trust/sign. Reads the folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "documents/advisory.hpp"

namespace kiln::registry {

/// All that is given must hold.
struct MadeWith {
  std::string compiler;                ///< as the config calls it: "zig", "nvrtc"
  std::string version;                 ///< of it
  std::optional<Digest> digest;        ///< of its download, as signed provenance names it
  std::string code;                    ///< device code: "sm_90a"
  std::optional<std::int64_t> before;  ///< versions that were published earlier, or without a time

  bool is_given() const {
    return !compiler.empty() || digest || !code.empty() || before.has_value();
  }
};

struct Affected {
  std::vector<std::string> manifests;  ///< "sha256:…", sorted
  std::vector<std::string> versions;   ///< "geglu-mlp@1", of them
  /// Versions whose compilers' digests nobody stated: whether they are meant is not known.
  std::vector<std::string> unknown;
};

/// Of the packages, versions and variants that the advisory names. Throws kIntegrity for damage.
Affected find_affected(const std::filesystem::path& registry, const Advisory& advisory,
                       const MadeWith& made);

/// What the advisory names of packages, versions and variants that nothing is, in the folder or in
/// its signed metadata; empty where all is there, and where that cannot be told.
std::string find_absent(const std::filesystem::path& registry, const Advisory& advisory);

}  // namespace kiln::registry
