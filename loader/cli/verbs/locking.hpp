// SPDX-License-Identifier: Apache-2.0
//
// Locking: what the commands that change a project's kiln.lock share: lock, add, remove, update.
// Around install/lock. A project may state its kernels in kiln.json too: then both change.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "documents/requirements.hpp"
#include "install/lock.hpp"
#include "loader/cli/verbs/verbs.hpp"

namespace kiln::cli {

/// Where a project has its kernels, as the command line says it.
struct Project {
  std::string lock = "kiln.lock";
  std::string requirements;  ///< empty: kiln.json, where there is one
  bool check = false;        ///< write nothing; kLock if something would change
  /// How old a version must be to count as the newest, "7 days"; empty: as the settings say.
  std::string newest_after;
};

/// --lock, --requirements, --check.
void takes_project(Command& command, Project& project);

/// --newest-after.
void takes_cool_down(Command& command, Project& project);

/// Of a project that states its kernels; nothing if it does not: no such file by that usual name.
std::optional<Requirements> requirements_of(const Project& project);

/// The registry of a kernel: the command line's, the requirements', $KILN_REGISTRY, the one that it
/// is locked from already, else the machine's default (empty).
std::string registry_of(const Options& options, const std::string& stated, const Lockfile& before,
                        const std::string& name);

/// A version as its registry has it now, with all variants. What was locked of it must still hold.
LockedKernel lock_version(const std::string& name, int version, const std::string& registry,
                          const Options& options, const Lockfile& before);

/// Changes the lock file, one process at a time. `force`: whatever is in it.
LockfileUpdate change_lockfile(const Project& project, const Options& options,
                               const std::function<Lockfile(const Lockfile&)>& change,
                               bool force = false);

/// Changes the versions that the project states: 0 takes a kernel away. Nothing where it states
/// none.
void change_requirements(const Project& project, const std::map<std::string, int>& versions);

/// Prints what changed; the document gets `more`. The exit code: kLock if --check found a change.
int print_change(const Project& project, const LockfileUpdate& update, const std::string& kind,
                 const Options& options, Json more);

}  // namespace kiln::cli
