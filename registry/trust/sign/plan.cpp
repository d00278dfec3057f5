// SPDX-License-Identifier: Apache-2.0
#include "registry/trust/sign/plan.hpp"

#include <algorithm>
#include <utility>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "oci/tag.hpp"
#include "registry/folder/layout.hpp"
#include "registry/trust/delegations.hpp"
#include "registry/trust/sign/edits.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;
using trust::Delegation;

/// A version in the folder, by its tag.
struct Tagged {
  std::string package;
  int version;
  Descriptor index;

  Wished wished() const {
    return {trust::target_name(package, version),
            {{"length", index.size}, {"hashes", {{"sha256", index.digest.hex()}}}}};
  }
};

std::vector<Tagged> tagged_in(const fs::path& registry, const std::set<std::string>& only) {
  const std::vector<std::string> packages = packages_of(registry);
  for (const std::string& name : only) {
    if (std::ranges::find(packages, name) != packages.end()) continue;
    fail_to_sign(ErrorCode::kNotFound, registry,
                 "there is no package " + quote(name) +
                     "; nothing was signed. 'kiln registry list' says what is published");
  }
  std::vector<Tagged> found;
  for (const std::string& package : packages) {
    if (!only.empty() && !only.contains(package)) continue;
    for (const Tag& tag : Layout(registry / package).read()) {
      if (const int version = version_of_tag(tag.name); version != 0) {
        found.push_back({package, version, tag.descriptor});
      }
    }
  }
  return found;
}

/// Throws unless the index is there, whole, and of this name and version.
void check_index(const fs::path& registry, const Tagged& each) {
  const std::string what = "index " + label(each.package, each.version);
  const Layout layout(registry / each.package);
  const Index index = parse_index(layout.read_blob(each.index, what), what);
  if (index.name == each.package && index.version == each.version) return;
  throw Error(ErrorCode::kIntegrity, "sign " + label(each.package, each.version) + ": " +
                                         layout.index_path().string() + " gives that name to " +
                                         label(index.name, index.version) +
                                         "; nothing was signed. Run 'kiln registry check'");
}

// ---- targets ----

/// Nobody's versions may vanish because packages go to another role.
void check_names_of(const SignRequest& request, const Publisher& publisher, const Edits& edits) {
  const trust::Targets& targets = edits.signers().targets;
  const Delegation& role = *find_delegation(targets, publisher.role);
  const auto check = [&](const std::string& other) {
    const Json body = edits.body_of(other);
    if (body.is_null()) return;
    for (const auto& each : body["targets"].items()) {
      if (each.key().starts_with(kAdvisoryPrefix)) continue;
      if (role.covers(each.key(), "") == (other == publisher.role)) continue;
      fail_to_sign(ErrorCode::kConflict, request.registry,
                   printable(each.key()) + " is signed by " + printable(other) +
                       ", and would be nobody's any more; nothing was signed. Leave its package "
                       "where it is");
    }
  };
  check("targets");
  for (const Delegation& each : targets.delegations) check(each.role);
}

void plan_targets(const SignRequest& request, const Start& start, Edits& edits) {
  if (start.seen.file_of("targets") == nullptr || !edits.still_holds("targets")) {
    edits.renew("targets");
  }
  edits.edit("targets", [&](Json& body) {
    if (request.publisher) appoint(body, *request.publisher, start.root);
    if (!request.dismissed.empty()) dismiss(body, request.dismissed);
  });
  Json wished = edits.body_of("targets");
  edits.decide_targets();
  const bool is_asked = request.publisher || !request.dismissed.empty();
  if (is_asked && edits.body_of("targets")["delegations"] != wished["delegations"]) {
    edits.fail_to_change("targets");  // the draft that came back says nothing of it
  }
  if (request.publisher) check_names_of(request, *request.publisher, edits);
}

/// A key that may sign nothing was taken by mistake. While a new root waits for its targets, the
/// root before it says who renews what clients see.
void check_keys(const SignRequest& request, const Start& start, const Edits& edits) {
  const RoleSigners& signers = edits.signers();
  const bool may_wait =
      !start.new_roots.empty() && start.seen.set() && !edits.still_holds("targets");
  for (const PrivateKey& key : request.keys) {
    const std::string id = trust::key_id(key.key());
    const auto has = [&](const trust::Signers& those) { return those.ids.contains(id); };
    const trust::Root& root = signers.root;
    if (has(root.targets) || has(root.snapshot) || has(root.timestamp) ||
        std::ranges::any_of(signers.targets.delegations, has, &Delegation::signers) ||
        (may_wait &&
         (has(start.seen.set()->root().snapshot) || has(start.seen.set()->root().timestamp)))) {
      continue;
    }
    fail_to_sign(ErrorCode::kTrust, request.registry,
                 "root " + std::to_string(root.version) + " lets key " + id +
                     " sign neither targets nor timestamp, and no publisher has it; nothing was "
                     "signed. Leave it out, or name it in the next root: 'kiln registry rotate'");
  }
}

// ---- the roles to which targets delegate ----

/// What came back of each role, and which can be seen only together with the targets.
std::set<std::string> tie_roles(const Start& start, Edits& edits) {
  std::set<std::string> tied;
  for (const Delegation& each : edits.signers().targets.delegations) {
    const std::string& role = each.role;
    edits.take_returned(role);
    const Delegation* const before =
        start.seen.set() ? find_delegation(*start.seen.targets(), role) : nullptr;
    // A client refuses a role that has no document. A delegation is seen with its role's first one:
    // its signature shows that the publisher has the key.
    if (start.seen.file_of(role) == nullptr) {
      if (edits.find_pending(role) == nullptr) edits.renew(role);
      if (before == nullptr) tied.insert(role);
    }
    const bool has_other_signers = before == nullptr || before->signers != each.signers;
    if (start.seen.file_of(role) != nullptr && has_other_signers && !edits.still_holds(role)) {
      edits.renew(role);
      tied.insert(role);
    }
  }
  edits.check_all_are_taken();
  edits.drop_roles_of_nobody();
  return tied;
}

/// From when on clients may see a version. It stays when the version gains variants. One that was
/// signed without a time gets that of now, which is later than the truth.
void date(Json& targets, const std::string& name, std::int64_t now) {
  const auto found = targets.find(name);
  if (found == targets.end() || (*found)["custom"].contains("published")) return;
  (*found)["custom"]["published"] = trust::to_text(now);
}

/// Has one role say what the folder has; renews what is about to expire.
void plan_role(const SignRequest& request, const Start& start, const std::string& role,
               const std::vector<Tagged>& versions, Edits& edits, Plan& plan) {
  const Json visible = start.seen.body_of(role);
  const Pending* const pending = edits.find_pending(role);
  const Json& body = pending == nullptr ? visible : pending->body();
  std::vector<Wished> different;
  for (const Tagged& each : versions) {
    Wished wished = each.wished();
    const bool is_said = has_target(body, wished);
    if (is_said && pending == nullptr) continue;
    if (!is_said) {
      check_index(request.registry, each);
      different.push_back(wished);
    }
    plan.wished[role].push_back(std::move(wished));
  }
  if (!different.empty() && !edits.is_finished_elsewhere(role)) {
    edits.edit(role, [&](Json& next) {
      for (const Wished& each : different) next["targets"][each.name].update(each.target);
      for (const Tagged& each : versions) date(next["targets"], each.wished().name, start.now);
    });
  }
  if (visible.is_null()) return;
  const std::int64_t expires = *trust::parse_time(visible["expires"].get<std::string>());
  plan.shown[role] = {versions_in(visible["targets"]), expires};
  if (expires < start.now + kTargetsLast / 2 && edits.signers().has_one_of(request.keys, role)) {
    edits.renew(role);
  }
}

void yank(const SignRequest& request, Edits& edits) {
  for (const auto& each : request.yanked) {
    const std::string& name = each.first;
    const std::string role = role_for(edits.signers().targets, name);
    const Json body = edits.body_of(role);
    if (body.is_null() || !body["targets"].contains(name)) {
      fail_to_sign(
          ErrorCode::kNotFound, request.registry,
          "'" + name +
              "' is not signed here, so it cannot be taken back; nothing was signed. 'kiln "
              "registry list' says what is published");
    }
    edits.edit(role, [&](Json& next) { next["targets"][name]["custom"]["yanked"] = each.second; });
  }
}

/// An advisory as a target: its bytes are its JSON.
Json advisory_target(const Advisory& advisory) {
  const Json document = to_json(advisory);
  const std::string bytes = dump_json(document);
  return {{"length", bytes.size()},
          {"hashes", {{"sha256", Digest::of(bytes).hex()}}},
          {"custom", {{"advisory", document}}}};
}

void advise(const SignRequest& request, const Start& start, Edits& edits) {
  if (request.advisories.empty() && request.lifted.empty()) return;
  const std::string role = request.advising_role.empty() ? "targets" : request.advising_role;
  if (role != "targets" && find_delegation(edits.signers().targets, role) == nullptr) {
    fail_to_sign(ErrorCode::kNotFound, request.registry,
                 "there is no publisher " + quote(role) + "; nothing was signed");
  }
  edits.edit(role, [&](Json& next) {
    Json& targets = next["targets"];
    for (const Advisory& each : request.advisories) {
      targets[std::string(kAdvisoryPrefix) + each.id] = advisory_target(each);
    }
    for (const std::string& id : request.lifted) {
      const std::string name = std::string(kAdvisoryPrefix) + id;
      if (!targets.contains(name)) {
        fail_to_sign(ErrorCode::kNotFound, request.registry,
                     "there is no advisory " + quote(id) +
                         " to lift; nothing was signed. 'kiln registry advisory list' says which "
                         "there are");
      }
      Advisory lifted = parse_advisory(JsonView(targets[name]["custom"]["advisory"], name), id);
      lifted.lifted = start.now;
      targets[name] = advisory_target(lifted);
    }
  });
}

}  // namespace

std::size_t versions_in(const Json& targets) {
  std::size_t versions = targets.size();
  for (const auto& each : targets.items()) {
    if (each.key().starts_with(kAdvisoryPrefix)) --versions;
  }
  return versions;
}

bool has_target(const Json& body, const Wished& wished) {
  if (body.is_null()) return false;
  const auto target = body["targets"].find(wished.name);
  return target != body["targets"].end() && target->is_object() &&
         (*target)["length"] == wished.target["length"] &&
         (*target)["hashes"] == wished.target["hashes"];
}

Plan plan_roles(const SignRequest& request, const Start& start) {
  Plan plan;
  Edits edits(request, start);
  plan_targets(request, start, edits);
  plan.tied = tie_roles(start, edits);
  std::map<std::string, std::vector<Tagged>> by_role;
  for (Tagged& each : tagged_in(request.registry, request.only)) {
    by_role[role_for(edits.signers().targets, each.wished().name)].push_back(std::move(each));
  }
  if (request.only.empty()) {
    by_role["targets"];
    for (const Delegation& each : edits.signers().targets.delegations) by_role[each.role];
  }
  for (const auto& [role, versions] : by_role) {
    plan_role(request, start, role, versions, edits, plan);
  }
  yank(request, edits);
  advise(request, start, edits);
  check_keys(request, start, edits);
  plan.signers = edits.signers();
  plan.pending = std::move(edits).sign();
  return plan;
}

}  // namespace kiln::registry
