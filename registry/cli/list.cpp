// SPDX-License-Identifier: Apache-2.0
//
// list and check: what a registry holds, whether it is whole, and until when its metadata holds.
#include <algorithm>
#include <ctime>
#include <optional>
#include <set>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "loader/cli/frame/output.hpp"
#include "registry/cli/verbs.hpp"
#include "registry/folder/check.hpp"
#include "registry/folder/client_view.hpp"

namespace kiln::registry {
namespace {

/// Until when each document holds: what must be signed again, and how.
Json json_of(const std::vector<RoleState>& roles) {
  Json list = Json::array();
  for (const RoleState& each : roles) {
    list.push_back({{"role", each.role},
                    {"version", each.version},
                    {"expires", trust::to_text(each.expires)}});
  }
  return list;
}

/// What expires first, and each that has expired.
void print_expiry(std::vector<RoleState> roles, const std::string& folder) {
  const std::int64_t now = std::time(nullptr);
  std::ranges::stable_sort(roles, {}, &RoleState::expires);
  std::set<std::string> said;
  for (const RoleState& each : roles) {
    if (&each != &roles.front() && each.expires > now) break;
    cli::print("signed: %s\n", describe(each, now).c_str());
    const std::string command = how_to_renew(each, folder);
    if (said.insert(command).second) cli::print("  renew it: %s\n", command.c_str());
  }
}

/// What clients see of a signed folder; nothing of another one, or where that cannot be told.
std::optional<ClientView> client_view(const RegistryCall& call) {
  try {
    return view_as_client(call.registry);
  } catch (const Error& error) {
    cli::tell("%s: what clients see is not known: %s\n", call.command.c_str(), error.what());
    return std::nullopt;
  }
}

/// "  signed", and what the document says of it.
std::string signed_state(const ListedVersion& one, const ClientView& view, Json& version) {
  const auto found = view.listed.targets.find(trust::target_name(one.name, one.index.version));
  const bool is_known = found != view.listed.targets.end();
  const bool is_signed = is_known && found->second.promise.sha256() == one.descriptor.digest;
  const std::optional<std::string> yanked = is_known ? found->second.yanked : std::nullopt;
  version["signed"] = is_signed;
  version["yanked"] = yanked ? Json(*yanked) : Json();
  return (is_signed ? "  signed" : "  not signed: 'kiln registry sign'") +
         (yanked ? ", taken back: " + quote(*yanked) : "");
}

int run_list(const RegistryCall& call) {
  Json versions = Json::array();
  const std::vector<ListedVersion> listed = list_registry(call.registry);
  const std::optional<ClientView> view = client_view(call);
  for (const ListedVersion& one : listed) {
    Json version = {{"name", one.name},
                    {"version", one.index.version},
                    {"index", to_json(one.descriptor)},
                    {"variants", Json::array()}};
    const std::string state = view ? signed_state(one, *view, version) : "";
    cli::print("%s@%d %s%s\n", one.name.c_str(), one.index.version,
               one.descriptor.digest.str().c_str(), state.c_str());
    for (const Variant& variant : one.index.variants) {
      version["variants"].push_back({{"id", variant.id},
                                     {"manifest", variant.manifest.digest.str()},
                                     {"tested", variant.tested}});
      cli::print("  %s  %s\n", variant.id.c_str(), variant.tested.c_str());
    }
    versions.push_back(std::move(version));
  }
  if (listed.empty() && !call.json) {
    cli::tell("%s: nothing is published in %s\n", call.command.c_str(), call.registry.c_str());
  }
  Json document = {{"versions", std::move(versions)}};
  if (view) document["metadata"] = json_of(view->roles);
  cli::print_json("registry-list", std::move(document));
  if (view) print_expiry(view->roles, call.registry);
  return 0;
}

int run_check(const RegistryCall& call) {
  const CheckReport report = check_registry(call.registry, call.progress);
  cli::print_json("registry-check", {{"packages", report.packages},
                                     {"versions", report.versions},
                                     {"variants", report.variants},
                                     {"blobs", report.blobs},
                                     {"metadata", json_of(report.roles)},
                                     {"elsewhere", report.elsewhere},
                                     {"problems", report.problems}});
  const char* const whole = report.roles.empty() ? "all intact, not signed" : "all intact";
  cli::print("%zu packages, %zu versions, %zu variants, %zu blobs hashed: %s\n", report.packages,
             report.versions, report.variants, report.blobs,
             report.problems.empty()
                 ? whole
                 : (std::to_string(report.problems.size()) + " problems").c_str());
  for (const std::string& problem : report.problems) cli::print("  %s\n", problem.c_str());
  if (!report.elsewhere.empty()) {
    cli::print("signed and not here: %zu versions, %s%s\n", report.elsewhere.size(),
               report.elsewhere.front().c_str(), report.elsewhere.size() > 1 ? " the first" : "");
  }
  print_expiry(report.roles, call.registry);
  return report.problems.empty() ? 0 : static_cast<int>(ErrorCode::kIntegrity);
}

}  // namespace

void list_verb(RegistryCommand& command) {
  command.takes_registry();
  command.example("--registry build/registry", "what is published, tested and signed");
  command.runs(run_list);
}

void check_verb(RegistryCommand& command) {
  command.takes_registry();
  command.example("--registry build/registry", "is all of it what was published?");
  command.runs(run_check);
}

}  // namespace kiln::registry
