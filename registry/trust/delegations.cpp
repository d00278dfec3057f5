// SPDX-License-Identifier: Apache-2.0
#include "registry/trust/delegations.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/digest.hpp"
#include "base/quote.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "registry/trust/keys.hpp"

namespace kiln::registry {
namespace {

[[noreturn]] void fail(ErrorCode code, const std::string& role, const std::string& found) {
  throw Error(code, "delegate to " + quote(role) + ": " + found);
}

/// Whether there can be a package that both patterns match.
bool overlap(std::string_view left, std::string_view right) {
  const auto beginning = [](std::string_view text) { return text.substr(0, text.find('*')); };
  const bool open_left = left.ends_with('*');
  const bool open_right = right.ends_with('*');
  left = beginning(left);
  right = beginning(right);
  return left == right || (open_left && right.starts_with(left)) ||
         (open_right && left.starts_with(right));
}

std::string package_of(const std::string& path) {
  return path.substr(0, path.find('/'));
}

Json& delegations_of(Json& targets) {
  Json& found = targets["delegations"];
  if (found.is_null()) found = {{"keys", Json::object()}, {"roles", Json::array()}};
  return found;
}

Json* find_role(Json& delegations, const std::string& role) {
  for (Json& each : delegations["roles"]) {
    if (each["name"] == role) return &each;
  }
  return nullptr;
}

void check_packages(const Json& roles, const Publisher& publisher) {
  for (const std::string& package : publisher.packages) {
    if (!is_package_pattern(package)) {
      fail(ErrorCode::kUsage, publisher.role,
           quote(package) + " is neither a package's name nor the beginning of one with a '*'");
    }
    for (const Json& each : roles) {
      if (each["name"] == publisher.role || !each.contains("paths")) continue;
      for (const Json& path : each["paths"]) {
        if (!overlap(package_of(path.get<std::string>()), package)) continue;
        fail(ErrorCode::kConflict, publisher.role,
             package + " is " + quote(each["name"].get<std::string>()) +
                 "'s already. Give it other packages");
      }
    }
  }
}

void check_keys(const Publisher& publisher, const trust::Root& root) {
  for (const trust::Key& key : publisher.keys) {
    const std::string id = trust::key_id(key);
    if (!root.snapshot.ids.contains(id) && !root.timestamp.ids.contains(id)) continue;
    fail(ErrorCode::kUsage, publisher.role,
         "key " + id + " is an online key, which must not say what a version is. Give another one");
  }
}

}  // namespace

void appoint(Json& targets, const Publisher& publisher, const trust::Root& root) {
  if (!is_package_name(publisher.role) || publisher.role == "root" || publisher.role == "targets" ||
      publisher.role == "snapshot" || publisher.role == "timestamp") {
    fail(ErrorCode::kUsage, publisher.role,
         "this cannot be the name of a role; expected a word like 'acme'");
  }
  Json& delegations = delegations_of(targets);
  check_packages(delegations["roles"], publisher);
  check_keys(publisher, root);
  Json* role = find_role(delegations, publisher.role);
  if (role == nullptr) {
    if (publisher.packages.empty() || publisher.keys.empty()) {
      fail(ErrorCode::kUsage, publisher.role,
           "it is new, and has no package or no key. Give both: --package and --role-key");
    }
    Json& roles = delegations["roles"];
    roles.push_back({{"name", publisher.role},
                     {"keyids", Json::array()},
                     {"threshold", 1},
                     {"terminating", true},
                     {"paths", Json::array()}});
    role = &roles.back();
  }
  if (!publisher.packages.empty()) {
    Json paths = Json::array();
    for (const std::string& package : publisher.packages) paths.push_back(package + "/*");
    (*role)["paths"] = std::move(paths);
  }
  if (!publisher.keys.empty()) {
    (*role)["keyids"] = add_keys(delegations["keys"], publisher.keys);
  }
  if (publisher.threshold > 0) (*role)["threshold"] = publisher.threshold;
  const std::size_t have = (*role)["keyids"].size();
  if ((*role)["threshold"].get<std::uint64_t>() > have) {
    fail(ErrorCode::kUsage, publisher.role,
         (*role)["threshold"].dump() + " signatures are asked of " + std::to_string(have) +
             " keys, expected at most as many. Name more --role-key, or lower --threshold");
  }
  drop_unused_keys(delegations["keys"], delegations["roles"]);
}

void dismiss(Json& targets, const std::string& role) {
  Json& delegations = delegations_of(targets);
  Json* const found = find_role(delegations, role);
  if (found == nullptr) {
    fail(ErrorCode::kNotFound, role, "there is no such publisher, so it cannot be dismissed");
  }
  delegations["roles"].erase(static_cast<std::size_t>(found - &delegations["roles"][0]));
  drop_unused_keys(delegations["keys"], delegations["roles"]);
}

std::string role_for(const trust::Targets& targets, const std::string& name) {
  if (targets.targets.contains(name) || targets.delegations.empty()) return "targets";
  const std::string hash = Digest::of(name).hex();
  const auto found = std::ranges::find_if(
      targets.delegations, [&](const trust::Delegation& each) { return each.covers(name, hash); });
  return found == targets.delegations.end() ? "targets" : found->role;
}

}  // namespace kiln::registry
