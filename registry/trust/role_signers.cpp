// SPDX-License-Identifier: Apache-2.0
#include "registry/trust/role_signers.hpp"

#include <algorithm>
#include <iterator>
#include <set>

namespace kiln::registry {
namespace {

std::uint64_t count_of(const std::vector<PrivateKey>& keys, const trust::Signers& signers) {
  return static_cast<std::uint64_t>(std::ranges::count_if(
      keys, [&](const PrivateKey& key) { return signers.ids.contains(trust::key_id(key.key())); }));
}

}  // namespace

const trust::Delegation* find_delegation(const trust::Targets& targets, const std::string& role) {
  const auto found = std::ranges::find(targets.delegations, role, &trust::Delegation::role);
  return found == targets.delegations.end() ? nullptr : &*found;
}

const trust::Signers& RoleSigners::of(const std::string& role) const {
  if (role == "targets") return root.targets;
  if (role == "snapshot") return root.snapshot;
  if (role == "timestamp") return root.timestamp;
  static const trust::Signers kNobody;
  const trust::Delegation* const found = find_delegation(targets, role);
  return found == nullptr ? kNobody : found->signers;
}

const trust::Keys& RoleSigners::keys_of(const std::string& role) const {
  const bool top = role == "targets" || role == "snapshot" || role == "timestamp";
  return top ? root.keys : targets.keys;
}

bool RoleSigners::is_complete(const std::string& role, const Pending& pending) const {
  const trust::Signers& signers = of(role);
  return !signers.ids.empty() && pending.is_complete(keys_of(role), signers);
}

Missing RoleSigners::missing_of(const std::string& role, const Pending& pending) const {
  const trust::Signers& signers = of(role);
  const std::set<std::string> have = pending.signed_by(keys_of(role), signers);
  Missing missing{role, pending.version(), have.size(), signers.threshold, {}};
  std::ranges::set_difference(signers.ids, have, std::back_inserter(missing.may_sign));
  return missing;
}

bool RoleSigners::has_one_of(const std::vector<PrivateKey>& keys, const std::string& role) const {
  return count_of(keys, of(role)) > 0;
}

bool RoleSigners::has_enough_of(const std::vector<PrivateKey>& keys,
                                const std::string& role) const {
  const trust::Signers& signers = of(role);
  return count_of(keys, signers) >= signers.threshold;
}

}  // namespace kiln::registry
