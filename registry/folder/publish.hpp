// SPDX-License-Identifier: Apache-2.0
//
// Publish: add built variants to a version of a package in the embedded registry. After submission
// and next_index, before everything that reads a registry. Append-only: a published variant keeps
// its digest for ever, new ones may join its version. Everything given is checked before anything
// is written; blobs are written first, and the rename of index.json is the only commit. Several
// processes may publish at once: a lock for each package lets one after the other in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "documents/descriptor.hpp"
#include "registry/folder/submission.hpp"

namespace kiln::registry {

struct PublishRequest {
  std::filesystem::path registry;
  std::vector<std::filesystem::path> built;    ///< folders of packages, or of single variants
  std::vector<std::filesystem::path> records;  ///< test records, see records.hpp
  /// Which variants may be published as "untested": shell patterns of ids, separated by commas.
  std::string may_be_untested = "*";
};

/// What happened to one version.
struct Published {
  std::string name;
  int version = 0;
  Descriptor index;
  std::vector<std::string> added;      ///< ids of variants that are new
  std::vector<std::string> retested;   ///< published before, with another `tested` now
  std::vector<std::string> unchanged;  ///< published before with the same bytes
  bool changed = false;                ///< whether index.json was replaced
};

/// Throws what read_build_output and read_records throw; kConflict for other bytes under a
/// published id and for two variants that would rank equal; kNotFound for a variant that no record
/// speaks of and that may not be untested. After an error, the registry names what it named.
std::vector<Published> publish(const PublishRequest& request, const Progress& progress);

}  // namespace kiln::registry
