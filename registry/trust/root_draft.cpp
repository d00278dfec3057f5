// SPDX-License-Identifier: Apache-2.0
#include "registry/trust/root_draft.hpp"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/join.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "trust/metadata.hpp"
#include "trust/trusted_set.hpp"

namespace kiln::registry {
namespace {

constexpr const char* kOrigin = "the root given";

/// Gives a role these keys and threshold; none: it keeps its own.
void give(Json& root, const char* role, const std::vector<trust::Key>& keys,
          std::uint64_t threshold, const char* option) {
  Json& itself = root["roles"][role];
  if (!keys.empty()) itself["keyids"] = add_keys(root["keys"], keys);
  if (threshold > 0) itself["threshold"] = threshold;
  const std::size_t have = itself["keyids"].size();
  if (itself["threshold"].get<std::uint64_t>() <= have) return;
  throw Error(ErrorCode::kUsage, "make a root: " + itself["threshold"].dump() +
                                     " signatures are asked of " + std::to_string(have) + " " +
                                     role +
                                     " keys, expected at most as many. Name more of them, "
                                     "or lower " +
                                     option);
}

/// What lies on a machine that is online must not say what a version is, nor who may say it.
void check_online_keys(const Json& root) {
  const Json& roles = root["roles"];
  for (const char* online : {"snapshot", "timestamp"}) {
    for (const char* other : {"root", "targets"}) {
      for (const Json& id : roles[online]["keyids"]) {
        const Json& theirs = roles[other]["keyids"];
        if (std::ranges::find(theirs, id) == theirs.end()) continue;
        throw Error(ErrorCode::kUsage,
                    "make a root: online key " + id.get<std::string>() + " is a " + other +
                        " key too, so that who takes it from its machine could "
                        "sign other code. Make another one: 'kiln registry key'");
      }
    }
  }
}

std::string draft(Json root, const RootKeys& keys, std::int64_t expires) {
  give(root, "root", keys.root, keys.threshold, "--threshold");
  give(root, "targets", keys.targets, keys.targets_threshold, "--targets-threshold");
  give(root, "snapshot", keys.online, keys.online_threshold, "--online-threshold");
  give(root, "timestamp", keys.online, keys.online_threshold, "--online-threshold");
  drop_unused_keys(root["keys"], root["roles"]);
  check_online_keys(root);
  root["expires"] = trust::to_text(expires);
  return dump_json({{"signatures", Json::array()}, {"signed", std::move(root)}});
}

}  // namespace

std::string first_root(const RootKeys& keys, std::int64_t expires) {
  if (keys.root.empty() || keys.targets.empty() || keys.online.empty()) {
    throw Error(ErrorCode::kUsage,
                "make a root: a role has no key. Give --root-key, --targets-key and --online-key, "
                "each a .pub file of 'kiln registry key'");
  }
  Json roles = Json::object();
  for (const char* role : {"root", "targets", "snapshot", "timestamp"}) {
    roles[role] = {{"keyids", Json::array()}, {"threshold", 1}};
  }
  return draft({{"_type", "root"},
                {"spec_version", "1.0.31"},
                {"version", 1},
                {"consistent_snapshot", true},
                {"keys", Json::object()},
                {"roles", roles}},
               keys, expires);
}

std::string next_root(std::string_view root, const RootKeys& changed, std::int64_t expires) {
  const std::uint64_t version = trust::parse<trust::Root>(root, kOrigin).document.version;
  Json next = parse_json(root, kOrigin)["signed"];
  next["version"] = version + 1;
  return draft(std::move(next), changed, expires);
}

std::string add_signatures(std::string_view root, const std::vector<PrivateKey>& keys) {
  const std::string canonical = trust::parse<trust::Root>(root, kOrigin).canonical;
  Json document = parse_json(root, kOrigin);
  for (const PrivateKey& key : keys) {
    const std::string id = trust::key_id(key.key());
    Json kept = Json::array();
    for (const Json& each : document["signatures"]) {
      if (each["keyid"] != id) kept.push_back(each);
    }
    kept.push_back({{"keyid", id}, {"sig", key.sign(canonical)}});
    document["signatures"] = std::move(kept);
  }
  return dump_json(document);
}

std::vector<std::string> changes_of_root(std::string_view before, std::string_view root) {
  const trust::Root next = trust::parse<trust::Root>(root, kOrigin).document;
  std::optional<trust::Root> was;
  if (!before.empty()) was = trust::parse<trust::Root>(before, "--root").document;
  if (was && was->version + 1 != next.version) {
    throw Error(ErrorCode::kUsage, "look at root " + std::to_string(next.version) +
                                       ": --root has version " + std::to_string(was->version) +
                                       ", expected version " + std::to_string(next.version - 1) +
                                       ", the one before it; nothing was signed. Give that one");
  }
  const std::string label = "root " + std::to_string(next.version);
  const auto shown = [](const trust::Signers& signers) {
    return std::to_string(signers.threshold) + " of keys " + join(signers.ids, " ");
  };
  std::vector<std::string> changes;
  const auto note = [&](const char* role, trust::Signers trust::Root::*signers) {
    const trust::Signers& is = next.*signers;
    if (!was) {
      changes.push_back(label + " has " + role + ": " + shown(is));
    } else if ((*was).*signers != is) {
      changes.push_back(label + " changes " + role + ": " + shown(is) + "; before " +
                        shown((*was).*signers));
    }
  };
  note("root", &trust::Root::root);
  note("targets", &trust::Root::targets);
  note("snapshot", &trust::Root::snapshot);
  note("timestamp", &trust::Root::timestamp);
  if (changes.empty()) changes.push_back(label + " changes no key");
  changes.push_back(label + " holds until " + trust::to_text(next.expires));
  return changes;
}

Signatures signatures_of(std::string_view root) {
  const trust::Signed<trust::Root> draft = trust::parse<trust::Root>(root, kOrigin);
  Signatures found{draft.document.version, 0, draft.document.root.threshold, {}};
  const std::set<std::string> signed_by = trust::who_signed(
      draft.canonical, draft.signatures, draft.document.keys, draft.document.root);
  found.have = signed_by.size();
  std::ranges::set_difference(draft.document.root.ids, signed_by,
                              std::back_inserter(found.missing));
  return found;
}

}  // namespace kiln::registry
