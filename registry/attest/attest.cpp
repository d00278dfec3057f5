// SPDX-License-Identifier: Apache-2.0
#include "registry/attest/attest.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "attest/statement.hpp"
#include "base/join.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "oci/tag.hpp"
#include "registry/folder/check.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/next_index.hpp"
#include "registry/folder/referrers.hpp"

namespace kiln::registry {
namespace {

using attest::Envelope;
using attest::Kind;
using attest::Statement;

void check_keys(const std::vector<PrivateKey>& keys) {
  if (keys.empty()) throw Error(ErrorCode::kUsage, "attest: no key is named. Give --key FILE");
  for (const PrivateKey& key : keys) {
    if (key.key().type != "rsa") continue;
    throw Error(
        ErrorCode::kTrust,
        "attest: found an RSA key, expected ECDSA P-256 or Ed25519; nothing was signed. Make "
        "one: 'kiln registry key FILE --type ecdsa'");
  }
}

WholeVersion read_version(const Layout& layout, const std::string& name, const Tag& tag) {
  const int version = version_of_tag(tag.name);
  const std::string what = "index of " + label(name, version);
  WholeVersion read{read_published_index(name, version, layout.read_blob(tag.descriptor, what),
                                         layout.index_path().string()),
                    tag.descriptor,
                    {}};
  for (const Variant& variant : read.index.variants) {
    read.variants.push_back(read_published(layout, read.index, variant));
  }
  return read;
}

/// An SBOM that says the same later is the same.
bool is_same_sbom(const std::string& before, const std::string& now) {
  Json left = parse_json(before, "SBOM");
  Json right = parse_json(now, "SBOM");
  for (Json* each : {&left, &right}) each->erase("creationInfo");
  return left == right;
}

/// Whether a key has said this before.
bool is_said(const std::vector<Said>& said, const Statement& statement, const PrivateKey& key) {
  const std::string payload = attest::serialize_statement(statement);
  return std::ranges::any_of(said, [&](const Said& before) {
    const bool same = before.envelope.payload == payload ||
                      (before.statement.predicate_type == statement.predicate_type &&
                       attest::kind_of_type(statement.predicate_type)->word == "sbom" &&
                       is_same_sbom(before.statement.predicate, statement.predicate));
    return same && attest::signed_by(before.envelope, key.key());
  });
}

/// What is said of one version. make() writes nothing: a later statement, or one of another
/// version, may be refused, and then nothing is signed.
class Attesting {
 public:
  Attesting(const AttestRequest& request, const Layout& layout, WholeVersion version)
      : request_(request),
        layout_(layout),
        version_(std::move(version)),
        said_(said_about(layout, version_.descriptor)) {
    result_.name = version_.index.name;
    result_.version = version_.index.version;
    result_.index = version_.descriptor;
  }

  void make() {
    if (request_.onto) {
      for (const attest::Attestation& each : request_.onto(result_.name, result_.index)) take(each);
    }
    for (const std::string& word : request_.kinds) {
      const Kind& kind = *attest::kind_of_word(word);
      const Statement statement{
          {{label(result_.name, result_.version), version_.descriptor.digest}},
          std::string(kind.predicate_type),
          dump_json(predicate(word))};
      for (const PrivateKey& key : request_.keys) say(word, statement, key);
    }
  }

  /// After make(). The layout's lock is held.
  AttestedVersion commit() {
    for (const auto& [referrer, said] : taken_) hang_again(referrer, said);
    for (const auto& [made, bundle] : made_) hang(made, bundle);
    add_referrers(layout_, version_.descriptor, added_);
    return std::move(result_);
  }

 private:
  Json predicate(const std::string& word) const {
    if (word == "provenance") return provenance(version_, *request_.origin);
    if (word == "sbom") return sbom(version_, request_.sbom);
    if (word != "tests") return Json::object();
    Json said = tests(version_, request_.records);
    if (!said.is_null()) return said;
    throw Error(ErrorCode::kNotFound, "attest " + label(result_.name, result_.version) +
                                          ": no record speaks of a library of its; nothing was "
                                          "signed. Test these builds, and give --records");
  }

  /// Another's place may have it from anybody: only what one of the keys signed is taken over.
  void take(const attest::Attestation& said) {
    const bool is_ours = std::ranges::any_of(request_.keys, [&](const PrivateKey& key) {
      return attest::signed_by(said.envelope, key.key());
    });
    if (!is_ours) return;
    said_.push_back({said.envelope, said.statement});
    Referrer referrer = parse_referrer(said.manifest, "referrer");
    if (referrer.config.digest != Digest::of(kEmptyConfig)) return;  // another tool's
    taken_.emplace_back(std::move(referrer), said);
  }

  void hang_again(const Referrer& referrer, const attest::Attestation& said) {
    layout_.write_blob(referrer.config, kEmptyConfig);
    layout_.write_blob(referrer.layers.front(), said.bundle);
    const Descriptor manifest{std::string(kMediaTypeManifest), Digest::of(said.manifest),
                              said.manifest.size()};
    layout_.write_blob(manifest, said.manifest);
    added_.push_back({manifest, std::string(attest::kMediaTypeBundle), ""});
  }

  void say(const std::string& word, const Statement& statement, const PrivateKey& key) {
    const std::string id = word + " by " + trust::fingerprint(key.key());
    if (is_said(said_, statement, key)) {
      result_.unchanged.push_back(id);
      return;
    }
    Envelope envelope{
        std::string(attest::kPayloadType), attest::serialize_statement(statement), {}};
    envelope.signatures = {key.sign(attest::signed_bytes(envelope.payload_type, envelope.payload))};
    std::string bundle = attest::serialize_bundle(envelope, key.key());
    if (bundle.size() > attest::kMostBundleBytes) fail_too_large(word, bundle.size());
    made_.emplace_back(
        make_referrer(version_.descriptor, attest::kMediaTypeBundle, bundle,
                      {{"dev.sigstore.bundle.content", "dsse-envelope"},
                       {"dev.sigstore.bundle.predicateType", statement.predicate_type}}),
        std::move(bundle));
    result_.added.push_back(id);
  }

  [[noreturn]] void fail_too_large(const std::string& word, std::size_t bytes) const {
    std::size_t files = 0;
    std::set<Digest> shared;  // dev layers
    for (const BuiltVariant& each : version_.variants) {
      files += each.config.files.size();
      if (shared.insert(each.documents.dev.digest).second) files += each.config.dev_files.size();
    }
    std::vector<std::string> kinds = request_.kinds;
    std::erase(kinds, word);
    const std::string others = join(kinds, ",");
    throw Error(ErrorCode::kUsage,
                "attest " + label(result_.name, result_.version) + ": the " + word + " of its " +
                    std::to_string(files) + " files would have " + std::to_string(bytes) +
                    " bytes, clients read at most " + std::to_string(attest::kMostBundleBytes) +
                    "; nothing was signed. Publish fewer files or variants in one version" +
                    (others.empty() ? "" : ", or sign the other statements: --only " + others));
  }

  void hang(const MadeReferrer& made, const std::string& bundle) {
    layout_.write_blob(made.config, kEmptyConfig);
    layout_.write_blob(made.layer, bundle);
    layout_.write_blob(made.listed.manifest, made.manifest);
    added_.push_back(made.listed);
  }

  const AttestRequest& request_;
  const Layout& layout_;
  WholeVersion version_;
  std::vector<Said> said_;
  std::vector<std::pair<Referrer, attest::Attestation>> taken_;  ///< from another place
  std::vector<std::pair<MadeReferrer, std::string>> made_;       ///< with their bundles
  ReferrerList added_;
  AttestedVersion result_;
};

}  // namespace

std::vector<Said> said_about(const Layout& layout, const Descriptor& index) {
  std::vector<Said> said;
  for (const HungReferrer& each : read_referrers(layout, index)) {
    for (const Descriptor& blob : each.blobs) {
      if (blob.media_type != attest::kMediaTypeBundle) continue;
      const std::string what = "bundle " + blob.digest.str();
      Said one{attest::parse_bundle(layout.read_blob(blob, what), what), {}};
      one.statement = attest::parse_statement(one.envelope, what);
      said.push_back(std::move(one));
    }
  }
  return said;
}

std::vector<AttestedVersion> attest(const AttestRequest& request, const Progress& progress) {
  check_keys(request.keys);
  const std::string& name = request.versions.name;
  const auto tags = [&] {
    return version_tags(request.registry, request.versions, "attest", "nothing was signed");
  };
  tags();  // before the lock, which makes folders
  const Layout layout(request.registry / name);
  const FileLock held = layout.lock();
  std::vector<Attesting> versions;
  for (const Tag& tag : tags()) {
    versions.emplace_back(request, layout, read_version(layout, name, tag));
    versions.back().make();
    progress("checked " + label(name, version_of_tag(tag.name)));
  }
  std::vector<AttestedVersion> results;
  results.reserve(versions.size());
  for (Attesting& each : versions) results.push_back(each.commit());
  return results;
}

}  // namespace kiln::registry
