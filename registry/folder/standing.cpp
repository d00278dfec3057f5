// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/standing.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "base/join.hpp"
#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "kiln/error.hpp"
#include "trust/repository_source.hpp"

namespace kiln::registry {
namespace {

Order joined(Order one, Order other) {
  if (one == Order::kSame || one == other) return other;
  return other == Order::kSame ? one : Order::kApart;
}

Order order_of(std::uint64_t first, std::uint64_t second) {
  if (first == second) return Order::kSame;
  return first > second ? Order::kAhead : Order::kBehind;
}

const std::string* find_file(const TrustFiles& files, const std::string& name) {
  const auto found = files.find(name);
  return found == files.end() ? nullptr : &found->second;
}

const trust::MetaFile* find_role(const SignedState& state, const std::string& role) {
  const auto found = state.set.snapshot()->files.find(role);
  return found == state.set.snapshot()->files.end() ? nullptr : &found->second;
}

std::uint64_t version_of(const SignedState& state, const std::string& role) {
  const trust::MetaFile* const file = find_role(state, role);
  return file == nullptr ? 0 : file->version;
}

/// Null of a publisher who was dismissed.
const std::string* file_of(const SignedState& state, const std::string& role) {
  return find_file(state.files, role_file(version_of(state, role), role));
}

/// Whether the newer of two roots lets other keys say what is newest.
bool takes_online_keys(const trust::Root& newer, const trust::Root& older) {
  return newer.version > older.version &&
         (newer.timestamp != older.timestamp || newer.snapshot != older.snapshot);
}

/// Nothing for a document that no client takes.
std::optional<trust::Signed<trust::Targets>> read_targets(const std::string& bytes,
                                                          const std::string& role) try {
  return trust::parse<trust::Targets>(bytes, role);
} catch (const Error& error) {
  if (error.code() != ErrorCode::kTrust) throw;
  return std::nullopt;
}

/// Whether the keys of a state would have signed another's document.
bool would_sign(const SignedState& state, const std::string& role, const std::string& bytes) {
  const auto read = read_targets(bytes, role);
  if (!read) return false;
  const auto is_signed = [&](const trust::Keys& keys, const trust::Signers& signers) {
    return trust::who_signed(read->canonical, read->signatures, keys, signers).size() >=
           signers.threshold;
  };
  const trust::Root& root = state.set.root();
  if (role == "targets") return is_signed(root.keys, root.targets);
  const trust::Targets& targets = *state.set.targets();
  const auto by = std::ranges::find(targets.delegations, role, &trust::Delegation::role);
  return by != targets.delegations.end() && is_signed(targets.keys, by->signers);
}

/// What one document says of names and the other does not. A name's index may change: it gains
/// variants.
std::vector<std::string> names_alone(const trust::Targets& one, const trust::Targets& other) {
  std::vector<std::string> alone;
  for (const auto& [name, target] : one.targets) {
    const auto found = other.targets.find(name);
    if (found == other.targets.end()) alone.push_back(printable(name));
    if (target.yanked && (found == other.targets.end() || !found->second.yanked)) {
      alone.push_back("the yank of " + printable(name));
    }
  }
  for (const Advisory& each : one.advisories) {
    const auto found = std::ranges::find(other.advisories, each.id, &Advisory::id);
    if (found == other.advisories.end()) alone.push_back("the advisory " + printable(each.id));
  }
  return alone;
}

std::vector<std::string> publishers_alone(const trust::Targets& one, const trust::Targets& other) {
  std::vector<std::string> alone;
  for (const trust::Delegation& each : one.delegations) {
    const auto found = std::ranges::find(other.delegations, each.role, &trust::Delegation::role);
    if (found == other.delegations.end()) alone.push_back("the publisher " + printable(each.role));
  }
  return alone;
}

std::string bounded(std::vector<std::string> names) {
  constexpr std::size_t kMostNamed = 8;
  if (names.size() > kMostNamed) {
    names.resize(kMostNamed);
    names.emplace_back("others");
  }
  return join(names);
}

class Comparison {
 public:
  Comparison(const SignedState& first, const SignedState& second)
      : first_(first),
        second_(second),
        first_replaced_(takes_online_keys(first.set.root(), second.set.root())),
        second_replaced_(takes_online_keys(second.set.root(), first.set.root())) {}

  Standing run() {
    compare_roots();
    compare_roles();
    compare_newest();
    return std::move(standing_);
  }

 private:
  void tell(const std::string& document, std::uint64_t first, std::uint64_t second) {
    const auto text = [&](std::uint64_t version) {
      return version == 0 ? "no " + document : document + " " + std::to_string(version);
    };
    standing_.first.push_back(text(first));
    standing_.second.push_back((first == second ? "another " : "") + text(second));
  }

  void compare_roots() {
    const std::uint64_t first = first_.set.root().version;
    const std::uint64_t second = second_.set.root().version;
    for (std::uint64_t version = 1; version <= std::min(first, second); ++version) {
      const std::string* const ours = find_file(first_.files, role_file(version, "root"));
      const std::string* const theirs = find_file(second_.files, role_file(version, "root"));
      if (ours == nullptr || theirs == nullptr || *ours == *theirs) continue;
      standing_.roots = Order::kApart;
      return tell("root", version, version);
    }
    standing_.roots = order_of(first, second);
    if (first != second) tell("root", first, second);
  }

  void compare_roles() {
    const Order targets = compare_role("targets", true);
    std::set<std::string> roles;
    for (const SignedState* state : {&first_, &second_}) {
      for (const auto& each : state->set.snapshot()->files) roles.insert(each.first);
    }
    roles.erase("targets");
    // While the targets stay, each role's names are its own. Others may have begun it anew.
    for (const std::string& role : roles) compare_role(role, targets == Order::kSame);
  }

  Order compare_role(const std::string& role, bool keeps_names) {
    const std::uint64_t first = version_of(first_, role);
    const std::uint64_t second = version_of(second_, role);
    const std::string* const ours = file_of(first_, role);
    const std::string* const theirs = file_of(second_, role);
    Order order = order_of(first, second);
    if (order == Order::kSame && !is_same(role, ours, theirs)) order = Order::kApart;
    if (order == Order::kSame) return order;
    if (first_replaced_ && theirs != nullptr && !would_sign(first_, role, *theirs)) {
      order = first == 0 ? Order::kSame : Order::kAhead;
    } else if (second_replaced_ && ours != nullptr && !would_sign(second_, role, *ours)) {
      order = second == 0 ? Order::kSame : Order::kBehind;
    } else {
      tell(printable(role), first, second);
      if (ours != nullptr && theirs != nullptr) order = by_names(order, role, keeps_names);
    }
    standing_.roles = joined(standing_.roles, order);
    return order;
  }

  bool is_same(const std::string& role, const std::string* ours, const std::string* theirs) const {
    if (ours != nullptr && theirs != nullptr) return *ours == *theirs;
    const auto digest_of = [&](const SignedState& state) {
      const trust::MetaFile* const file = find_role(state, role);
      return file == nullptr ? std::optional<Digest>() : file->promise.sha256();
    };
    const std::optional<Digest> first = digest_of(first_);
    const std::optional<Digest> second = digest_of(second_);
    return !first || !second || first == second;
  }

  /// Two folders count on from one number, each without what the other signs.
  Order by_names(Order order, const std::string& role, bool keeps_names) {
    const auto read_ours = read_targets(*file_of(first_, role), role);
    const auto read_theirs = read_targets(*file_of(second_, role), role);
    if (!read_ours || !read_theirs) return order;
    const trust::Targets& ours = read_ours->document;
    const trust::Targets& theirs = read_theirs->document;
    const std::vector<std::string> ours_alone = names_alone(ours, theirs);
    const std::vector<std::string> theirs_alone = names_alone(theirs, ours);
    if (keeps_names && order == Order::kAhead && !theirs_alone.empty()) order = Order::kApart;
    if (keeps_names && order == Order::kBehind && !ours_alone.empty()) order = Order::kApart;
    if (order == Order::kBehind) return order;
    std::vector<std::string>& alone = standing_.alone;
    alone.insert(alone.end(), ours_alone.begin(), ours_alone.end());
    const std::vector<std::string> publishers = publishers_alone(ours, theirs);
    alone.insert(alone.end(), publishers.begin(), publishers.end());
    if (order == Order::kApart && !theirs_alone.empty()) {
      standing_.second.back() += " (with " + bounded(theirs_alone) + ")";
    }
    if (order == Order::kApart && !ours_alone.empty()) {
      standing_.first.back() += " (with " + bounded(ours_alone) + ")";
    }
    return order;
  }

  void compare_newest() {
    if (!second_replaced_) count(first_);
    if (!first_replaced_) count(second_);
    if (first_replaced_ || second_replaced_) {
      standing_.newest = first_replaced_ ? Order::kAhead : Order::kBehind;
      return;
    }
    const std::uint64_t first = first_.set.timestamp()->version;
    const std::uint64_t second = second_.set.timestamp()->version;
    const std::uint64_t of_first = first_.set.snapshot()->version;
    const std::uint64_t of_second = second_.set.snapshot()->version;
    standing_.newest = joined(order_of(first, second), order_of(of_first, of_second));
    const bool differs = first == second && *find_file(first_.files, "timestamp.json") !=
                                                *find_file(second_.files, "timestamp.json");
    const std::string* const ours = find_file(first_.files, role_file(of_first, "snapshot"));
    const std::string* const theirs = find_file(second_.files, role_file(of_second, "snapshot"));
    if (differs || (of_first == of_second && *ours != *theirs)) standing_.newest = Order::kApart;
    if (standing_.newest != Order::kSame) tell("timestamp", first, second);
  }

  void count(const SignedState& state) {
    standing_.snapshot = std::max(standing_.snapshot, state.set.snapshot()->version);
    standing_.timestamp = std::max(standing_.timestamp, state.set.timestamp()->version);
  }

  const SignedState& first_;
  const SignedState& second_;
  bool first_replaced_;
  bool second_replaced_;
  Standing standing_;
};

}  // namespace

Order Standing::all() const {
  return joined(joined(roots, roles), newest);
}

Standing compare(const SignedState& first, const SignedState& second) {
  return Comparison(first, second).run();
}

std::string describe(const Standing& standing, const std::string& first,
                     const std::string& second) {
  return first + " has " + bounded(standing.first) + ", " + second + " has " +
         bounded(standing.second);
}

std::string how_to_rejoin(const Standing& standing, const std::filesystem::path& registry) {
  std::string text = "To go on from the server's, remove " +
                     (registry / trust::kTrustRepository).string() +
                     " and sign this folder's versions anew, on top of it: 'kiln registry sign "
                     "--registry " +
                     shell_word(registry.string()) + " --onto URL --root ROOT'";
  if (!standing.alone.empty()) {
    text += ". Then say again what this folder alone has: " + bounded(standing.alone);
  }
  return text;
}

}  // namespace kiln::registry
