// SPDX-License-Identifier: Apache-2.0
#include "sign.hpp"

#include <algorithm>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "layout.hpp"
#include "oci/tag.hpp"
#include "trust/repository_source.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;
using trust::Delegation;
using trust::Expiry;
using trust::Keys;
using trust::Root;
using trust::Signers;

constexpr std::int64_t kDay = 24L * 60 * 60;
constexpr std::int64_t kTargetsLast = 365 * kDay;

[[noreturn]] void fail(ErrorCode code, const fs::path& registry, const std::string& found) {
  throw Error(code, "sign " + registry.string() + ": " + found);
}

const Delegation* find_delegation(const trust::Targets& targets, const std::string& role) {
  const auto found = std::ranges::find(targets.delegations, role, &Delegation::role);
  return found == targets.delegations.end() ? nullptr : &*found;
}

/// A version in the folder, by its tag.
struct Published {
  std::string package;
  int version;
  Descriptor index;

  std::string name() const { return trust::target_name(package, version); }
  Json promised() const {
    return {{"length", index.size}, {"hashes", {{"sha256", index.digest.hex()}}}};
  }
};

bool says(const Json& target, const Json& promised) {
  return target.is_object() && target["length"] == promised["length"] &&
         target["hashes"] == promised["hashes"];
}

std::vector<Published> published_in(const fs::path& registry, const std::set<std::string>& only) {
  std::vector<Published> found;
  for (const std::string& package : packages_of(registry)) {
    if (!only.empty() && !only.contains(package)) continue;
    for (const Tag& tag : Layout(registry / package).read()) {
      if (const int version = version_of_tag(tag.name); version != 0) {
        found.push_back({package, version, tag.descriptor});
      }
    }
  }
  return found;
}

/// Throws unless the index is there, whole, and of this name and version.
void check_index(const fs::path& registry, const Published& each) {
  const std::string what = "index " + label(each.package, each.version);
  const Layout layout(registry / each.package);
  const Index index = parse_index(layout.read_blob(each.index, what), what);
  if (index.name == each.package && index.version == each.version) return;
  throw Error(ErrorCode::kIntegrity, "sign " + label(each.package, each.version) + ": " +
                                         layout.index_path().string() + " gives that name to " +
                                         label(index.name, index.version) +
                                         "; nothing was signed. Run 'kiln registry check'");
}

/// The registry's metadata on its way to the next version of it.
class Signing {
 public:
  explicit Signing(const SignRequest& request)
      : request_(request), now_(std::time(nullptr)), files_(read_trust_files(request.registry)) {
    for (const fs::path& path : request.roots) {
      std::string bytes = read_document(path, trust::kMaxRootBytes);
      const std::uint64_t version = trust::parse<Root>(bytes, path.string()).document.version;
      roots_.emplace(role_file(version, "root"), std::move(bytes));
    }
  }

  Signed run() {
    if (!files_.empty()) set_.emplace(follow(files_, origin(), Expiry::kTold, Roles::kTop));
    take_what_is_ahead();
    read_drafts();
    add_roots();
    plan_targets();
    plan_roles();
    yank();
    check_keys();
    for (auto& [role, pending] : pending_) {
      if (!finished_elsewhere_.contains(role)) pending.sign(request_.keys, signers_of(role));
    }
    pick_ready();
    sign_newest();
    return report();
  }

  /// What clients shall see from now on; as before where not all have signed.
  const TrustFiles& files() const { return files_; }
  /// What waits.
  const TrustDraft& draft() const { return draft_; }

 private:
  std::string origin() const { return request_.registry.string(); }

  // ---- where it begins ----

  /// What was signed elsewhere since is gone on with. The server is not believed: what it has must
  /// follow from a root that is known here, or the keys would sign what somebody put there.
  void take_what_is_ahead() {
    if (request_.onto.empty()) return;
    trust::TrustedSet theirs = follow(request_.onto, "the server", Expiry::kTold, Roles::kTop);
    if (!shares_a_root(request_.onto)) {
      fail(ErrorCode::kConflict, request_.registry,
           "the server's metadata does not follow from a root that is known here; nothing was "
           "signed. Give the newest root that you know with --root, or sign another folder for it");
    }
    if (set_ && !is_ahead(theirs, *set_)) return;
    files_ = request_.onto;
    set_.emplace(std::move(theirs));
  }

  bool shares_a_root(const TrustFiles& theirs) const {
    const auto is_theirs = [&](const auto& file) {
      if (!file.first.ends_with(".root.json")) return false;
      const auto found = theirs.find(file.first);
      return found != theirs.end() && found->second == file.second;
    };
    return std::ranges::any_of(files_, is_theirs) || std::ranges::any_of(roots_, is_theirs);
  }

  /// Whether a draft begins where the registry is. Of each document that it has next, the one
  /// before must be what clients see.
  bool follows(const TrustDraft& draft) const {
    for (const auto& [name, bytes] : draft.before) {
      const auto found = files_.find(name);
      if (name.ends_with(".root.json") && found != files_.end() && found->second != bytes) {
        return false;
      }
    }
    return std::ranges::all_of(draft.next, [&](const auto& each) {
      const auto& [role, pending] = each;
      const std::uint64_t version = version_of(role);
      if (pending.version() != version + 1) return false;
      if (role == "snapshot" || role == "timestamp") return true;
      const std::string file = role_file(version, role);
      const auto before = draft.before.find(file);
      const auto now = files_.find(file);
      return (before == draft.before.end()) == (now == files_.end()) &&
             (now == files_.end() || now->second == before->second);
    });
  }

  void take_roots(const TrustDraft& draft) {
    for (const auto& [name, bytes] : draft.before) {
      if (name.ends_with(".root.json") && !files_.contains(name)) roots_.emplace(name, bytes);
    }
  }

  void read_drafts() {
    if (std::optional<TrustDraft> own = read_draft(draft_path(request_.registry))) {
      if (follows(*own)) {
        take_roots(*own);
        pending_ = std::move(own->next);
      }
    }
    for (const fs::path& file : request_.drafts) {
      std::optional<TrustDraft> given = read_draft(file);
      if (!given) {
        fail(ErrorCode::kNotFound, request_.registry, "there is no draft " + file.string());
      }
      if (!follows(*given)) {
        fail(ErrorCode::kConflict, request_.registry,
             "draft " + file.string() +
                 " was begun on other metadata than the registry has now; nothing was signed. Make "
                 "it anew from here");
      }
      take_roots(*given);
      for (auto& [role, pending] : given->next) given_[role].push_back(std::move(pending));
    }
  }

  void add_roots() {
    TrustFiles all = files_;
    for (const auto& [name, bytes] : roots_) {
      const auto [place, is_new] = all.emplace(name, bytes);
      if (is_new) new_roots_[name] = bytes;
      if (is_new || place->second == bytes) continue;
      fail(ErrorCode::kConflict, request_.registry,
           "it has another root of version " + name.substr(0, name.find('.')) +
               " than the one given; nothing was signed. Make its successor: 'kiln registry "
               "rotate'");
    }
    const auto first = all.find(role_file(1, "root"));
    if (first == all.end()) {
      fail(ErrorCode::kUsage, request_.registry,
           "it has no root yet. Make one with 'kiln registry init', have it signed, and give it "
           "with --root");
    }
    // As a client follows them; none may be missing between two.
    trust::TrustedSet set(first->second, origin(), {now_});
    std::uint64_t version = 1;
    for (; all.contains(role_file(version + 1, "root")); ++version) {
      set.take_root(all.at(role_file(version + 1, "root")));
    }
    set.check_root_is_fresh();
    root_ = set.root();
    const auto roots = std::ranges::count_if(
        all, [](const auto& file) { return file.first.ends_with(".root.json"); });
    if (static_cast<std::uint64_t>(roots) == version) return;
    fail(ErrorCode::kTrust, request_.registry,
         "root " + std::to_string(version + 1) +
             " is missing before a later one; nothing was signed. Give it with --root too");
  }

  /// A key that may sign nothing was taken by mistake.
  void check_keys() const {
    for (const PrivateKey& key : request_.keys) {
      const std::string id = trust::key_id(key.key());
      const bool known = root_.targets.ids.contains(id) || is_online(id) ||
                         std::ranges::any_of(targets_.delegations, [&](const Delegation& each) {
                           return each.signers.ids.contains(id);
                         });
      if (known) continue;
      fail(ErrorCode::kTrust, request_.registry,
           "root " + std::to_string(root_.version) + " lets key " + id +
               " sign neither targets nor timestamp, and no publisher has it; nothing was signed. "
               "Leave it out, or name it in the next root: 'kiln registry rotate'");
    }
  }

  bool is_online(const std::string& id) const {
    return root_.snapshot.ids.contains(id) || root_.timestamp.ids.contains(id);
  }

  const Signers& signers_of(const std::string& role) const {
    if (role == "targets") return root_.targets;
    if (role == "snapshot") return root_.snapshot;
    if (role == "timestamp") return root_.timestamp;
    static const Signers kNobody;
    const Delegation* const found = find_delegation(targets_, role);
    return found == nullptr ? kNobody : found->signers;
  }
  const Keys& keys_of(const std::string& role) const {
    const bool top = role == "targets" || role == "snapshot" || role == "timestamp";
    return top ? root_.keys : targets_.keys;
  }
  bool is_complete(const std::string& role) const {
    const Signers& signers = signers_of(role);
    return !signers.ids.empty() && pending_.at(role).is_complete(keys_of(role), signers);
  }
  bool can_sign(const std::string& role) const {
    return std::ranges::any_of(request_.keys, [&](const PrivateKey& key) {
      return signers_of(role).ids.contains(trust::key_id(key.key()));
    });
  }

  // ---- documents of targets ----

  std::uint64_t version_of(const std::string& role) const {
    if (!set_) return 0;
    if (role == "timestamp") return set_->timestamp()->version;
    if (role == "snapshot") return set_->snapshot()->version;
    const auto found = set_->snapshot()->files.find(role);
    return found == set_->snapshot()->files.end() ? 0 : found->second.version;
  }

  /// What clients see of a role; null for nothing.
  const std::string* file_of(const std::string& role) const {
    const auto found = files_.find(role_file(version_of(role), role));
    return found == files_.end() ? nullptr : &found->second;
  }

  /// Body of what clients see. Not verified, but by what the snapshot says of its bytes.
  Json committed(const std::string& role) const {
    const std::string* const file = file_of(role);
    if (file == nullptr) return nullptr;
    set_->file_of(role).promise.check(*file, role_file(version_of(role), role) + " of " + origin());
    return parse_json(*file, role)["signed"];
  }

  Json body_of(const std::string& role) const {
    const auto found = pending_.find(role);
    return found == pending_.end() ? committed(role) : found->second.body();
  }

  /// The next version of what clients see, which is verified first.
  Json next_body(const std::string& role) {
    Json body = committed(role);
    if (body.is_null()) {
      body = {{"_type", "targets"}, {"spec_version", "1.0.31"}, {"targets", Json::object()}};
    } else if (role != "targets" && set_->targets(role) == nullptr) {
      set_->take_targets(*file_of(role), role, "targets");
    }
    body["version"] = version_of(role) + 1;
    body["expires"] = trust::to_text(now_ + kTargetsLast);
    return body;
  }

  /// Changes what a role will say. Who signed it as it was before has not signed this.
  void edit(const std::string& role, const std::function<void(Json&)>& change) {
    const auto found = pending_.find(role);
    if (found == pending_.end()) {
      const Json before = committed(role);
      Json body = next_body(role);
      change(body);
      const auto same = [&](const char* part) {
        const auto was = before.find(part);
        const auto is = body.find(part);
        return was == before.end() ? is == body.end() : is != body.end() && *was == *is;
      };
      if (before.is_null() || !same("targets") || !same("delegations")) {
        pending_.emplace(role, Pending(std::move(body)));
      }
      return;
    }
    Json body = found->second.body();
    change(body);
    if (body == found->second.body()) return;
    body["expires"] = trust::to_text(now_ + kTargetsLast);
    found->second = Pending(std::move(body));
  }

  void renew(const std::string& role) {
    if (!pending_.contains(role)) pending_.emplace(role, Pending(next_body(role)));
  }

  /// Signatures that came back, now that it is known what the folder itself would have signed.
  void take_given(const std::string& role) {
    for (const Pending& each : std::exchange(given_[role], {})) {
      const auto own = pending_.find(role);
      if (own != pending_.end() && own->second.join(each)) continue;
      const Signers& signers = signers_of(role);
      if (!signers.ids.empty() && each.is_complete(keys_of(role), signers)) {
        pending_.insert_or_assign(role, each);
        finished_elsewhere_.insert(role);
        continue;
      }
      fail(ErrorCode::kConflict, request_.registry,
           "the draft that came back has another " + printable(role) +
               ".json than this folder's, and fewer have signed it than must; nothing was signed. "
               "See what it says, and sign it itself: 'kiln registry sign FILE'");
    }
    // Its signatures came from several places: they are not thrown away for one more version,
    // which the next signing takes up.
    if (pending_.contains(role) && is_complete(role) && !completes(role)) {
      finished_elsewhere_.insert(role);
    }
  }

  /// Whether the keys given are enough for a role.
  bool completes(const std::string& role) const {
    const Signers& signers = signers_of(role);
    const auto count = std::ranges::count_if(request_.keys, [&](const PrivateKey& key) {
      return signers.ids.contains(trust::key_id(key.key()));
    });
    return static_cast<std::uint64_t>(count) >= signers.threshold;
  }

  void read_next_targets() {
    const auto found = pending_.find("targets");
    if (found != pending_.end()) {
      targets_ = trust::parse<trust::Targets>(found->second.text("targets"), "targets").document;
    } else if (set_) {
      targets_ = *set_->targets("targets");
    }
  }

  /// Whether what clients have of a role is signed as from now on it must be.
  bool still_holds(const std::string& role) const {
    const std::string* const file = file_of(role);
    return file != nullptr && Pending(*file, role).is_complete(keys_of(role), signers_of(role));
  }

  void plan_targets() {
    if (!file_of("targets") || !still_holds("targets")) renew("targets");
    Json moved = Json::object();
    edit("targets", [&](Json& body) {
      if (request_.bins > 0) moved = names_for_bins(body);
      set_bins(body, request_.bins, root_);
      if (request_.publisher) appoint(body, *request_.publisher, root_);
      if (!request_.dismissed.empty()) dismiss(body, request_.dismissed);
    });
    take_given("targets");
    read_next_targets();
    if (request_.bins > 0) fill_bins(moved);
    if (request_.publisher) check_names_of(*request_.publisher);
  }

  /// All that the targets keys have signed, taken out of `body` and of the bins that there are.
  Json names_for_bins(Json& body) const {
    Json names = std::exchange(body["targets"], Json::object());
    if (!body.contains("delegations")) return names;
    for (const Json& each : body["delegations"]["roles"]) {
      const std::string role = each["name"].get<std::string>();
      if (!is_bin(role)) continue;
      const Json bin = body_of(role);
      if (!bin.is_null()) names.update(bin["targets"]);
    }
    return names;
  }

  void fill_bins(const Json& names) {
    std::map<std::string, Json> by_bin;
    for (const Delegation& each : targets_.delegations) {
      if (is_bin(each.role)) by_bin.emplace(each.role, Json::object());
    }
    for (const auto& [name, target] : names.items()) {
      const auto bin = by_bin.find(role_for(targets_, name));
      if (bin == by_bin.end()) {
        fail(ErrorCode::kConflict, request_.registry,
             printable(name) +
                 " is signed by targets, and a publisher's package; nothing was "
                 "signed");
      }
      bin->second[name] = target;
    }
    for (auto& bin : by_bin) {
      edit(bin.first, [&](Json& body) { body["targets"] = std::move(bin.second); });
    }
  }

  /// Nobody's versions may vanish because packages go to another role.
  void check_names_of(const Publisher& publisher) const {
    const Delegation& role = *find_delegation(targets_, publisher.role);
    const auto check = [&](const std::string& other, const Json& body) {
      if (body.is_null()) return;
      for (const auto& each : body["targets"].items()) {
        if (role.covers(each.key(), "") == (other == publisher.role)) continue;
        fail(ErrorCode::kConflict, request_.registry,
             printable(each.key()) + " is signed by " + printable(other) +
                 ", and would be nobody's any more; nothing was signed. Leave its package where it "
                 "is");
      }
    };
    check("targets", body_of("targets"));
    for (const Delegation& each : targets_.delegations) check(each.role, body_of(each.role));
  }

  // ---- what the roles say ----

  void plan_roles() {
    const bool names_left = drops_names("targets");
    for (const Delegation& each : targets_.delegations) {
      take_given(each.role);
      if (file_of(each.role) != nullptr && has_other_signers(each) && !still_holds(each.role)) {
        renew(each.role);
        tied_.insert(each.role);
      }
      // The names that left targets, or other bins, are in here.
      if (is_bin(each.role) && (is_new(each.role) || names_left) && pending_.contains(each.role)) {
        tied_.insert(each.role);
      }
    }
    for (const auto& [role, left] : given_) {
      if (role == "snapshot" || role == "timestamp" || left.empty()) continue;
      fail(ErrorCode::kConflict, request_.registry,
           "the draft that came back has " + printable(role) + ".json, to which nobody delegates");
    }
    std::map<std::string, std::vector<Published>> by_role;
    for (Published& each : published_in(request_.registry, request_.only)) {
      by_role[role_for(targets_, each.name())].push_back(std::move(each));
    }
    if (request_.only.empty()) {
      by_role["targets"];
      for (const Delegation& each : targets_.delegations) by_role[each.role];
    }
    for (const auto& [role, versions] : by_role) plan_role(role, versions);
  }

  bool has_other_signers(const Delegation& next) const {
    const trust::Targets& now = *set_->targets("targets");
    const Delegation* const before = find_delegation(now, next.role);
    return before == nullptr || before->signers != next.signers;
  }
  bool is_new(const std::string& role) const {
    return !set_ || find_delegation(*set_->targets("targets"), role) == nullptr;
  }
  bool drops_names(const std::string& role) const {
    const Json before = committed(role);
    const auto next = pending_.find(role);
    if (before.is_null() || next == pending_.end()) return false;
    const Json& kept = next->second.body()["targets"];
    return std::ranges::any_of(before["targets"].items(),
                               [&](const auto& each) { return !kept.contains(each.key()); });
  }

  void plan_role(const std::string& role, const std::vector<Published>& versions) {
    const Json visible = committed(role);
    const auto pending = pending_.find(role);
    const Json& body = pending == pending_.end() ? visible : pending->second.body();
    std::vector<const Published*> different;
    for (const Published& each : versions) {
      const std::string name = each.name();
      const bool known = !body.is_null() && body["targets"].contains(name);
      if (known && says(body["targets"][name], each.promised())) {
        if (pending != pending_.end()) folder_[role].push_back(each);
        continue;
      }
      check_index(request_.registry, each);
      folder_[role].push_back(each);
      different.push_back(&each);
    }
    if (!different.empty() && !finished_elsewhere_.contains(role)) {
      edit(role, [&](Json& next) {
        for (const Published* each : different)
          next["targets"][each->name()].update(each->promised());
      });
    }
    if (visible.is_null()) return;
    names_[role] = visible["targets"].size();
    const std::int64_t expires = *trust::parse_time(visible["expires"].get<std::string>());
    expires_[role] = expires;
    if (expires < now_ + kTargetsLast / 2 && can_sign(role)) renew(role);
  }

  void yank() {
    for (const auto& each : request_.yanked) {
      const std::string& name = each.first;
      const std::string role = role_for(targets_, name);
      const Json body = body_of(role);
      if (body.is_null() || !body["targets"].contains(name)) {
        fail(ErrorCode::kNotFound, request_.registry,
             "'" + name +
                 "' is not signed here, so it cannot be taken back; nothing was signed. 'kiln "
                 "registry list' says what is published");
      }
      edit(role, [&](Json& next) { next["targets"][name]["custom"]["yanked"] = each.second; });
    }
  }

  // ---- what becomes visible ----

  /// What enough have signed, and what clients can follow without the rest.
  void pick_ready() {
    const bool all_tied =
        std::ranges::all_of(tied_, [&](const std::string& role) { return is_complete(role); });
    const bool targets_go = !pending_.contains("targets") || (is_complete("targets") && all_tied);
    if (!targets_go && (!new_roots_.empty() || !set_)) return;
    for (const auto& [role, pending] : pending_) {
      if (role == "snapshot" || role == "timestamp") continue;
      if (targets_go ? is_complete(role) : holds_already(role, pending)) ready_.insert(role);
    }
    can_go_ = true;
  }

  /// Whether clients that have the targets of now accept it.
  bool holds_already(const std::string& role, const Pending& pending) const {
    if (role == "targets" || tied_.contains(role)) return false;
    const trust::Targets& now = *set_->targets("targets");
    const Delegation* const found = find_delegation(now, role);
    return found != nullptr && pending.is_complete(now.keys, found->signers);
  }

  static Json meta_of(const std::string& bytes, std::uint64_t version) {
    return {{"version", version},
            {"length", bytes.size()},
            {"hashes", {{"sha256", Digest::of(bytes).hex()}}}};
  }

  /// Snapshot or timestamp: the draft's, if it says this and was not left too long.
  Pending& newest_of(const std::string& role, const Json& meta) {
    const std::uint64_t version = version_of(role) + 1;
    const auto found = pending_.find(role);
    if (found == pending_.end() || found->second.body()["meta"] != meta ||
        *trust::parse_time(found->second.body()["expires"].get<std::string>()) < now_ + kDay) {
      pending_.insert_or_assign(role,
                                Pending({{"_type", role},
                                         {"spec_version", "1.0.31"},
                                         {"version", version},
                                         {"expires", trust::to_text(now_ + request_.days * kDay)},
                                         {"meta", meta}}));
    }
    for (const Pending& each : std::exchange(given_[role], {})) pending_.at(role).join(each);
    Pending& pending = pending_.at(role);
    pending.sign(request_.keys, signers_of(role));
    return pending;
  }

  bool some_online_key_signs() const {
    return pending_.contains("snapshot") || given_.contains("snapshot") || can_sign("snapshot") ||
           can_sign("timestamp");
  }

  void sign_newest() {
    if (!can_go_ || !some_online_key_signs()) {
      pending_.erase("snapshot");
      pending_.erase("timestamp");
      return;
    }
    TrustFiles next = files_;
    next.insert(new_roots_.begin(), new_roots_.end());
    Json meta = set_ ? parse_json(*file_of("snapshot"), "snapshot")["signed"]["meta"] : Json();
    for (const std::string& role : ready_) {
      const Pending& pending = pending_.at(role);
      next.erase(role_file(version_of(role), role));
      const std::string text = pending.text(role);
      meta[role + ".json"] = meta_of(text, pending.version());
      next[role_file(pending.version(), role)] = text;
    }
    if (set_) next.erase(role_file(version_of("snapshot"), "snapshot"));
    if (ready_.contains("targets")) drop_roles_of_nobody(next);

    const Pending& snapshot = newest_of("snapshot", meta);
    const std::string text = snapshot.text("snapshot");
    Json named = {{"version", snapshot.version()}};
    // Where several must sign, each signs both at once: what the others' signatures will be is not
    // known then, and so not what the snapshot's bytes will be.
    if (root_.snapshot.threshold == 1 && is_complete("snapshot")) {
      named = meta_of(text, snapshot.version());
    }
    const Pending& timestamp = newest_of("timestamp", {{"snapshot.json", named}});
    if (!is_complete("snapshot") || !is_complete("timestamp")) return;
    next[role_file(snapshot.version(), "snapshot")] = text;
    next["timestamp.json"] = timestamp.text("timestamp");

    trust::TrustedSet checked = follow(next, origin(), Expiry::kRefused, Roles::kTop);
    for (const std::string& role : ready_) {
      if (role == "targets" || find_delegation(targets_, role) == nullptr) continue;
      checked.take_targets(next.at(role_file(pending_.at(role).version(), role)), role, "targets");
    }
    result_.is_visible = true;
    for (const std::string& role : ready_) note_change(role);
    ready_.insert({"snapshot", "timestamp"});
    for (const std::string& role : ready_) {
      expires_[role] = *trust::parse_time(pending_.at(role).body()["expires"].get<std::string>());
      pending_.erase(role);
    }
    new_roots_.clear();
    files_ = std::move(next);
    set_.emplace(std::move(checked));
  }

  /// The snapshot goes on to name them: a client refuses one that has lost a document.
  void drop_roles_of_nobody(TrustFiles& files) const {
    const auto drop = [&](const std::string& role) {
      if (find_delegation(targets_, role) == nullptr) {
        files.erase(role_file(version_of(role), role));
      }
    };
    if (!set_) return;
    for (const Delegation& each : set_->targets("targets")->delegations) drop(each.role);
  }

  /// What a role that becomes visible says otherwise than clients have it now, from whatever role.
  void note_change(const std::string& role) {
    std::map<std::string, Json> seen;  // by role
    const auto before = [&](const std::string& name) -> const Json* {
      if (!set_) return nullptr;
      const std::string from = role_for(*set_->targets("targets"), name);
      if (!seen.contains(from)) seen[from] = committed(from);
      const Json& body = seen[from];
      return body.is_null() || !body["targets"].contains(name) ? nullptr : &body["targets"][name];
    };
    const Json& next = pending_.at(role).body()["targets"];
    names_[role] = next.size();
    for (const auto& [name, target] : next.items()) {
      const Json* const known = before(name);
      if (known == nullptr || *known != target) result_.changed.push_back(name);
    }
  }

  Signed report() {
    result_.root = set_ ? set_->root().version : 0;
    result_.targets = version_of("targets");
    result_.timestamp = version_of("timestamp");
    if (set_) expires_["targets"] = set_->targets("targets")->expires;
    for (const auto& [role, when] : expires_) {
      result_.expires = result_.expires == 0 ? when : std::min(result_.expires, when);
    }
    if (request_.only.empty()) {
      result_.names = 0;
      for (const auto& [role, count] : names_) *result_.names += count;
    }
    for (const auto& [role, versions] : folder_) {
      const Json visible = committed(role);
      for (const Published& each : versions) {
        const std::string name = each.name();
        const bool seen = !visible.is_null() && visible["targets"].contains(name) &&
                          says(visible["targets"][name], each.promised());
        if (!seen) result_.waiting.push_back(name);
      }
    }
    std::ranges::sort(result_.changed);
    std::ranges::sort(result_.waiting);
    for (const auto& [role, pending] : pending_) {
      Missing missing = missing_of(role, pending, keys_of(role), signers_of(role));
      if (missing.have < missing.need) result_.missing.push_back(std::move(missing));
    }
    const bool should_go = can_go_ && !(ready_.empty() && new_roots_.empty());
    if (!result_.is_visible && should_go && !pending_.contains("snapshot")) {
      for (const char* role : {"snapshot", "timestamp"}) {
        const Signers& signers = signers_of(role);
        result_.missing.push_back({role,
                                   version_of(role) + 1,
                                   0,
                                   signers.threshold,
                                   {signers.ids.begin(), signers.ids.end()}});
      }
    }
    make_draft();
    return result_;
  }

  void make_draft() {
    if (pending_.empty() && new_roots_.empty()) return;
    draft_.next = pending_;
    const auto keep = [&](const std::string& role) {
      if (const std::string* const file = file_of(role)) {
        draft_.before[role_file(version_of(role), role)] = *file;
      }
    };
    for (const auto& [name, bytes] : files_) {
      if (name.ends_with(".root.json")) draft_.before[name] = bytes;
    }
    draft_.before.insert(new_roots_.begin(), new_roots_.end());
    keep("targets");
    for (const auto& each : pending_) {
      if (each.first != "snapshot" && each.first != "timestamp") keep(each.first);
    }
    result_.draft = draft_path(request_.registry);
  }

  const SignRequest& request_;
  std::int64_t now_;
  TrustFiles files_;                        ///< what clients see
  std::optional<trust::TrustedSet> set_;    ///< what they make of it
  TrustFiles roots_;                        ///< the request's and the drafts'
  TrustFiles new_roots_;                    ///< those of them that clients do not see yet
  Root root_;                               ///< the newest
  trust::Targets targets_;                  ///< as they will be
  std::map<std::string, Pending> pending_;  ///< by role: what is to be signed
  std::map<std::string, std::vector<Pending>> given_;  ///< what came back, until it is looked at
  std::set<std::string> finished_elsewhere_;           ///< roles that are signed as they came back
  std::set<std::string> tied_;   ///< roles that go with the targets, or neither does
  std::set<std::string> ready_;  ///< roles that enough have signed
  bool can_go_ = false;          ///< clients could follow
  std::map<std::string, std::vector<Published>> folder_;  ///< of roles that are to be signed
  std::map<std::string, std::size_t> names_;
  std::map<std::string, std::int64_t> expires_;
  TrustDraft draft_;
  Signed result_;
};

/// What the artifacts of these manifests name, and they. Throws for what is no such artifact.
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

Signed sign_registry(const SignRequest& request) {
  packages_of(request.registry);  // throws for what is no registry, before a folder is made in it
  const Layout layout = trust_layout(request.registry);
  const FileLock held = layout.lock();
  Signing signing(request);
  Signed result = signing.run();
  if (result.is_visible) write_artifact(layout, signing.files());
  if (result.draft.empty()) {
    fs::remove(draft_path(request.registry));
  } else {
    write_draft(result.draft, signing.draft());
  }
  return result;
}

}  // namespace kiln::registry
