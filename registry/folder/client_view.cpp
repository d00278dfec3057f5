// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/client_view.hpp"

#include <cstdlib>
#include <ctime>
#include <set>
#include <utility>

#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "registry/folder/trust_files.hpp"
#include "store/registry.hpp"
#include "trust/repository_source.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

/// The documents, and what advisories are in them.
void read_roles(const trust::TrustedSet& set, ClientView& view) {
  const auto add = [&](const std::string& role, const auto& document) {
    view.roles.push_back({role, document.version, document.expires});
  };
  add("root", set.root());
  add("timestamp", *set.timestamp());
  add("snapshot", *set.snapshot());
  std::vector<std::pair<std::string, std::string>> next = {{"targets", "root"}};
  std::set<std::string> seen;
  while (!next.empty()) {
    const auto [role, parent] = std::move(next.back());
    next.pop_back();
    const trust::Targets* const targets = set.targets(role, parent);
    if (targets == nullptr || !seen.insert(role).second) continue;
    add(role, *targets);
    view.advisories.insert(view.advisories.end(), targets->advisories.begin(),
                           targets->advisories.end());
    for (const trust::Delegation& each : targets->delegations) next.emplace_back(each.role, role);
  }
}

}  // namespace

std::optional<ClientView> view_as_client(const fs::path& registry) {
  const TrustFiles files = read_trust_files(registry);
  if (files.empty()) return std::nullopt;
  trust::Updater updater(first_root_of(files, registry.string()), {}, registry.string(),
                         {std::time(nullptr), trust::Expiry::kTold});
  Traffic traffic;
  const auto folder =
      open_folder(fs::absolute(registry).string(), trust::kTrustRepository, traffic);
  const trust::RepositorySource source(*folder, {});
  updater.refresh(source);
  ClientView view;
  view.listed = updater.list(source);
  read_roles(updater.trusted(), view);
  return view;
}

std::string describe(const RoleState& role, std::int64_t now) {
  constexpr std::int64_t kDay = 24L * 60 * 60;
  const std::int64_t days = std::abs(role.expires - now) / kDay;
  const std::string count = std::to_string(days) + (days == 1 ? " day" : " days");
  return printable(role.role) + " " + std::to_string(role.version) +
         (role.expires > now
              ? " holds until " + trust::to_text(role.expires) + ", " + count + " more"
              : " expired at " + trust::to_text(role.expires) + ", " + count + " ago");
}

std::string how_to_renew(const RoleState& role, const fs::path& registry) {
  const std::string folder = shell_word(registry.string());
  if (role.role == "root") {
    return "kiln registry rotate ROOT.json --out NEXT.json, have it signed, then kiln registry "
           "sign "
           "--registry " +
           folder + " --root NEXT.json --key TARGETS --key ONLINE";
  }
  std::string key = "ONLINE";
  if (role.role == "targets") key = "TARGETS --key ONLINE";
  if (role.role != "timestamp" && role.role != "snapshot" && key == "ONLINE") {
    key = "KEY-OF-" + shell_word(role.role) + " --key ONLINE";
  }
  return "kiln registry sign --registry " + folder + " --key " + key;
}

}  // namespace kiln::registry
