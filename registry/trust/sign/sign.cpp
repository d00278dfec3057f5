// SPDX-License-Identifier: Apache-2.0
#include "registry/trust/sign/sign.hpp"

#include <algorithm>
#include <utility>

#include "registry/folder/layout.hpp"
#include "registry/trust/sign/plan.hpp"
#include "registry/trust/sign/start.hpp"
#include "registry/trust/sign/visible.hpp"
#include "trust/repository_source.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

std::vector<Missing> missing_in(const Start& start, const Plan& plan, const Visible& outcome) {
  std::vector<Missing> missing;
  for (const auto& [role, pending] : outcome.pending) {
    const bool is_newest = role == "snapshot" || role == "timestamp";
    Missing one = (is_newest ? outcome.signers : plan.signers).missing_of(role, pending);
    if (one.have < one.need) missing.push_back(std::move(one));
  }
  if (!outcome.lacks_newest) return missing;
  for (const char* role : {"snapshot", "timestamp"}) {
    const trust::Signers& signers = outcome.signers.of(role);
    missing.push_back({role,
                       start.next_version(role),
                       0,
                       signers.threshold,
                       {signers.ids.begin(), signers.ids.end()}});
  }
  return missing;
}

std::map<std::string, bool> waiting_in(const Plan& plan, const Visible& outcome) {
  std::map<std::string, bool> waiting;
  for (const auto& [role, wished] : plan.wished) {
    const Json visible = outcome.seen.body_of(role);
    for (const Wished& each : wished) {
      if (!has_target(visible, each)) waiting[each.name] = false;
    }
  }
  for (const auto& [role, pending] : outcome.pending) {
    if (role == "snapshot" || role == "timestamp") continue;
    for (const auto& [name, is_yank] : changes_in(outcome.seen, pending.body())) {
      waiting[name] = is_yank;
    }
  }
  return waiting;
}

SignReport report(const SignRequest& request, const Start& start, const Plan& plan,
                  const Visible& outcome) {
  const ClientMetadata& seen = outcome.seen;
  SignReport result{
      .is_visible = outcome.is_visible,
      .root = seen.set() ? seen.set()->root().version : 0,
      .targets = seen.version_of("targets"),
      .timestamp = seen.version_of("timestamp"),
      .expires = seen.set() ? std::min({seen.targets()->expires, seen.set()->snapshot()->expires,
                                        seen.set()->timestamp()->expires})
                            : 0,
      .changed = outcome.changed,
      .waiting = waiting_in(plan, outcome),
      .missing = missing_in(start, plan, outcome)};
  std::ranges::sort(result.changed);
  std::size_t names = 0;
  for (const auto& [role, shown] : outcome.shown) {
    names += shown.names;
    result.expires = result.expires == 0 ? shown.expires : std::min(result.expires, shown.expires);
  }
  if (request.only.empty()) result.names = names;
  if (!outcome.new_roots.empty()) result.waiting_root = plan.signers.root.version;
  if (!outcome.pending.empty() || !outcome.new_roots.empty()) {
    result.draft = draft_path(request.registry);
  }
  return result;
}

/// What waits, and what others need to see what it changes.
TrustDraft draft_of(Visible outcome) {
  TrustDraft draft;
  const auto keep = [&](const std::string& role) {
    if (const std::string* const file = outcome.seen.file_of(role)) {
      draft.before[role_file(outcome.seen.version_of(role), role)] = *file;
    }
  };
  for (const auto& [name, bytes] : outcome.seen.files()) {
    if (name.ends_with(".root.json")) draft.before[name] = bytes;
  }
  draft.before.insert(outcome.new_roots.begin(), outcome.new_roots.end());
  keep("targets");
  for (const auto& each : outcome.pending) {
    if (each.first != "snapshot" && each.first != "timestamp") keep(each.first);
  }
  draft.next = std::move(outcome.pending);
  return draft;
}

/// These manifests, and the blobs that they name. Throws for another artifact.
std::set<Digest> blobs_of(const Layout& layout, const std::vector<Tag>& tags) {
  std::set<Digest> named;
  for (const Tag& tag : tags) {
    const std::string what = "trust metadata " + tag.descriptor.digest.str();
    named.insert(tag.descriptor.digest);
    for (const auto& [title, layer] :
         trust::parse_trust_manifest(layout.read_blob(tag.descriptor, what), what)) {
      named.insert(layer.descriptor.digest);
    }
  }
  return named;
}

/// Removes what no manifest names any more. The state before stays: someone may be reading it.
void drop_old_blobs(const Layout& layout, const std::vector<Tag>& tags) {
  std::set<Digest> named;
  try {
    named = blobs_of(layout, tags);
  } catch (const Error&) {
    return;  // another tool's, or damaged: what it needs is not known here
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(layout.blobs_path())) {
    const std::optional<Digest> digest = Digest::from_hex(entry.path().filename().string());
    if (digest && !named.contains(*digest)) fs::remove(entry.path());
  }
}

/// The commit. What others tagged in this layout stays.
void write_artifact(const Layout& layout, const TrustFiles& files) {
  const TrustArtifact artifact = make_artifact(files);
  for (const auto& [descriptor, bytes] : artifact.blobs) layout.write_blob(descriptor, bytes);
  layout.write_blob(artifact.descriptor, artifact.manifest);
  std::vector<Tag> tags = {{trust::kTrustTag, artifact.descriptor}};
  for (Tag& before : layout.read()) {
    if (before.name.empty() || before.descriptor == artifact.descriptor) continue;
    if (before.name == trust::kTrustTag) before.name.clear();
    tags.push_back(std::move(before));
  }
  layout.write(tags);
  drop_old_blobs(layout, tags);
}

}  // namespace

SignReport sign_registry(const SignRequest& request) {
  packages_of(request.registry);  // throws without a registry, before a folder is made in it
  const Layout layout = trust_layout(request.registry);
  const FileLock held = layout.lock();
  const Start start = start_signing(request);
  const Plan plan = plan_roles(request, start);
  Visible outcome = make_visible(request, start, plan);
  SignReport result = report(request, start, plan, outcome);
  if (result.is_visible) write_artifact(layout, outcome.seen.files());
  if (result.draft.empty()) {
    fs::remove(draft_path(request.registry));
  } else {
    write_draft(result.draft, draft_of(std::move(outcome)));
  }
  return result;
}

}  // namespace kiln::registry
