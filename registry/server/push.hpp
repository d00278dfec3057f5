// SPDX-License-Identifier: Apache-2.0
//
// Push: what a folder has, or what was just built, to a registry on a server. After submission and
// next_index; over upload. What is published there stays part of its version, with its digests. A
// version's tag is moved last, when all that it will name was seen there, so that a push that was
// killed left the version as it was, and the next one goes on. OCI has no compare-and-swap: two
// pushes of one version must take turns, and a look at the tag right before it moves is all that
// there can be.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "documents/descriptor.hpp"
#include "http/retry.hpp"
#include "registry/folder/package_versions.hpp"
#include "registry/folder/publish.hpp"
#include "registry/folder/submission.hpp"
#include "settings/settings.hpp"

namespace kiln::registry {

/// Where it goes.
struct Destination {
  std::string registry;  ///< URL, canonical
  Settings settings;
  Patience patience;
  /// Reads back and hashes all that the version names, not only what this push brought.
  bool verify_all = false;
};

struct Pushed {
  Published published;
  std::vector<std::string> tags;  ///< that were written, the version's last
  std::size_t blobs_sent = 0;     ///< documents included
  std::uint64_t bytes_sent = 0;
  std::size_t blobs_verified = 0;  ///< read back and hashed
  std::uint64_t bytes_verified = 0;
  std::size_t referrers = 0;  ///< statements about it on the server
  int requests = 0;
};

struct PushReport {
  std::vector<Pushed> versions;
  /// The version of the timestamp that is there now; 0: the folder is unsigned.
  std::uint64_t timestamp = 0;
};

/// Pushes what a folder has of `wanted`; empty: everything. What hangs on a version's index goes
/// with it, and joins what hangs there. kNotFound where it has nothing. Where
/// the folder is signed, its metadata follows last: kTrust for a version that would be there with
/// another index than the signed one, or that the metadata names, the server lacks, and `wanted`
/// leaves out; kConflict where the server's metadata has what the folder's lacks.
PushReport push(const std::filesystem::path& folder, const std::vector<PackageVersions>& wanted,
                const Destination& to, const Progress& progress);

/// publish() to a server. The folder that the request names is not used.
std::vector<Pushed> publish_to(const PublishRequest& request, const Destination& to,
                               const Progress& progress);

}  // namespace kiln::registry
