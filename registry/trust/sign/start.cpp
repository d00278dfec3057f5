// SPDX-License-Identifier: Apache-2.0
#include "registry/trust/sign/start.hpp"

#include <algorithm>
#include <ctime>
#include <optional>
#include <utility>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "documents/json.hpp"
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

bool is_newest(const std::string& role) {
  return role == "snapshot" || role == "timestamp";
}

/// Whether a document of a draft begins where the registry is: the one before it must be what
/// clients see.
bool follows(const TrustDraft& draft, const std::string& role, const Pending& pending,
             const ClientMetadata& seen) {
  const std::uint64_t version = seen.version_of(role);
  if (is_newest(role)) return pending.version() > version;
  if (pending.version() != version + 1) return false;
  const TrustFiles& files = seen.files();
  const std::string file = role_file(version, role);
  const auto before = draft.before.find(file);
  const auto now = files.find(file);
  return (before == draft.before.end()) == (now == files.end()) &&
         (now == files.end() || now->second == before->second);
}

/// The root of a draft that has the number of another here, if there is one.
std::optional<std::string> other_root_in(const TrustDraft& draft, const ClientMetadata& seen) {
  for (const auto& [name, bytes] : draft.before) {
    const auto found = seen.files().find(name);
    if (is_root(name) && found != seen.files().end() && found->second != bytes) return name;
  }
  return std::nullopt;
}

bool follows(const TrustDraft& draft, const ClientMetadata& seen) {
  return !other_root_in(draft, seen) && std::ranges::all_of(draft.next, [&](const auto& each) {
    return follows(draft, each.first, each.second, seen);
  });
}

/// A member of a document, or nothing.
const Json& part_of(const Json& body, const std::string& name) {
  static const Json kNone;
  return body.is_object() && body.contains(name) ? body[name] : kNone;
}

std::map<std::string, Json> publishers_in(const Json& body) {
  std::map<std::string, Json> publishers;
  for (const Json& each : part_of(part_of(body, "delegations"), "roles")) {
    publishers.emplace(each["name"].get<std::string>(), each);
  }
  return publishers;
}

/// What a document of a draft changes and clients do not have. `is_signed_again`: the keys here
/// sign versions of the folder again.
std::vector<std::string> lost_of(const Json& before, const Json& next, const Json& seen,
                                 bool is_signed_again) {
  std::vector<std::string> lost;
  const auto custom_of = [](const Json& target, const char* what) {
    return part_of(part_of(target, "custom"), what);
  };
  for (const auto& [name, target] : next["targets"].items()) {
    const Json& was = part_of(part_of(before, "targets"), name);
    const Json& now = part_of(part_of(seen, "targets"), name);
    const bool is_yank = !custom_of(target, "yanked").is_null();
    const bool is_advisory = name.starts_with(kAdvisoryPrefix);
    if (is_yank && custom_of(was, "yanked").is_null() && custom_of(now, "yanked").is_null()) {
      lost.push_back("the yank of " + printable(name));
    } else if (part_of(target, "hashes") == part_of(was, "hashes") ||
               part_of(target, "hashes") == part_of(now, "hashes")) {
      continue;
    } else if (is_advisory) {
      lost.push_back("the advisory " + printable(name.substr(kAdvisoryPrefix.size())));
    } else if (!is_signed_again) {
      lost.push_back(printable(name));
    }
  }
  const std::map<std::string, Json> was = publishers_in(before);
  const std::map<std::string, Json> now = publishers_in(seen);
  const std::map<std::string, Json> then = publishers_in(next);
  const auto has = [](const std::map<std::string, Json>& publishers, const auto& each) {
    const auto found = publishers.find(each.first);
    return found != publishers.end() && found->second == each.second;
  };
  for (const auto& each : then) {
    if (has(was, each) || has(now, each)) continue;
    lost.push_back("the publisher " + printable(each.first));
  }
  for (const auto& each : was) {
    if (then.contains(each.first) || !now.contains(each.first)) continue;
    lost.push_back("the dismissal of " + printable(each.first));
  }
  return lost;
}

[[noreturn]] void fail_to_lose(const SignRequest& request, std::vector<std::string> lost) {
  constexpr std::size_t kMostNamed = 8;
  if (lost.size() > kMostNamed) {
    lost.resize(kMostNamed);
    lost.emplace_back("others");
  }
  const fs::path draft = draft_path(request.registry);
  const std::string where = request.onto.empty()
                                ? "the registry has. Give the server on which it was begun with "
                                  "--onto, or see"
                                : "the server has. See";
  fail_to_sign(ErrorCode::kConflict, request.registry,
               "its draft would be lost with " + join(lost) +
                   ", and nothing was signed: it was begun on other metadata than " + where +
                   " what it says, 'kiln registry sign " + shell_word(draft.string()) +
                   " --root ROOT', give it up, 'rm " + shell_word(draft.string()) +
                   "', and say again what is still to be said");
}

/// Of the folder's own draft, each document that begins here is gone on with; another is dropped
/// where clients have what it says. Snapshot and timestamp are made anew by whoever signs them.
PendingRoles still_pending(const SignRequest& request, const TrustDraft& own,
                           const ClientMetadata& seen) {
  PendingRoles pending;
  std::vector<std::string> lost;
  if (const std::optional<std::string> name = other_root_in(own, seen)) {
    lost.push_back("its " + *name);
  }
  for (const auto& [role, next] : own.next) {
    if (follows(own, role, next, seen)) {
      pending.emplace(role, next);
      continue;
    }
    if (is_newest(role)) continue;
    const auto before = own.before.find(role_file(next.version() - 1, role));
    for (std::string& each :
         lost_of(before == own.before.end() ? Json() : Pending(before->second, role).body(),
                 next.body(), seen.body_of(role), next.is_only_of(request.keys))) {
      lost.push_back(std::move(each));
    }
  }
  if (!lost.empty()) fail_to_lose(request, std::move(lost));
  return pending;
}

void read_drafts(const SignRequest& request, Start& start, TrustFiles& roots) {
  const auto take_roots = [&](const TrustDraft& draft) {
    for (const auto& [name, bytes] : draft.before) {
      if (is_root(name) && !start.seen.files().contains(name)) roots.emplace(name, bytes);
    }
  };
  if (const std::optional<TrustDraft> own = read_draft(draft_path(request.registry))) {
    start.pending = still_pending(request, *own, start.seen);
    take_roots(*own);
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
