// SPDX-License-Identifier: Apache-2.0
//
// Delegations: the part of a targets document that leaves packages to publishers. A publisher has
// its own keys and threshold, and only its signatures count for its packages. Under sign. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "documents/json_fwd.hpp"
#include "trust/key.hpp"
#include "trust/metadata.hpp"

namespace kiln::registry {

/// What a publisher may sign.
struct Publisher {
  std::string role;
  std::vector<std::string> packages;  ///< names, or beginnings like "acme-*"; empty: as before
  std::vector<trust::Key> keys;       ///< empty: as before
  std::uint64_t threshold = 0;        ///< 0: as before, at first 1
};

/// Appoints a publisher, or changes one. `targets`: the document's body. Throws kUsage for a name
/// that no role can have, for missing keys or packages, and for an online key of the root's;
/// kConflict for packages of another publisher.
void appoint(Json& targets, const Publisher& publisher, const trust::Root& root);

/// Throws kNotFound where there is no such publisher.
void dismiss(Json& targets, const std::string& role);

/// The role that signs what is said of a name: the first that covers it, or "targets".
std::string role_for(const trust::Targets& targets, const std::string& name);

}  // namespace kiln::registry
