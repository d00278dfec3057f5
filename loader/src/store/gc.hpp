// SPDX-License-Identifier: Apache-2.0
//
// Gc: removes from a cache what nothing holds. Next to install, above cache. It waits until no
// install is under way and keeps them out while it works; a process that has loaded a kernel does
// not hinder it, and what it loaded stays.
//
// Held is every digest that is named by a ref, by a registered lock file or by a running process,
// or by a document that is held. Documents are read for digests, not parsed: what a later version
// of the format names is kept as well. Layers of unpacked variants are kept: a bundle and a repair
// without network are made of them; `layers` gives them up for the room.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "store/cache.hpp"

namespace kiln {

struct GcOptions {
  bool dry_run = false;   ///< says what would go, and removes nothing
  bool unlocked = false;  ///< a ref alone holds nothing: versions that no lock file names and no
                          ///< running process has loaded go as well
  bool layers = false;    ///< the archives of variants that are unpacked go as well
  bool partial = false;   ///< downloads that were cut less than a day ago go as well
  std::function<void()> on_wait = {};  ///< called once if an install has to be waited for
};

struct Removed {
  std::string what;  ///< "version", "root", "partial download", "draft", "files", "blob",
                     ///< "signatures", "lock"
  std::filesystem::path path;
  std::uint64_t bytes = 0;
};

/// In the order of removal: a version's ref goes before what it refers to, so that gc may be killed
/// anywhere. Throws kIntegrity for a damaged ref or document, since what it held cannot be known,
/// and kCache for a lock file that is there and cannot be read, or where the file system has no
/// locks; nothing is removed then.
std::vector<Removed> collect_garbage(const Cache& cache, const GcOptions& options = {});

/// A version that stays, and what holds it: a lock file, or "a running process".
struct KeptVersion {
  Ref ref;
  std::string holder;
};

struct Uninstalled {
  std::vector<Ref> versions;      ///< those that went
  std::vector<KeptVersion> kept;  ///< wanted as well, but held
  std::vector<Removed> removed;
};

/// Gives up the versions that `wanted` accepts, except those that a registered lock file or a
/// running process holds, then removes what nothing holds, as collect_garbage does, and throws as
/// it does.
Uninstalled uninstall(const Cache& cache, const std::function<bool(const Ref&)>& wanted,
                      const GcOptions& options = {});

}  // namespace kiln
