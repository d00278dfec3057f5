// SPDX-License-Identifier: Apache-2.0
//
// Build output: what the build matrix left in a folder, read and checked against itself before
// anything is published. After kiln-build, before publish. Writes nothing. A folder is one variant
// (it has a descriptor.json) or holds one folder a variant.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "documents/variant.hpp"

namespace kiln::registry {

/// One variant that agrees with itself in every document and every byte of its layer.
struct BuiltVariant {
  std::filesystem::path folder;
  Variant variant;
  VariantManifest documents;
  Config config;
  std::string manifest_bytes;
  std::string config_bytes;
  std::filesystem::path layer;
  std::filesystem::path dev;  ///< the dev layer; only where `documents` have one
  Digest library;             ///< of the .so inside
  std::string schema;         ///< package.json, which is inside too; may be empty
};

/// kNotFound if there is no variant, or a file is missing; kIntegrity if two facts disagree, in one
/// variant or between them (they are all of one version of one package); kUpgrade as parse_index.
std::vector<BuiltVariant> read_build_output(const std::filesystem::path& folder);

/// Where the layers of a variant are.
struct LayerFiles {
  std::filesystem::path layer;
  std::filesystem::path dev;
};

/// The same checks for documents and layers that stand elsewhere: a published variant.
BuiltVariant check_variant(const Variant& variant, std::string manifest_bytes,
                           std::string config_bytes, const LayerFiles& layers,
                           const std::string& subject);

}  // namespace kiln::registry
