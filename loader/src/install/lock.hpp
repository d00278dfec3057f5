// SPDX-License-Identifier: Apache-2.0
//
// Lock: kiln.lock in use. Making one: every variant's documents, asked of the registry (after
// select and pull). Holding to one: a request takes its version, registry and index digest from
// it (before select), and what is pulled must be what it says (within pull). Safe from several
// threads.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "documents/lockfile.hpp"
#include "kiln/kernel.hpp"

namespace kiln {

/// Throws kLock if there is no such file, or what parse_lockfile throws.
Lockfile read_lockfile(const std::filesystem::path& file);

/// Whole or not at all: written beside its place and renamed. Throws kCache.
void write_lockfile(const std::filesystem::path& file, const Lockfile& lock);

/// The lock file that a request is held to: its own, else $KILN_LOCK, else none (empty).
std::filesystem::path lockfile_of(const Request& request);

/// What a lock file says of one kernel.
struct Held {
  std::filesystem::path file;
  LockedKernel kernel;
};

/// Nothing if no lock file is named. Else fills in the request's version and registry from it.
/// Throws kLock, naming both sides, where it has no such kernel, or another version or registry
/// than the request or $KILN_REGISTRY asks for.
std::optional<Held> hold_to_lock(std::string_view name, Request& request);

/// What a lock file records of a variant.
LockedVariant locked_variant(const Variant& variant, const VariantManifest& manifest,
                             const Config& config);

/// Throws kLock, naming both sides, unless the lock file says exactly this of the variant.
void check_held(const Held& held, std::string_view subject, const std::string& id,
                const LockedVariant& found);

/// Asks the registry for the version's index and for the documents of all its variants (offline,
/// the cache). `unread` gets the ids of variants that only a newer Kiln can read: they are not
/// locked. Throws what install throws, but kNoVariant.
LockedKernel lock_kernel(std::string_view name, const Request& request,
                         std::vector<std::string>& unread);

}  // namespace kiln
