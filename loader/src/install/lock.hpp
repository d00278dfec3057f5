// SPDX-License-Identifier: Apache-2.0
//
// Lock: kiln.lock in use. To make one, every variant's documents are asked of the registry. A
// request that is held to one takes its version, registry and index digest from it, and what is
// pulled must be what it says. Around install. Safe from several threads.
#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_lock.hpp"
#include "documents/lockfile.hpp"
#include "kiln/request.hpp"

namespace kiln {

struct Package;   // install/install.hpp
struct Settings;  // settings/settings.hpp

/// " --lock FILE" for a command that a text names: what it needs to speak of this file. Empty for
/// kiln.lock, which it takes by itself.
std::string lock_option(const std::filesystem::path& file);

/// The same for a command that reads no lock file by itself: " --locked" for kiln.lock.
std::string locked_option(const std::filesystem::path& file);

/// Throws kLock if there is no such file, or what parse_lockfile throws.
Lockfile read_lockfile(const std::filesystem::path& file);

/// All or nothing: written under a temporary name and renamed. Where `file` is a symbolic link, the
/// file that it names is replaced. Throws kUsage for what cannot be read again, kNotFound for a
/// folder that does not exist, else kCache.
void write_lockfile(const std::filesystem::path& file, const Lockfile& lock);

/// How a lock file is to be changed.
struct LockfileEdit {
  std::function<Lockfile(const Lockfile& before)> change;
  bool replace = false;  ///< `before` has nothing, whatever is in the file
  bool write = true;     ///< false: only to see what would change
  /// Files that `change` reads and writes as well, such as kiln.json: their folders are locked too.
  std::vector<std::filesystem::path> beside = {};
  Waiting waiting = {};  ///< for another process
};

struct LockfileUpdate {
  Lockfile before;  ///< empty where there was no file
  Lockfile after;
  bool changed = false;
};

/// Reads, changes and writes a lock file, one process at a time: none loses what another one
/// added. The file's folder is locked meanwhile (flock), so Kiln leaves no lock file there; on a
/// file system that locks no folders, the last one to write wins. Throws what reading, changing and
/// writing throw, and kCancelled.
LockfileUpdate update_lockfile(const std::filesystem::path& file, const LockfileEdit& edit);

/// What the lock file says of the kernel that the request is for. Throws kLock, naming both sides,
/// where it does not have it, or has another version or registry than the request or $KILN_REGISTRY
/// asks for.
LockedKernel locked_kernel(const std::filesystem::path& file, std::string_view name,
                           const Request& request, const Settings& settings);

/// The lock file that a request is held to: its own, else $KILN_LOCK, else none (empty).
std::filesystem::path lockfile_of(const Request& request, const Settings& settings);

/// Throws kLock: `version` is asked for, and the file has another one.
[[noreturn]] void fail_other_version(const std::filesystem::path& file, std::string_view name,
                                     int version, int locked);

/// What a lock file records of a variant.
LockedVariant locked_variant(const Package& package);

/// Throws kLock, naming both sides, unless the lock file says exactly this of the variant.
void check_locked(const std::filesystem::path& file, const LockedKernel& kernel,
                  const Package& package);

/// Asks the registry for the version's index and for the documents of all its variants, a few at
/// once (offline, the cache). `unread` gets the ids of variants that only a newer Kiln can read:
/// they are not locked. Throws what install throws, but kNoVariant.
LockedKernel lock_kernel(std::string_view name, const Request& request,
                         std::vector<std::string>& unread);

}  // namespace kiln
