// SPDX-License-Identifier: Apache-2.0
//
// RoleSigners: which keys sign a role of a registry's metadata, and how many of them must: as the
// root says of targets, snapshot and timestamp, and targets of all others. Under sign and review.
// Pure.
#pragma once

#include <string>
#include <vector>

#include "registry/trust/draft.hpp"
#include "registry/trust/keys.hpp"
#include "trust/metadata.hpp"

namespace kiln::registry {

/// Null where `targets` delegate to no such role.
const trust::Delegation* find_delegation(const trust::Targets& targets, const std::string& role);

struct RoleSigners {
  trust::Root root;
  trust::Targets targets;

  /// Without ids where no such role is known.
  const trust::Signers& of(const std::string& role) const;
  const trust::Keys& keys_of(const std::string& role) const;

  /// Whether enough keys have signed. Never for a role that has no keys.
  bool is_complete(const std::string& role, const Pending& pending) const;
  Missing missing_of(const std::string& role, const Pending& pending) const;
  /// Whether one of these keys may sign, and whether they are as many as must.
  bool has_one_of(const std::vector<PrivateKey>& keys, const std::string& role) const;
  bool has_enough_of(const std::vector<PrivateKey>& keys, const std::string& role) const;
};

}  // namespace kiln::registry
