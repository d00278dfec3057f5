// SPDX-License-Identifier: Apache-2.0
//
// Delegations: the part of a targets document that leaves names to other roles. Under sign. Pure.
//
//   publishers    by the names of their packages; each has keys and a threshold of its own, and is
//                 the only one who is asked about them
//   bins          after those, all other names by their hash; signed by the targets keys. Many
//                 documents of a hundredth of the size, of which a client wants one
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "documents/json_fwd.hpp"
#include "trust/key.hpp"
#include "trust/metadata.hpp"

namespace kiln::registry {

/// What a publisher may sign.
struct Publisher {
  std::string role;
  std::vector<std::string> packages;  ///< names, or beginnings like "acme-*"; none: as before
  std::vector<trust::Key> keys;       ///< none: as before
  std::uint64_t threshold = 0;        ///< 0: as before, at first 1
};

/// Appoints a publisher, or changes one. `targets`: the document's body. Throws kUsage for a name
/// that is none, for keys or packages that are missing, and for an online key of the root's;
/// kConflict for packages of another one.
void appoint(Json& targets, const Publisher& publisher, const trust::Root& root);

/// Throws kNotFound where there is no such publisher.
void dismiss(Json& targets, const std::string& role);

/// In the place of the bins that there are; 0: there stay as many. Their keys are the root's for
/// targets. Throws kUsage unless `bins` is a power of two from 2 to 2048.
void set_bins(Json& targets, std::size_t bins, const trust::Root& root);

bool is_bin(std::string_view role);

/// Who signs what is said of a name: the first role that covers it, or "targets".
std::string role_for(const trust::Targets& targets, const std::string& name);

}  // namespace kiln::registry
