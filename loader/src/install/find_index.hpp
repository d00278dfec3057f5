// SPDX-License-Identifier: Apache-2.0
//
// Find_index: the version's index for a request: from the cache, from the registry, or the one that
// a lock file names. Inside select, before resolve. Each takes it into self.selected. Throws
// kNotFound, kNetwork, kOffline, kIntegrity, kLock, kUpgrade. A Selecting is used by one thread at
// a time.
#pragma once

#include <string>
#include <string_view>

#include "install/select.hpp"

namespace kiln {

/// Parses verified bytes; the registry chose them, so they must speak of what was asked for.
Index read_index(const std::string& bytes, std::string_view name, int version,
                 const std::string& registry);

/// The cached one. False if there is none, or a damaged one while the registry is asked anyway.
bool recall_index(Selecting& self);

/// The registry's, in place of what was recalled, which it may only have added variants to.
void ask_index(Selecting& self);

/// By digest: no tag is asked, and nobody can answer with another state of the version.
void take_locked_index(Selecting& self);

/// As the registry has it now; the locked one where there is a lock; offline, the cached one.
void find_newest_index(Selecting& self);

}  // namespace kiln
