// SPDX-License-Identifier: Apache-2.0
#include "trust/metadata.hpp"

#include <fnmatch.h>
#include <openssl/evp.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/digest.hpp"
#include "base/quote.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "trust/canonical.hpp"

namespace kiln::trust {
namespace {

std::uint64_t positive(const JsonView& view) {
  const std::uint64_t number = view.unsigned_integer();
  if (number == 0) view.fail("found 0, expected a number from 1");
  return number;
}

std::int64_t time_of(const JsonView& view) {
  const std::string text = view.string();
  const std::optional<std::int64_t> time = parse_time(text);
  if (!time) view.fail("found " + quote(text) + ", expected a time like 2027-01-31T00:00:00Z");
  return *time;
}

Promise promise(const JsonView& view) {
  Promise found;
  if (view.has("length")) found.length = view.at("length").unsigned_integer();
  if (!view.has("hashes")) return found;
  for (const auto& [algorithm, hash] : view.at("hashes").members()) {
    found.hashes.emplace(algorithm, hash.string());
  }
  if (found.hashes.empty()) view.at("hashes").fail("is empty");
  return found;
}

MetaFile meta_file(const JsonView& view) {
  return {positive(view.at("version")), promise(view)};
}

Signers signers(const JsonView& view) {
  Signers found;
  found.threshold = positive(view.at("threshold"));
  for (const JsonView& id : view.at("keyids").items()) {
    if (!found.ids.insert(id.string()).second) id.fail("appears twice");
  }
  return found;
}

Keys keys(const JsonView& view) {
  Keys found;
  for (const auto& [id, key] : view.members()) {
    // What another type of key holds is nobody's business here: it signs nothing.
    const JsonView value = key.at("keyval");
    const bool known = value.has("public") && value.at("public").json().is_string();
    found.emplace(id, Key{key.at("keytype").string(), key.at("scheme").string(),
                          known ? value.at("public").string() : ""});
  }
  return found;
}

/// "snapshot.json" -> "snapshot".
std::string role_of(const std::string& file, const JsonView& view) {
  constexpr std::string_view kEnding = ".json";
  if (!file.ends_with(kEnding)) view.fail("is not the name of a metadata file");
  return file.substr(0, file.size() - kEnding.size());
}

void read(const JsonView& view, Root& root) {
  root.consistent_snapshot =
      view.has("consistent_snapshot") && view.at("consistent_snapshot").boolean();
  root.keys = keys(view.at("keys"));
  const JsonView roles = view.at("roles");
  root.root = signers(roles.at("root"));
  root.timestamp = signers(roles.at("timestamp"));
  root.snapshot = signers(roles.at("snapshot"));
  root.targets = signers(roles.at("targets"));
}

void read(const JsonView& view, Timestamp& timestamp) {
  timestamp.snapshot = meta_file(view.at("meta").at("snapshot.json"));
}

void read(const JsonView& view, Snapshot& snapshot) {
  for (const auto& [file, meta] : view.at("meta").members()) {
    snapshot.files.emplace(role_of(file, meta), meta_file(meta));
  }
  if (!snapshot.files.contains("targets")) view.at("meta").fail("has no \"targets.json\"");
}

/// A yank counts, whatever its signers wrote: of a longer text its beginning is kept.
std::string reason_of(const JsonView& view) {
  std::string text = view.string();
  if (text.size() <= kMaxText) return text;
  std::size_t end = kMaxText;
  while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // in a character of UTF-8
  return text.substr(0, end) + "...";
}

Target target(const JsonView& view) {
  Target found{view.at("length").unsigned_integer(), promise(view), std::nullopt};
  if (found.promise.hashes.empty()) view.fail("has no \"hashes\"");
  if (!view.has("custom")) return found;
  const JsonView custom = view.at("custom");
  if (custom.has("yanked")) found.yanked = reason_of(custom.at("yanked"));
  if (custom.has("published")) found.published = time_of(custom.at("published"));
  return found;
}

Delegation delegation(const JsonView& view) {
  Delegation found{view.at("name").string(), signers(view), false, {}, {}};
  // Files of these names are the top level's.
  for (const std::string_view taken : {"", "root", "timestamp", "snapshot", "targets"}) {
    if (found.role == taken) view.at("name").fail("is not a name for a delegated role");
  }
  found.terminating = view.at("terminating").boolean();
  if (view.has("paths") == view.has("path_hash_prefixes")) {
    view.fail("needs either \"paths\" or \"path_hash_prefixes\"");
  }
  if (view.has("paths")) found.paths = view.at("paths").strings();
  if (view.has("path_hash_prefixes")) found.hash_prefixes = view.at("path_hash_prefixes").strings();
  return found;
}

/// The advisory that a target carries beside its bytes, if it is one.
void read_advisory(const std::string& name, const JsonView& view, Targets& targets) {
  if (!name.starts_with(kAdvisoryPrefix) || !view.has("custom")) return;
  const JsonView custom = view.at("custom");
  if (!custom.has("advisory")) return;
  if (targets.advisories.size() == kMaxAdvisories) {
    view.fail("is one of more than " + std::to_string(kMaxAdvisories) + " advisories");
  }
  targets.advisories.push_back(
      parse_advisory(custom.at("advisory"), name.substr(kAdvisoryPrefix.size())));
}

void read(const JsonView& view, Targets& targets) {
  for (const auto& [name, each] : view.at("targets").members()) {
    targets.targets.emplace(name, target(each));
    read_advisory(name, each, targets);
  }
  if (!view.has("delegations")) return;
  const JsonView delegations = view.at("delegations");
  targets.keys = keys(delegations.at("keys"));
  std::set<std::string> seen;
  for (const JsonView& role : delegations.at("roles").items()) {
    targets.delegations.push_back(delegation(role));
    if (!seen.insert(targets.delegations.back().role).second) role.fail("appears twice");
  }
}

std::vector<Signature> signatures(const JsonView& view) {
  constexpr std::size_t kMost = 1024;
  if (view.json().size() > kMost) {
    view.fail("has " + std::to_string(view.json().size()) + " signatures, expected at most " +
              std::to_string(kMost));
  }
  std::vector<Signature> found;
  std::set<std::string> seen;
  for (const JsonView& each : view.items()) {
    found.push_back({each.at("keyid").string(), each.at("sig").string()});
    if (!seen.insert(found.back().key_id).second) each.fail("signs a second time with one key");
  }
  return found;
}

void check_header(const JsonView& view, std::string_view type) {
  const std::string found = view.at("_type").string();
  if (found != type) {
    view.at("_type").fail("found " + quote(found) + ", expected " + quote(type));
  }
  const std::string spec = view.at("spec_version").string();
  if (!spec.starts_with("1.")) {
    view.at("spec_version")
        .fail("found " + quote(spec) + ", expected 1.x. A newer Kiln may know it");
  }
}

std::string sha512_hex(std::string_view bytes) {
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), hash, &length, EVP_sha512(), nullptr) != 1) {
    throw Error(ErrorCode::kInternal, "sha512: OpenSSL refuses");
  }
  return hex_of({reinterpret_cast<const char*>(hash), length});
}

std::string hash_of(std::string_view algorithm, std::string_view bytes) {
  return algorithm == "sha256" ? Digest::of(bytes).hex() : sha512_hex(bytes);
}

}  // namespace

std::string target_name(std::string_view package, int version) {
  return std::string(package) + "/" + std::to_string(version);
}

std::optional<Digest> Promise::sha256() const {
  const auto found = hashes.find("sha256");
  return found == hashes.end() ? std::nullopt : Digest::from_hex(found->second);
}

void Promise::check(std::string_view bytes, const std::string& what) const {
  const auto fail = [&](const std::string& found, const std::string& expected) {
    throw Error(ErrorCode::kTrust, "verify " + what + ": found " + found +
                                       ", its signer promises " + expected + kTellPublisher);
  };
  if (length && *length != bytes.size()) {
    fail(std::to_string(bytes.size()) + " bytes", std::to_string(*length));
  }
  bool known = hashes.empty();
  for (const std::string_view algorithm : {"sha256", "sha512"}) {
    const auto promised = hashes.find(std::string(algorithm));
    if (promised == hashes.end()) continue;
    known = true;
    const std::string found = hash_of(algorithm, bytes);
    if (found != promised->second) {
      fail(std::string(algorithm) + " " + found, quote(promised->second));
    }
  }
  if (!known) fail("no hash of a known algorithm", "sha256 or sha512");
}

bool Delegation::covers(const std::string& name, std::string_view hash) const {
  if (!hash_prefixes.empty()) {
    return std::any_of(hash_prefixes.begin(), hash_prefixes.end(),
                       [&](const std::string& prefix) { return hash.starts_with(prefix); });
  }
  return std::any_of(paths.begin(), paths.end(), [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), name.c_str(), FNM_PATHNAME | FNM_NOESCAPE) == 0;
  });
}

template <class Document>
Signed<Document> parse(std::string_view bytes, const std::string& what, Canonical canonical) {
  try {
    const Json json = parse_json(bytes, what);
    const JsonView root(json, what);
    const JsonView body = root.at("signed");
    check_header(body, Document::kType);
    Signed<Document> found;
    if (canonical == Canonical::kMade) found.canonical = canonical_json(body.json());
    found.signatures = signatures(root.at("signatures"));
    found.document.version = positive(body.at("version"));
    found.document.expires = time_of(body.at("expires"));
    read(body, found.document);
    return found;
  } catch (const Error& error) {
    throw Error(ErrorCode::kTrust,
                "read trust metadata: " + std::string(error.what()) + kTellPublisher);
  }
}

template Signed<Root> parse<Root>(std::string_view, const std::string&, Canonical);
template Signed<Timestamp> parse<Timestamp>(std::string_view, const std::string&, Canonical);
template Signed<Snapshot> parse<Snapshot>(std::string_view, const std::string&, Canonical);
template Signed<Targets> parse<Targets>(std::string_view, const std::string&, Canonical);

}  // namespace kiln::trust
