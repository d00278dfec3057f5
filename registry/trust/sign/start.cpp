// SPDX-License-Identifier: Apache-2.0
#include "registry/trust/sign/start.hpp"

#include <algorithm>
#include <ctime>
#include <optional>
#include <utility>

#include "base/draft.hpp"
#include "registry/folder/standing.hpp"
#include "trust/trusted_set.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;
using trust::Root;

bool is_root(const std::string& file) {
  return file.ends_with(".root.json");
}

TrustFiles read_roots(const std::vector<fs::path>& paths) {
  TrustFiles roots;
  for (const fs::path& path : paths) {
    std::string bytes = read_document(path, trust::kMaxRootBytes);
    const std::uint64_t version = trust::parse<Root>(bytes, path.string()).document.version;
    roots.emplace(role_file(version, "root"), std::move(bytes));
  }
  return roots;
}

bool shares_a_root(const TrustFiles& known, const TrustFiles& theirs) {
  return std::ranges::any_of(known, [&](const auto& file) {
    if (!is_root(file.first)) return false;
    const auto found = theirs.find(file.first);
    return found != theirs.end() && found->second == file.second;
  });
}

void add_root(const SignRequest& request, TrustFiles& roots, const std::string& name,
              const std::string& bytes) {
  const auto [place, is_new] = roots.emplace(name, bytes);
  if (is_new || place->second == bytes) return;
  fail_to_sign(ErrorCode::kConflict, request.registry,
               "it has another root of version " + name.substr(0, name.find('.')) +
                   " than the one given; nothing was signed. Make its successor: 'kiln registry "
                   "rotate'");
}

/// Those that are not among `files`.
void add_roots_of(const SignRequest& request, const TrustFiles& from, const TrustFiles& files,
                  TrustFiles& roots) {
  for (const auto& [name, bytes] : from) {
    if (is_root(name) && !files.contains(name)) add_root(request, roots, name, bytes);
  }
}

/// Whether the folder's state has all that the server's has, but for roots and renewals.
bool is_kept(const Standing& standing) {
  if (standing.roles != Order::kSame) return standing.roles == Order::kAhead;
  if (standing.roots != Order::kSame) return standing.roots == Order::kAhead;
  return standing.newest == Order::kSame || standing.newest == Order::kAhead;
}

/// What was signed elsewhere since is gone on with. The server is not believed: what it has must
/// follow from a root that is known here, or the keys would sign what somebody put there.
void go_onto(const SignRequest& request, TrustFiles& roots, Start& start) {
  if (request.onto.empty()) return;
  const ClientMetadata here = start.seen;
  trust::TrustedSet theirs = follow(request.onto, "the server", trust::Expiry::kTold);
  if (!shares_a_root(here.files(), request.onto) && !shares_a_root(roots, request.onto)) {
    fail_to_sign(
        ErrorCode::kConflict, request.registry,
        "the server's metadata does not follow from a root that is known here; nothing was "
        "signed. Give the newest root that you know with --root, or sign another folder for it");
  }
  if (here.set()) {
    const Standing standing = compare({here.files(), *here.set()}, {request.onto, theirs});
    if (standing.roles == Order::kApart || standing.roots == Order::kApart) {
      fail_to_sign(ErrorCode::kConflict, request.registry,
                   describe(standing, "the folder", "the server") +
                       ": they were signed apart; nothing was signed. " +
                       how_to_rejoin(standing, request.registry));
    }
    start.snapshot = standing.snapshot;
    start.timestamp = standing.timestamp;
    if (is_kept(standing)) return add_roots_of(request, request.onto, here.files(), roots);
    add_roots_of(request, here.files(), request.onto, roots);
  }
  start.seen = ClientMetadata(request.onto, here.origin(), std::move(theirs));
}

/// Whether a draft begins where the registry is. Of each document that it has next, the one before
/// must be what clients see.
bool follows(const TrustDraft& draft, const ClientMetadata& seen) {
  const TrustFiles& files = seen.files();
  for (const auto& [name, bytes] : draft.before) {
    const auto found = files.find(name);
    if (is_root(name) && found != files.end() && found->second != bytes) return false;
  }
  return std::ranges::all_of(draft.next, [&](const auto& each) {
    const auto& [role, pending] = each;
    const std::uint64_t version = seen.version_of(role);
    if (role == "snapshot" || role == "timestamp") return pending.version() > version;
    if (pending.version() != version + 1) return false;
    const std::string file = role_file(version, role);
    const auto before = draft.before.find(file);
    const auto now = files.find(file);
    return (before == draft.before.end()) == (now == files.end()) &&
           (now == files.end() || now->second == before->second);
  });
}

void read_drafts(const SignRequest& request, Start& start, TrustFiles& roots) {
  const auto take_roots = [&](const TrustDraft& draft) {
    for (const auto& [name, bytes] : draft.before) {
      if (is_root(name) && !start.seen.files().contains(name)) roots.emplace(name, bytes);
    }
  };
  std::optional<TrustDraft> own = read_draft(draft_path(request.registry));
  if (own && follows(*own, start.seen)) {
    take_roots(*own);
    start.pending = std::move(own->next);
  }
  for (const fs::path& file : request.drafts) {
    std::optional<TrustDraft> returned = read_draft(file);
    if (!returned) {
      fail_to_sign(ErrorCode::kNotFound, request.registry, "there is no draft " + file.string());
    }
    if (!follows(*returned, start.seen)) {
      fail_to_sign(ErrorCode::kConflict, request.registry,
                   "draft " + file.string() +
                       " was begun on other metadata than the registry has now; nothing was "
                       "signed. Make it anew from here");
    }
    take_roots(*returned);
    for (auto& [role, pending] : returned->next) {
      start.returned[role].push_back(std::move(pending));
    }
  }
}

void add_roots(const SignRequest& request, const TrustFiles& roots, Start& start) {
  TrustFiles all = start.seen.files();
  for (const auto& [name, bytes] : roots) {
    if (!all.contains(name)) start.new_roots[name] = bytes;
    add_root(request, all, name, bytes);
  }
  const auto first = all.find(role_file(1, "root"));
  if (first == all.end()) {
    fail_to_sign(ErrorCode::kUsage, request.registry,
                 "it has no root yet. Make one with 'kiln registry init', have it signed, and give "
                 "it with --root");
  }
  // As a client follows them; none may be missing between two.
  trust::TrustedSet set(first->second, start.seen.origin(), {start.now});
  std::uint64_t version = 1;
  for (; all.contains(role_file(version + 1, "root")); ++version) {
    set.take_root(all.at(role_file(version + 1, "root")));
  }
  set.check_root_is_fresh();
  start.root = set.root();
  const auto count =
      std::ranges::count_if(all, [](const auto& file) { return is_root(file.first); });
  if (static_cast<std::uint64_t>(count) == version) return;
  fail_to_sign(ErrorCode::kTrust, request.registry,
               "root " + std::to_string(version + 1) +
                   " is missing before a later one; nothing was signed. Give it with --root too");
}

}  // namespace

std::uint64_t Start::next_version(const std::string& role) const {
  const std::uint64_t given = role == "snapshot" ? snapshot : role == "timestamp" ? timestamp : 0;
  return std::max(seen.version_of(role), given) + 1;
}

Start start_signing(const SignRequest& request) {
  TrustFiles files = read_trust_files(request.registry);
  TrustFiles roots = read_roots(request.roots);
  Start start{.now = std::time(nullptr),
              .seen = ClientMetadata(std::move(files), request.registry.string())};
  go_onto(request, roots, start);
  read_drafts(request, start, roots);
  add_roots(request, roots, start);
  return start;
}

}  // namespace kiln::registry
