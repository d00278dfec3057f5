// SPDX-License-Identifier: Apache-2.0
//
// Lockfile: what kiln.lock says. For each kernel the version, the registry that it comes from, the
// digest of its index, and of every variant the digests of all that is fetched and of the library
// that is loaded; so one file, made on a laptop, holds on every machine of a cluster. It depends on
// the registry's state alone: no time, no machine, sorted keys. Pure: text in, values out. `kiln
// lock` writes it (install/lock.hpp), and Install holds every install to it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "documents/descriptor.hpp"

namespace kiln {

struct LockedVariant {
  Descriptor manifest;
  Descriptor config;
  Descriptor layer;
  std::string library;  ///< its path in the archive
  Digest library_digest;
  bool operator==(const LockedVariant&) const = default;
};

struct LockedKernel {
  std::string registry;  ///< canonical: what the bytes are known by, wherever they come from
  int version = 0;
  Descriptor index;
  std::map<std::string, LockedVariant> variants;  ///< by id
  bool operator==(const LockedKernel&) const = default;
};

/// One version of a kernel each, by name.
using Lockfile = std::map<std::string, LockedKernel>;

/// `subject` names the file in errors. Throws kUpgrade for a lock file of a newer Kiln, else
/// kLock for another document, without a next step: the file's reader knows its name. Members that
/// this Kiln does not know are passed over.
Lockfile parse_lockfile(std::string_view text, std::string_view subject);

/// Indented and sorted, with a newline at its end. The same state gives the same bytes, and
/// parse_lockfile gives the state back. Throws kUsage for a registry or a library whose name a lock
/// file cannot hold.
std::string serialize_lockfile(const Lockfile& lock);

/// What differs, a line each, in the words of `kiln lock`: "geglu-mlp: version 1 -> 2",
/// "geglu-mlp@1: + variant cpu-x86-64-v4". Empty if nothing does.
std::vector<std::string> differences(const Lockfile& before, const Lockfile& after);

/// Throws kIntegrity, naming both sides, if `after`, the same version of the same registry, lost or
/// changed a variant of `before`: a published version only grows.
void check_only_grown(std::string_view name, const LockedKernel& before, const LockedKernel& after);

}  // namespace kiln
