// SPDX-License-Identifier: Apache-2.0
#include "trust/trusted_set.hpp"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"

namespace kiln::trust {
namespace {

/// One value for these keys and how many of them sign. With the digest of a document in hex: that
/// they have signed it.
Digest fact_of(std::string_view document, const Keys& keys, const Signers& signers) {
  Sha256 hash;
  const auto add = [&](std::string_view text) {
    hash.update(std::to_string(text.size()) + ":");
    hash.update(text);
  };
  add(document);
  add(std::to_string(signers.threshold));
  for (const std::string& id : signers.ids) {
    const auto key = keys.find(id);
    if (key == keys.end()) continue;
    for (const std::string& part : {id, key->second.type, key->second.scheme, key->second.value}) {
      add(part);
    }
  }
  return hash.finish();
}

/// "; this OpenSSL … verifies no signature of type "ed25519"": why some of the keys count for none.
std::string explain_unverifiable(const Keys& keys, const Signers& signers) {
  std::set<std::string> reasons;
  for (const std::string& id : signers.ids) {
    const auto key = keys.find(id);
    if (key == keys.end()) continue;
    if (const std::string why = why_not_verifiable(key->second); !why.empty()) reasons.insert(why);
  }
  std::string text;
  for (const std::string& reason : reasons) text += "; " + reason;
  return text;
}

}  // namespace

std::set<std::string> who_signed(const std::string& canonical,
                                 const std::vector<Signature>& signatures, const Keys& keys,
                                 const Signers& signers) {
  std::set<std::string> ids;
  std::vector<const Key*> found;
  for (const Signature& each : signatures) {
    const auto key = keys.find(each.key_id);
    if (!signers.ids.contains(each.key_id) || key == keys.end()) continue;
    const auto is_same = [&](const Key* other) { return is_same_key(*other, key->second); };
    if (std::any_of(found.begin(), found.end(), is_same)) continue;
    if (!verifies(key->second, canonical, each.signature)) continue;
    ids.insert(each.key_id);
    found.push_back(&key->second);
  }
  return ids;
}

TrustedSet::TrustedSet(std::string_view root, std::string origin, const Clock& clock,
                       SignatureMemo* memo)
    : origin_(std::move(origin)), clock_(clock), memo_(memo) {
  root_ = parse<Root>(root, name_of("root"), Canonical::kLeft).document;
  if (!is_known(fact_of(Digest::of(root).hex(), root_.keys, root_.root))) {
    root_ = read<Root>(root, "root", root_.keys, root_.root);
  }
}

const Targets* TrustedSet::targets(const std::string& role, const std::string& parent) const {
  return vouched_.contains({role, parent}) ? &targets_.at(role).targets : nullptr;
}

/// Other bytes than those that a parent has vouched for are nobody's until they are verified too.
void TrustedSet::keep(Targets targets, const Digest& bytes, const std::string& role,
                      const std::string& parent) {
  const auto found = targets_.find(role);
  if (found != targets_.end() && found->second.bytes != bytes) {
    std::erase_if(vouched_, [&](const auto& each) { return each.first == role; });
  }
  targets_.insert_or_assign(role, Taken{std::move(targets), bytes});
  vouched_.emplace(role, parent);
}

std::string TrustedSet::name_of(std::string_view role) const {
  return std::string(role) + ".json of " + origin_;
}

void TrustedSet::fail(std::string_view role, const std::string& found) const {
  throw Error(ErrorCode::kTrust, "verify " + name_of(role) + ": " + found + kTellPublisher);
}

bool TrustedSet::is_known(const Digest& fact) const {
  return memo_ != nullptr && memo_->knows(fact);
}

/// Throws unless enough of the signers have signed what `bytes` say.
template <class Document>
Document TrustedSet::read(std::string_view bytes, const std::string& role, const Keys& keys,
                          const Signers& signers) const {
  const Digest fact = fact_of(Digest::of(bytes).hex(), keys, signers);
  if (is_known(fact)) return parse<Document>(bytes, name_of(role), Canonical::kLeft).document;
  Signed<Document> found = parse<Document>(bytes, name_of(role));
  const std::size_t count = who_signed(found.canonical, found.signatures, keys, signers).size();
  if (count < signers.threshold) {
    fail(printable(role),
         "signed by " + std::to_string(count) + " of the keys that may, expected " +
             std::to_string(signers.threshold) + explain_unverifiable(keys, signers));
  }
  if (memo_ != nullptr) memo_->learn(fact);
  return std::move(found.document);
}

void TrustedSet::check_is_fresh(std::int64_t expires, std::string_view role,
                                std::uint64_t version) {
  if (expires > clock_.now) return;
  const std::string found =
      "version " + std::to_string(version) + " expired at " + to_text(expires);
  if (clock_.expiry == Expiry::kTold) {
    told_.push_back(name_of(role) + ": " + found);
    return;
  }
  fail(role, found + ", it is " + to_text(clock_.now) +
                 ": its publisher must sign a newer one, or someone holds it back, or this "
                 "machine's clock is wrong");
}

// ---- root ----

bool TrustedSet::take_root(std::string_view bytes) {
  const Root next = read<Root>(bytes, "root", root_.keys, root_.root);
  if (next.version != root_.version + 1) {
    fail("root", "version is " + std::to_string(next.version) + ", expected " +
                     std::to_string(root_.version + 1));
  }
  Root taken = read<Root>(bytes, "root", next.keys, next.root);
  const bool rotated = taken.timestamp != root_.timestamp || taken.snapshot != root_.snapshot;
  root_ = std::move(taken);
  return rotated;
}

void TrustedSet::check_root_is_fresh() {
  check_is_fresh(root_.expires, "root", root_.version);
}

// ---- timestamp ----

bool TrustedSet::take_timestamp(std::string_view bytes) {
  Timestamp next = read<Timestamp>(bytes, "timestamp", root_.keys, root_.timestamp);
  if (timestamp_) {
    if (next.version < timestamp_->version) {
      const std::string found = "version " + std::to_string(next.version) + " is older than " +
                                std::to_string(timestamp_->version) + ", which was seen before";
      if (clock_.expiry == Expiry::kRefused) fail("timestamp", found);
      told_.push_back(name_of("timestamp") + ": " + found + " and decides");
      return false;
    }
    if (next.version == timestamp_->version) return false;
    if (next.snapshot.version < timestamp_->snapshot.version) {
      fail("timestamp", "it names snapshot " + std::to_string(next.snapshot.version) +
                            ", older than " + std::to_string(timestamp_->snapshot.version) +
                            ", which was seen before");
    }
  }
  timestamp_ = std::move(next);
  return true;
}

void TrustedSet::check_timestamp_is_fresh() {
  check_is_fresh(timestamp_->expires, "timestamp", timestamp_->version);
}

// ---- snapshot ----

void TrustedSet::check_only_forward(const Snapshot& next) const {
  if (!snapshot_) return;
  for (const auto& [role, file] : snapshot_->files) {
    const auto now = next.files.find(role);
    if (now == next.files.end()) fail("snapshot", "it lost " + quote(role + ".json"));
    if (now->second.version < file.version) {
      fail("snapshot", "it names version " + std::to_string(now->second.version) + " of " +
                           quote(role + ".json") + ", older than " + std::to_string(file.version) +
                           ", which was seen before");
    }
  }
}

bool TrustedSet::recall_snapshot(std::string_view bytes) {
  snapshot_ = read<Snapshot>(bytes, "snapshot", root_.keys, root_.snapshot);
  if (snapshot_->version != timestamp_->snapshot.version) return false;
  timestamp_->snapshot.promise.check(bytes, name_of("snapshot"));
  return true;
}

void TrustedSet::take_snapshot(std::string_view bytes) {
  timestamp_->snapshot.promise.check(bytes, name_of("snapshot"));
  Snapshot next = read<Snapshot>(bytes, "snapshot", root_.keys, root_.snapshot);
  if (next.version != timestamp_->snapshot.version) {
    fail("snapshot", "version is " + std::to_string(next.version) + ", the timestamp names " +
                         std::to_string(timestamp_->snapshot.version));
  }
  check_only_forward(next);
  snapshot_ = std::move(next);
}

void TrustedSet::check_snapshot_is_fresh() {
  check_is_fresh(snapshot_->expires, "snapshot", snapshot_->version);
}

// ---- targets ----

TrustedSet::Who TrustedSet::who_signs(const std::string& role, const std::string& parent) const {
  if (parent == "root") return {root_.keys, root_.targets};
  const Targets& from = targets_.at(parent).targets;
  const auto by = std::find_if(from.delegations.begin(), from.delegations.end(),
                               [&](const Delegation& each) { return each.role == role; });
  if (by == from.delegations.end())
    fail(printable(parent), "it does not delegate to " + quote(role));
  return {from.keys, by->signers};
}

const MetaFile& TrustedSet::file_of(const std::string& role) const {
  const auto file = snapshot_->files.find(role);
  if (file == snapshot_->files.end()) {
    fail("snapshot", "it has no " + quote(role + ".json") + ": who signs that has not signed yet");
  }
  return file->second;
}

void TrustedSet::take_targets(std::string_view bytes, const std::string& role,
                              const std::string& parent) {
  const MetaFile& file = file_of(role);
  file.promise.check(bytes, name_of(printable(role)));
  const Who who = who_signs(role, parent);
  Targets next = read<Targets>(bytes, role, who.keys, who.signers);
  if (next.version != file.version) {
    fail(printable(role), "version is " + std::to_string(next.version) + ", the snapshot names " +
                              std::to_string(file.version));
  }
  check_is_fresh(next.expires, printable(role), next.version);
  keep(std::move(next), Digest::of(bytes), role, parent);
}

std::optional<SignedTarget> TrustedSet::search(const std::string& name, const Load& load) const {
  constexpr std::size_t kMaxRoles = 32;
  struct Step {
    std::string role;
    std::string parent;
  };
  const std::string hash = Digest::of(name).hex();
  std::vector<Step> next = {{"targets", "root"}};
  std::set<std::string> asked;
  std::vector<Advisory> advisories;
  while (!next.empty() && asked.size() < kMaxRoles) {
    const Step step = std::move(next.back());
    next.pop_back();
    if (!asked.insert(step.role).second) continue;
    if (!load(step.role, step.parent)) return std::nullopt;
    const Targets& targets = targets_.at(step.role).targets;
    advisories.insert(advisories.end(), targets.advisories.begin(), targets.advisories.end());
    if (const auto found = targets.targets.find(name); found != targets.targets.end()) {
      const Who who = who_signs(step.role, step.parent);
      return SignedTarget{found->second, who.signers, fact_of("", who.keys, who.signers),
                          std::move(advisories)};
    }
    std::vector<Step> below;
    for (const Delegation& each : targets.delegations) {
      if (!each.covers(name, hash)) continue;
      below.push_back({each.role, step.role});
      if (!each.terminating) continue;
      next.clear();
      break;
    }
    next.insert(next.end(), std::make_move_iterator(below.rbegin()),
                std::make_move_iterator(below.rend()));
  }
  return std::nullopt;
}

void TrustedSet::recall_targets(std::string_view bytes, const std::string& role,
                                const std::string& parent, Advisories advisories) {
  const Who who = who_signs(role, parent);
  const Digest digest = Digest::of(bytes);
  const bool is_left =
      advisories == Advisories::kLeft && is_known(fact_of(digest.hex(), who.keys, who.signers));
  keep(is_left ? parse<Targets>(without_members(bytes, kAdvisoryPrefix), name_of(role),
                                Canonical::kLeft)
                     .document
               : read<Targets>(bytes, role, who.keys, who.signers),
       digest, role, parent);
}

}  // namespace kiln::trust
