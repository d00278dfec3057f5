// SPDX-License-Identifier: Apache-2.0
#include "sign.hpp"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "check.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "trust/canonical.hpp"
#include "trust/repository_source.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;
using trust::Expiry;
using trust::Root;

constexpr std::int64_t kDay = 24L * 60 * 60;
constexpr std::int64_t kTargetsLast = 365 * kDay;

[[noreturn]] void fail(ErrorCode code, const fs::path& registry, const std::string& found) {
  throw Error(code, "sign " + registry.string() + ": " + found);
}

std::string file_name(std::uint64_t version, const char* role) {
  return std::to_string(version) + "." + role + ".json";
}

/// The registry's metadata on its way to the next version of it.
class Signing {
 public:
  explicit Signing(const SignRequest& request)
      : request_(request), now_(std::time(nullptr)), files_(read_trust_files(request.registry)) {
    for (const fs::path& path : request.roots) {
      std::string bytes = read_document(path, trust::kMaxRootBytes);
      const std::uint64_t version = trust::parse<Root>(bytes, path.string()).document.version;
      roots_.emplace(version, std::move(bytes));
    }
  }

  Signed run() {
    if (!files_.empty()) follow(files_, origin(), Expiry::kTold);
    take_what_is_ahead();
    const std::uint64_t before = root_version();
    add_roots();
    root_ = newest_root();
    check_keys();
    sign_targets(before != root_.version);
    sign_snapshot_and_timestamp();
    follow(files_, origin(), Expiry::kRefused);
    result_.root = root_;
    return result_;
  }

  const TrustFiles& files() const { return files_; }

 private:
  std::string origin() const { return request_.registry.string(); }

  std::uint64_t root_version() const {
    std::uint64_t version = 0;
    while (files_.contains(file_name(version + 1, "root"))) ++version;
    return version;
  }

  Root newest_root() const {
    return trust::parse<Root>(files_.at(file_name(root_version(), "root")), origin()).document;
  }

  /// What was signed elsewhere since is gone on with. The server is not believed: what it has must
  /// follow from a root that is known here, or the keys would sign what somebody put there.
  void take_what_is_ahead() {
    if (request_.onto.empty()) return;
    const trust::TrustedSet theirs = follow(request_.onto, "the server", Expiry::kTold);
    if (!shares_a_root(request_.onto)) {
      fail(ErrorCode::kConflict, request_.registry,
           "the server's metadata does not follow from a root that is known here; nothing was "
           "signed. Give the newest root that you know with --root, or sign another folder for it");
    }
    if (!files_.empty() && !is_ahead(theirs, follow(files_, origin(), Expiry::kTold))) return;
    files_ = request_.onto;
  }

  bool shares_a_root(const TrustFiles& theirs) const {
    const auto is_theirs = [&](std::uint64_t version, const std::string& bytes) {
      const auto found = theirs.find(file_name(version, "root"));
      return found != theirs.end() && found->second == bytes;
    };
    for (std::uint64_t version = 1; version <= root_version(); ++version) {
      if (is_theirs(version, files_.at(file_name(version, "root")))) return true;
    }
    return std::ranges::any_of(
        roots_, [&](const auto& root) { return is_theirs(root.first, root.second); });
  }

  void add_roots() {
    for (const auto& [version, bytes] : roots_) {
      const auto [place, is_new] = files_.emplace(file_name(version, "root"), bytes);
      if (is_new || place->second == bytes) continue;
      fail(ErrorCode::kConflict, request_.registry,
           "it has another root of version " + std::to_string(version) +
               " than the one given; nothing was signed. Make its successor: 'kiln registry "
               "rotate'");
    }
    if (root_version() > 0) return check_roots();
    fail(ErrorCode::kUsage, request_.registry,
         "it has no root yet. Make one with 'kiln registry init', have it signed, and give it with "
         "--root");
  }

  /// As a client follows them; none may be missing between two.
  void check_roots() const {
    trust::TrustedSet set(files_.at("1.root.json"), origin(), {now_});
    for (std::uint64_t next = 2; next <= root_version(); ++next) {
      set.take_root(files_.at(file_name(next, "root")));
    }
    set.check_root_is_fresh();
    const auto roots = std::ranges::count_if(
        files_, [](const auto& file) { return file.first.ends_with(".root.json"); });
    if (static_cast<std::uint64_t>(roots) == root_version()) return;
    fail(ErrorCode::kTrust, request_.registry,
         "root " + std::to_string(root_version() + 1) +
             " is missing before a later one; nothing was signed. Give it with --root too");
  }

  void check_keys() const {
    for (const PrivateKey& key : request_.keys) {
      const std::string id = trust::key_id(key.key());
      if (root_.targets.ids.contains(id) || root_.snapshot.ids.contains(id) ||
          root_.timestamp.ids.contains(id)) {
        continue;
      }
      fail(ErrorCode::kTrust, request_.registry,
           "root " + std::to_string(root_.version) + " lets key " + id +
               " sign neither targets nor timestamp; nothing was signed. Leave it out, or name it "
               "in the next root: 'kiln registry rotate'");
    }
  }

  bool can_sign(const trust::Signers& signers) const {
    return std::ranges::any_of(request_.keys, [&](const PrivateKey& key) {
      return signers.ids.contains(trust::key_id(key.key()));
    });
  }

  /// The document signed by all keys that may.
  std::string signed_document(const Json& body, const trust::Signers& signers, const char* role) {
    Json signatures = Json::array();
    const std::string canonical = trust::canonical_json(body);
    for (const PrivateKey& key : request_.keys) {
      const std::string id = trust::key_id(key.key());
      if (!signers.ids.contains(id)) continue;
      signatures.push_back({{"keyid", id}, {"sig", key.sign(canonical)}});
    }
    if (signatures.size() < signers.threshold) {
      fail(ErrorCode::kTrust, request_.registry,
           std::string(role) + " must be signed, by " + std::to_string(signers.threshold) +
               " of the keys " + join(signers.ids, ", ") + ", and " +
               std::to_string(signatures.size()) +
               " of them were given; nothing was written. Give them with --key");
    }
    const std::string expires = body["expires"].get<std::string>();
    const std::int64_t when = *trust::parse_time(expires);
    result_.expires = result_.expires == 0 ? when : std::min(result_.expires, when);
    return dump_json({{"signatures", signatures}, {"signed", body}});
  }

  /// The newest document of a role with its file's name, or a first one of version 0.
  std::pair<std::string, Json> newest(const char* role) const {
    const std::string ending = std::string(".") + role + ".json";
    for (const auto& [name, bytes] : files_) {
      if (name.ends_with(ending)) return {name, parse_json(bytes, name)["signed"]};
    }
    return {"", {{"_type", role}, {"spec_version", "1.0.31"}, {"version", 0}}};
  }

  void replace(const std::string& before, const std::string& name, std::string bytes) {
    files_.erase(before);
    files_[name] = std::move(bytes);
  }

  // ---- targets ----

  void sign_targets(bool other_root) {
    auto [file, body] = newest("targets");
    if (!body.contains("targets")) body["targets"] = Json::object();
    name_versions(body["targets"]);
    yank(body["targets"]);
    result_.names = body["targets"].size();
    const bool needed = file.empty() || other_root || !result_.changed.empty();
    if (!needed && !(can_sign(root_.targets) && half_is_over(body))) {
      result_.targets = body["version"].get<std::uint64_t>();
      result_.expires = *trust::parse_time(body["expires"].get<std::string>());
      return;
    }
    result_.targets = body["version"].get<std::uint64_t>() + 1;
    body["version"] = result_.targets;
    body["expires"] = trust::to_text(now_ + kTargetsLast);
    replace(file, file_name(result_.targets, "targets"),
            signed_document(body, root_.targets, "targets"));
  }

  bool half_is_over(const Json& body) const {
    return *trust::parse_time(body["expires"].get<std::string>()) < now_ + kTargetsLast / 2;
  }

  void name_versions(Json& targets) {
    for (const ListedVersion& each : list_registry(request_.registry)) {
      const std::string name = trust::target_name(each.name, each.index.version);
      Json& target = targets[name];
      Json promised = {{"length", each.descriptor.size},
                       {"hashes", {{"sha256", each.descriptor.digest.hex()}}}};
      if (target.is_object() && target["length"] == promised["length"] &&
          target["hashes"] == promised["hashes"]) {
        continue;
      }
      target.update(promised);
      result_.changed.push_back(name);
    }
  }

  void yank(Json& targets) {
    for (const auto& [name, reason] : request_.yanked) {
      if (!targets.contains(name)) {
        fail(ErrorCode::kNotFound, request_.registry,
             "'" + name +
                 "' is not signed here, so it cannot be taken back; nothing was signed. 'kiln "
                 "registry list' says what is published");
      }
      if (targets[name].contains("custom") && targets[name]["custom"].value("yanked", "") == reason)
        continue;
      targets[name]["custom"]["yanked"] = reason;
      result_.changed.push_back(name);
    }
  }

  // ---- snapshot and timestamp ----

  Json meta_of(const std::string& file, std::uint64_t version) const {
    const std::string& bytes = files_.at(file);
    return {{"version", version},
            {"length", bytes.size()},
            {"hashes", {{"sha256", Digest::of(bytes).hex()}}}};
  }

  void sign_snapshot_and_timestamp() {
    auto [file, snapshot] = newest("snapshot");
    Json timestamp = {{"_type", "timestamp"}, {"spec_version", "1.0.31"}, {"version", 0}};
    if (const auto found = files_.find("timestamp.json"); found != files_.end()) {
      timestamp = parse_json(found->second, found->first)["signed"];
    }
    const std::string expires = trust::to_text(now_ + request_.days * kDay);
    const std::uint64_t version = snapshot["version"].get<std::uint64_t>() + 1;
    snapshot["version"] = version;
    snapshot["expires"] = expires;
    snapshot["meta"]["targets.json"] =
        meta_of(file_name(result_.targets, "targets"), result_.targets);
    const std::string named = file_name(version, "snapshot");
    replace(file, named, signed_document(snapshot, root_.snapshot, "snapshot"));

    result_.timestamp = timestamp["version"].get<std::uint64_t>() + 1;
    timestamp["version"] = result_.timestamp;
    timestamp["expires"] = expires;
    timestamp["meta"] = {{"snapshot.json", meta_of(named, version)}};
    files_["timestamp.json"] = signed_document(timestamp, root_.timestamp, "timestamp");
  }

  const SignRequest& request_;
  std::int64_t now_;
  TrustFiles files_;
  std::map<std::uint64_t, std::string> roots_;  ///< the request's, by version
  Root root_;
  Signed result_;
};

}  // namespace

Signed sign_registry(const SignRequest& request) {
  packages_of(request.registry);  // throws for what is no registry, before a folder is made in it
  const Layout layout = trust_layout(request.registry);
  const FileLock held = layout.lock();
  Signing signing(request);
  Signed result = signing.run();
  const TrustArtifact artifact = make_artifact(signing.files());
  for (const auto& [descriptor, bytes] : artifact.blobs) layout.write_blob(descriptor, bytes);
  layout.write_blob(artifact.descriptor, artifact.manifest);
  layout.write({{trust::kTrustTag, artifact.descriptor}});
  return result;
}

}  // namespace kiln::registry
