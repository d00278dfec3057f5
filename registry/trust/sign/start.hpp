// SPDX-License-Identifier: Apache-2.0
//
// Sign, first stage: where signing begins. What clients see, here or at a server that has more; the
// newest root, as a client follows it; and what is pending: the folder's draft, and drafts that
// came back. Before plan. Reads, and writes nothing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "registry/trust/draft.hpp"
#include "registry/trust/sign/client_metadata.hpp"
#include "registry/trust/sign/sign.hpp"

namespace kiln::registry {

using PendingRoles = std::map<std::string, Pending>;  ///< by role

struct Start {
  std::int64_t now = 0;  ///< of the whole signing, in seconds since 1970
  ClientMetadata seen;
  trust::Root root;      ///< the newest
  TrustFiles new_roots;  ///< those after what clients see, the request's and the drafts'
  PendingRoles pending;  ///< of the folder's own draft, as far as clients lack it
  /// The highest numbers that a server has given out of snapshot and timestamp; the next is above.
  std::uint64_t snapshot = 0;
  std::uint64_t timestamp = 0;
  /// What came back, by role. It counts only once it is known what the folder would sign.
  std::map<std::string, std::vector<Pending>> returned;

  /// The number that the next document of a role gets.
  std::uint64_t next_version(const std::string& role) const;
};

/// Throws kUsage where there is no root, kConflict for another root of the same version, for a
/// draft of another state, the folder's own too where it would be lost, and for a server's metadata
/// that follows from no root that is known here, or that was signed apart from the folder's.
Start start_signing(const SignRequest& request);

}  // namespace kiln::registry
