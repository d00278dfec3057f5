// SPDX-License-Identifier: Apache-2.0
//
// Edits: the next version of each document, while it comes about: what is pending, what changes
// in it, and what came back signed. Under plan. An edit takes away the signatures of the document
// as it was before.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "registry/trust/role_signers.hpp"
#include "registry/trust/sign/start.hpp"

namespace kiln::registry {

inline constexpr std::int64_t kTargetsLast = 365L * 24 * 60 * 60;  ///< seconds

class Edits {
 public:
  /// Both outlive it.
  Edits(const SignRequest& request, const Start& start);

  /// The newest root, and the targets that clients see; those that are to be, after decide_targets.
  const RoleSigners& signers() const { return signers_; }
  /// Null: nothing of this role is pending.
  const Pending* find_pending(const std::string& role) const;

  /// The pending document of a role, else the one that clients see; null for neither.
  Json body_of(const std::string& role) const;

  /// Changes what a role will say; an edit that changes neither targets nor delegations makes no
  /// new version. What clients see of it is verified first. kConflict where that would take away
  /// signatures that are all there, and that the keys here cannot make again.
  void edit(const std::string& role, const std::function<void(Json&)>& change);
  /// Sees to it that there is a new version.
  void renew(const std::string& role);

  /// Takes over what came back of a role, now that it is known what the folder itself would have
  /// signed: signatures of that document, or another document that lacks no signature. kConflict.
  void take_returned(const std::string& role);
  /// Takes over what came back of the targets. From here on, the roles are those that these targets
  /// delegate to.
  void decide_targets();
  /// kConflict where something came back of a role to which nobody delegates.
  void check_all_are_taken() const;
  /// Drops the pending documents of publishers who were dismissed.
  void drop_roles_of_nobody();

  /// Signed as it came back: it is neither edited nor signed here.
  bool is_finished_elsewhere(const std::string& role) const {
    return finished_elsewhere_.contains(role);
  }

  /// Whether what clients have of a role is signed as from now on it must be.
  bool still_holds(const std::string& role) const;

  /// The end: each of the request's keys has signed what it may.
  PendingRoles sign() &&;

  /// Throws kConflict: what waits of a role has all its signatures, and a change would lose them.
  [[noreturn]] void fail_to_change(const std::string& role) const;

 private:
  /// Whether what waits has signatures enough, of more keys than are here.
  bool was_signed_elsewhere(const std::string& role) const;
  Json next_body(const std::string& role);

  const SignRequest& request_;
  const Start& start_;
  RoleSigners signers_;
  PendingRoles pending_;
  std::map<std::string, std::vector<Pending>> returned_;  ///< until it is looked at
  std::set<std::string> finished_elsewhere_;
  std::optional<trust::TrustedSet> verified_;  ///< what clients see, as far as it was edited
};

}  // namespace kiln::registry
