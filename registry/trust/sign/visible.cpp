// SPDX-License-Identifier: Apache-2.0
#include "registry/trust/sign/visible.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "documents/json.hpp"
#include "registry/trust/delegations.hpp"

namespace kiln::registry {
namespace {

constexpr std::int64_t kDay = 24L * 60 * 60;
constexpr const char* kNewest[] = {"snapshot", "timestamp"};

std::int64_t expiry_of(const Pending& pending) {
  return *trust::parse_time(pending.body()["expires"].get<std::string>());
}

/// Documents that enough have signed, and the root under which clients get them.
struct Ready {
  std::set<std::string> roles;
  TrustFiles new_roots;
  RoleSigners signers;  ///< of snapshot and timestamp
};

/// Nothing: clients see nothing yet, and could follow nothing. A new root that clients could follow
/// only with targets that too few have signed waits for them. Until then the root before it says
/// who renews what clients see.
std::optional<Ready> ready_of(const Start& start, const Plan& plan) {
  const auto is_complete = [&](const std::string& role) {
    return plan.signers.is_complete(role, plan.pending.at(role));
  };
  /// Whether clients that have the targets of now accept it.
  const auto holds_already = [&](const std::string& role, const Pending& pending) {
    if (role == "targets" || plan.tied.contains(role)) return false;
    const trust::Targets& now = *start.seen.targets();
    const trust::Delegation* const found = find_delegation(now, role);
    return found != nullptr && pending.is_complete(now.keys, found->signers);
  };
  const bool targets_go = !plan.pending.contains("targets") ||
                          (is_complete("targets") && std::ranges::all_of(plan.tied, is_complete));
  if (!targets_go && !start.seen.set()) return std::nullopt;
  Ready ready{{}, start.new_roots, plan.signers};
  if (!targets_go &&
      !plan.signers.is_complete("targets", Pending(*start.seen.file_of("targets"), "targets"))) {
    ready.new_roots.clear();
    ready.signers = {start.seen.set()->root(), *start.seen.targets()};
  }
  for (const auto& [role, pending] : plan.pending) {
    if (role == "snapshot" || role == "timestamp") continue;
    if (targets_go ? is_complete(role) : holds_already(role, pending)) ready.roles.insert(role);
  }
  return ready;
}

/// What clients would see, all but the snapshot and the timestamp that say so.
struct Next {
  TrustFiles files;
  Json meta;  ///< of the snapshot
};

Json meta_of(const std::string& bytes, std::uint64_t version) {
  return {{"version", version},
          {"length", bytes.size()},
          {"hashes", {{"sha256", Digest::of(bytes).hex()}}}};
}

Next next_of(const Start& start, const Plan& plan, const Ready& ready) {
  const ClientMetadata& seen = start.seen;
  Next next{seen.files(), {}};
  next.files.insert(ready.new_roots.begin(), ready.new_roots.end());
  const auto drop = [&](const std::string& role) {
    next.files.erase(role_file(seen.version_of(role), role));
  };
  if (seen.set()) {
    next.meta = parse_json(*seen.file_of("snapshot"), "snapshot")["signed"]["meta"];
    drop("snapshot");
  }
  for (const std::string& role : ready.roles) {
    const Pending& pending = plan.pending.at(role);
    drop(role);
    const std::string text = pending.text(role);
    next.meta[role + ".json"] = meta_of(text, pending.version());
    next.files[role_file(pending.version(), role)] = text;
  }
  if (!ready.roles.contains("targets") || !seen.set()) return next;
  // Of a role that is nobody's any more. The snapshot goes on to name it: a client refuses one that
  // has lost a document.
  for (const trust::Delegation& each : seen.targets()->delegations) {
    if (find_delegation(plan.signers.targets, each.role) == nullptr) drop(each.role);
  }
  return next;
}

/// Snapshot or timestamp: the draft's, if it says this and was not left too long.
Pending newest_of(const std::string& role, const Json& meta, const SignRequest& request,
                  const Start& start, const Plan& plan, const RoleSigners& signers) {
  const auto own = plan.pending.find(role);
  const bool is_own = own != plan.pending.end() && own->second.body()["meta"] == meta &&
                      own->second.version() >= start.next_version(role) &&
                      expiry_of(own->second) >= start.now + kDay;
  Pending newest = is_own ? own->second
                          : Pending({{"_type", role},
                                     {"spec_version", "1.0.31"},
                                     {"version", start.next_version(role)},
                                     {"expires", trust::to_text(start.now + request.days * kDay)},
                                     {"meta", meta}});
  if (const auto found = start.returned.find(role); found != start.returned.end()) {
    for (const Pending& each : found->second) newest.join(each);
  }
  newest.sign(request.keys, signers.of(role));
  return newest;
}

/// Whether snapshot and timestamp are to be: signed before, or by a key that is here.
bool newest_is_wanted(const SignRequest& request, const Start& start, const Plan& plan,
                      const RoleSigners& signers) {
  return plan.pending.contains("snapshot") || start.returned.contains("snapshot") ||
         std::ranges::any_of(
             kNewest, [&](const char* role) { return signers.has_one_of(request.keys, role); });
}

/// What a client makes of it that knew the first root.
trust::TrustedSet checked_as_client(const TrustFiles& files, const Start& start, const Plan& plan,
                                    const std::set<std::string>& ready) {
  trust::TrustedSet set = follow(files, start.seen.origin(), trust::Expiry::kRefused);
  for (const std::string& role : ready) {
    if (role == "targets" || find_delegation(plan.signers.targets, role) == nullptr) continue;
    set.take_targets(files.at(role_file(plan.pending.at(role).version(), role)), role, "targets");
  }
  return set;
}

/// Why a target was taken back, or null.
Json yank_of(const Json& target) {
  const auto custom = target.find("custom");
  return custom == target.end() || !custom->contains("yanked") ? Json() : (*custom)["yanked"];
}

}  // namespace

std::map<std::string, bool> changes_in(const ClientMetadata& seen, const Json& body) {
  std::map<std::string, Json> bodies;  // by role
  const auto before = [&](const std::string& name) -> const Json* {
    if (!seen.set()) return nullptr;
    const std::string from = role_for(*seen.targets(), name);
    if (!bodies.contains(from)) bodies[from] = seen.body_of(from);
    const Json& was = bodies[from];
    return was.is_null() || !was["targets"].contains(name) ? nullptr : &was["targets"][name];
  };
  std::map<std::string, bool> changes;
  for (const auto& [name, target] : body["targets"].items()) {
    const Json* const known = before(name);
    if (known != nullptr && *known == target) continue;
    changes[name] = yank_of(target) != (known == nullptr ? Json() : yank_of(*known));
  }
  return changes;
}

Visible make_visible(const SignRequest& request, const Start& start, const Plan& plan) {
  Visible outcome{start.seen,      false, {},           plan.pending,
                  start.new_roots, false, plan.signers, plan.shown};
  const std::optional<Ready> ready = ready_of(start, plan);
  if (!ready || !newest_is_wanted(request, start, plan, ready->signers)) {
    for (const char* role : kNewest) outcome.pending.erase(role);
    outcome.lacks_newest = ready && !(ready->roles.empty() && ready->new_roots.empty());
    return outcome;
  }
  outcome.signers = ready->signers;
  Next next = next_of(start, plan, *ready);
  const auto sign_newest = [&](const std::string& role, const Json& meta) {
    const auto [place, _] = outcome.pending.insert_or_assign(
        role, newest_of(role, meta, request, start, plan, ready->signers));
    const Pending& pending = place->second;
    next.files[role == "timestamp" ? "timestamp.json" : role_file(pending.version(), role)] =
        pending.text(role);
    return ready->signers.is_complete(role, pending);
  };
  const bool has_snapshot = sign_newest("snapshot", next.meta);
  const Pending& snapshot = outcome.pending.at("snapshot");
  Json named = {{"version", snapshot.version()}};
  // Where several must sign, each signs both at once: what the others' signatures will be is not
  // known then, and so not what the snapshot's bytes will be.
  if (ready->signers.root.snapshot.threshold == 1 && has_snapshot) {
    named = meta_of(snapshot.text("snapshot"), snapshot.version());
  }
  const bool has_timestamp = sign_newest("timestamp", {{"snapshot.json", named}});
  if (!has_snapshot || !has_timestamp) return outcome;

  trust::TrustedSet set = checked_as_client(next.files, start, plan, ready->roles);
  const auto show = [&](const std::string& role, std::size_t names) {
    const auto pending = outcome.pending.find(role);
    outcome.shown[role] = {names, expiry_of(pending->second)};
    outcome.pending.erase(pending);
  };
  for (const std::string& role : ready->roles) {
    const Json& body = plan.pending.at(role).body();
    for (const auto& change : changes_in(start.seen, body)) outcome.changed.push_back(change.first);
    show(role, versions_in(body["targets"]));
  }
  for (const char* role : kNewest) show(role, 0);
  outcome.is_visible = true;
  for (const auto& each : ready->new_roots) outcome.new_roots.erase(each.first);
  outcome.seen = ClientMetadata(std::move(next.files), start.seen.origin(), std::move(set));
  return outcome;
}

}  // namespace kiln::registry
