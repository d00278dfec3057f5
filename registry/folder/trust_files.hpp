// SPDX-License-Identifier: Apache-2.0
//
// Trust files: a registry's signed metadata, file by file, and the artifact kiln.tuf:latest that
// carries them next to the packages. Under sign, push, export and check; the client's side is
// trust/repository_source.hpp.
//
//   1.root.json, 2.root.json, …        all of them: a client follows them from the one it trusts
//   N.targets.json, N.snapshot.json    the newest
//   N.<role>.json                      the newest of each role that targets delegate to
//   timestamp.json
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "documents/descriptor.hpp"
#include "http/retry.hpp"
#include "registry/folder/layout.hpp"
#include "store/content.hpp"
#include "trust/updater.hpp"

namespace kiln::registry {

using TrustFiles = std::map<std::string, std::string>;  ///< bytes by file name

/// The folder of a registry's metadata.
Layout trust_layout(const std::filesystem::path& registry);

/// kTop: roots, timestamp, snapshot and targets, without the roles that targets delegate to.
enum class Roles { kTop, kAll };

/// Empty for an unsigned registry. Throws kIntegrity for bytes that are not the promised ones.
TrustFiles read_trust_files(const std::filesystem::path& registry);
TrustFiles read_trust_files(const Repository& repository, const Patience& patience, Roles roles);

/// "3.acme.json"; "timestamp.json" has no version in front.
std::string role_file(std::uint64_t version, const std::string& role);

/// Throws kTrust without one.
const std::string& first_root_of(const TrustFiles& files, const std::string& origin);

/// What a client that trusts 1.root.json believes. Throws kTrust, naming `origin`, for files that
/// no client accepts.
trust::TrustedSet follow(const TrustFiles& files, const std::string& origin, trust::Expiry expiry);

/// The same, and each role that targets delegate to. A document that no client accepts hides no
/// other role's: it is not taken, and told.
struct Followed {
  trust::TrustedSet set;
  std::vector<trust::PassedRole> passed;
};
Followed follow_all(const TrustFiles& files, const std::string& origin, trust::Expiry expiry);

/// "clients do not learn what acme publishes: …"
std::string describe_passed(const trust::PassedRole& passed);

/// What a client that believes `set` finds of a name. Takes the roles that it asks out of the
/// files; throws as follow.
std::optional<trust::SignedTarget> find_target(trust::TrustedSet& set, const TrustFiles& files,
                                               const std::string& origin, const std::string& name);

/// The files as an artifact; they outlive it.
struct TrustArtifact {
  std::vector<std::pair<Descriptor, std::string_view>> blobs;  ///< each file, and the empty config
  Descriptor descriptor;                                       ///< of the manifest
  std::string manifest;
};
TrustArtifact make_artifact(const TrustFiles& files);

}  // namespace kiln::registry
