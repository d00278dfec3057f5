// SPDX-License-Identifier: Apache-2.0
#include "root_draft.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "trust/canonical.hpp"
#include "trust/metadata.hpp"

namespace kiln::registry {
namespace {

constexpr const char* kOrigin = "the root given";

Json to_json(const trust::Key& key) {
  return {{"keytype", key.type}, {"scheme", key.scheme}, {"keyval", {{"public", key.value}}}};
}

/// Gives a role these keys; none: it keeps its own.
void give(Json& root, const char* role, const std::vector<trust::Key>& keys) {
  if (keys.empty()) return;
  Json ids = Json::array();
  for (const trust::Key& key : keys) {
    const std::string id = trust::key_id(key);
    root["keys"][id] = to_json(key);
    if (std::ranges::find(ids, Json(id)) == ids.end()) ids.push_back(id);
  }
  root["roles"][role]["keyids"] = ids;
}

void drop_unused_keys(Json& root) {
  std::set<std::string> used;
  for (const auto& [name, role] : root["roles"].items()) {
    for (const Json& id : role["keyids"]) used.insert(id.get<std::string>());
  }
  Json kept = Json::object();
  for (const auto& [id, key] : root["keys"].items()) {
    if (used.contains(id)) kept[id] = key;
  }
  root["keys"] = std::move(kept);
}

std::string draft(Json root, const RootKeys& keys, std::int64_t expires) {
  give(root, "root", keys.root);
  give(root, "targets", keys.targets);
  give(root, "snapshot", keys.online);
  give(root, "timestamp", keys.online);
  drop_unused_keys(root);
  root["expires"] = trust::to_text(expires);
  Json& itself = root["roles"]["root"];
  if (keys.threshold > 0) itself["threshold"] = keys.threshold;
  const std::size_t have = itself["keyids"].size();
  if (itself["threshold"].get<std::uint64_t>() > have) {
    throw Error(ErrorCode::kUsage, "make a root: " + itself["threshold"].dump() +
                                       " signatures are asked of " + std::to_string(have) +
                                       " keys, expected at most as many. Name more --root-key, or "
                                       "lower --threshold");
  }
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

Signatures signatures_of(std::string_view root) {
  const trust::Signed<trust::Root> draft = trust::parse<trust::Root>(root, kOrigin);
  Signatures found{draft.document.version, 0, draft.document.root.threshold, {}};
  for (const std::string& id : draft.document.root.ids) {
    const auto key = draft.document.keys.find(id);
    const bool has_signed =
        key != draft.document.keys.end() &&
        std::ranges::any_of(draft.signatures, [&](const trust::Signature& each) {
          return each.key_id == id && trust::verifies(key->second, draft.canonical, each.signature);
        });
    if (has_signed) {
      ++found.have;
    } else {
      found.missing.push_back(id);
    }
  }
  return found;
}

}  // namespace kiln::registry
