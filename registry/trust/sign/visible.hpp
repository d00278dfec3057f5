// SPDX-License-Identifier: Apache-2.0
//
// Sign, third stage: what becomes visible. Of the documents that are pending, those that enough
// have signed and that clients can follow without the rest; a snapshot that names them and a
// timestamp that names it, where a key for those is given. A client checks all of it. After
// plan, before sign, which writes it. Reads and writes nothing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "registry/trust/sign/plan.hpp"

namespace kiln::registry {

struct Visible {
  ClientMetadata seen;               ///< what clients see from now on; as before unless is_visible
  bool is_visible = false;           ///< whether that is more than before
  std::vector<std::string> changed;  ///< names that are new, or have another index or yank now
  PendingRoles pending;              ///< what waits
  TrustFiles new_roots;              ///< that wait
  bool lacks_newest = false;         ///< only a key of snapshot and timestamp is missing
  RoleSigners signers;               ///< of snapshot and timestamp
  std::map<std::string, Shown> shown;
};

/// The names of which a body says otherwise than clients have them now, from whatever role; true:
/// it is taken back.
std::map<std::string, bool> changes_in(const ClientMetadata& seen, const Json& body);

/// Throws kTrust for what no client would accept.
Visible make_visible(const SignRequest& request, const Start& start, const Plan& plan);

}  // namespace kiln::registry
