// SPDX-License-Identifier: Apache-2.0
//
// Repair: whether a cache is whole, and what makes it so. One walk over everything behind the refs:
// verify tells what is not what its name says; repair removes that as well and fetches it anew, by
// digest, from the registry of the ref that needs it. Next to install, above cache and the sources.
// May run during installs and loads: each of them fetches a missing file as well.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/error.hpp"
#include "store/cache.hpp"
#include "store/registry.hpp"

namespace kiln {

/// One file of the cache, hashed.
struct CheckedFile {
  std::string subject;  ///< "geglu-mlp@1 cu12.9-sm_90a-x86_64", "ref", "folder"
  std::filesystem::path file;
  std::string problem;                   ///< empty: intact
  std::string done = {};                 ///< "fetched again", "removed: run 'kiln install …'"
  std::optional<ErrorCode> failed = {};  ///< why it is still not whole; `done` says the text
};

/// Hashes every file behind the refs: indexes, manifests, configs, layers, unpacked files. Empty
/// name: all packages, and the blobs that no ref names; version 0: all versions. Throws nothing for
/// damage: it is the answer; kNotFound where the cache or what is named is not there, kCache where
/// it may not be read.
std::vector<CheckedFile> verify_installed(const Cache& cache, std::string_view name = {},
                                          int version = 0);

/// What was damaged; empty if everything was intact. Where the settings say offline, nothing is
/// fetched; what is damaged is removed, and failed is kOffline. Throws kCache where the cache
/// cannot be read or written.
std::vector<CheckedFile> repair(const Cache& cache, const Settings& settings,
                                const Patience& patience = {});

}  // namespace kiln
