// SPDX-License-Identifier: Apache-2.0
//
// Check and list: what a registry holds, and whether all of it is still what was published. Reads
// only, needs no lock; a publish under way is not seen before its commit.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "documents/manifest.hpp"
#include "documents/variant.hpp"
#include "kiln/error.hpp"
#include "registry/folder/build_output.hpp"
#include "registry/folder/client_view.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/package_versions.hpp"
#include "registry/folder/submission.hpp"

namespace kiln::registry {

struct ListedVersion {
  std::string name;
  Descriptor descriptor;  ///< of the index
  Index index;
};

/// All published versions, by name and version. kNotFound, or kIntegrity for a document that is
/// not what its descriptor says.
std::vector<ListedVersion> list_registry(const std::filesystem::path& registry);

/// The same, but goes on after a document that cannot be read, and calls `damaged` with what and
/// why.
std::vector<ListedVersion> list_registry(const std::filesystem::path& registry,
                                         const std::function<void(const Error&)>& damaged);

/// The documents of a variant.
struct VariantDocuments {
  std::string manifest_bytes;
  VariantManifest manifest;
  std::string config_bytes;
};

/// kIntegrity unless their bytes are what the index, or the manifest, promises.
VariantDocuments read_documents(const Layout& layout, const Index& index, const Variant& variant);

/// One variant of a published version: kIntegrity unless each byte of it is what the index promises
/// and its layer unpacks.
BuiltVariant check_published(const Layout& layout, const Index& index, const Variant& variant,
                             VariantDocuments documents);

/// The same, with its documents read.
BuiltVariant read_published(const Layout& layout, const Index& index, const Variant& variant);

/// Of a version that is signed, and whose index `layout` does not list. A folder may lack what is
/// signed: kIntegrity where it has this index all the same.
void check_is_elsewhere(const Layout& layout, const PackageVersions& version,
                        const Descriptor& index);

struct CheckReport {
  std::size_t packages = 0;
  std::size_t versions = 0;
  std::size_t variants = 0;
  std::size_t blobs = 0;               ///< hashed, all that are there
  std::vector<RoleState> roles;        ///< of a signed registry: until when each document holds
  std::vector<std::string> elsewhere;  ///< versions that are signed, and of which nothing is here
  std::vector<std::string> problems;   ///< each names the file, what was found and what expected
};

/// Hashes every blob, follows every reference, unpacks every layer in memory and compares every
/// config with its index. Where the registry is signed, a client must be able to take all of its
/// metadata, as it refreshes and lists, and find each version there as it is. A folder in which
/// nothing is published or signed is no registry, which is a problem. Goes on after a problem, to
/// report all of them.
CheckReport check_registry(const std::filesystem::path& registry, const Progress& progress);

}  // namespace kiln::registry
