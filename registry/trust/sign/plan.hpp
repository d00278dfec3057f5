// SPDX-License-Identifier: Apache-2.0
//
// Sign, second stage: what each role is to say now. Targets first: publishers, and those who
// have left; then each role, of the versions that the folder has: what is new, yanked, or about to
// expire. The request's keys sign each document that they may. After start, before
// visible. Reads the folder's indexes; writes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "documents/json_fwd.hpp"
#include "registry/trust/role_signers.hpp"
#include "registry/trust/sign/start.hpp"

namespace kiln::registry {

/// Of a role's document that clients see.
struct Shown {
  std::size_t names = 0;
  std::int64_t expires = 0;  ///< seconds since 1970
};

/// A version in the folder, and the target that it should be.
struct Wished {
  std::string name;  ///< "geglu-mlp/1"
  Json target;       ///< length and hashes
};

/// Whether a document's targets have it, whatever else they say of it.
bool has_target(const Json& body, const Wished& wished);

/// How many versions are among a document's targets: others are advisories.
std::size_t versions_in(const Json& targets);

struct Plan {
  RoleSigners signers;         ///< with the targets that are to be
  PendingRoles pending;        ///< signed by those keys that may
  std::set<std::string> tied;  ///< roles that go with the targets, or neither does
  std::map<std::string, std::vector<Wished>> wished;  ///< by role; what clients may lack
  std::map<std::string, Shown> shown;                 ///< of the roles that were looked at
};

/// Throws kTrust for a key that may sign nothing, kNotFound for a version to yank that nobody has
/// signed, kIntegrity for a version that is not what the folder calls it, and what delegations.hpp
/// throws; kConflict where no role would be left to sign a name, and for a change that would take
/// away signatures that are all there.
Plan plan_roles(const SignRequest& request, const Start& start);

}  // namespace kiln::registry
