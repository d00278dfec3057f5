// SPDX-License-Identifier: Apache-2.0
#include "signed.hpp"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "oci/layout.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "settings/trust_file.hpp"
#include "trust/canonical.hpp"
#include "trust/metadata.hpp"
#include "trust/repository_source.hpp"

namespace kiln::test {
namespace {

std::string base64(const std::string& bytes) {
  std::string text(bytes.size() / 3 * 4 + 5, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

EVP_PKEY* generate(const std::string& type) {
  if (type == "ed25519") return EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
  if (type == "ecdsa") return EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256");
  return EVP_PKEY_Q_keygen(nullptr, nullptr, "RSA", std::size_t{2048});
}

std::string pem_of(EVP_PKEY* key) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), &BIO_free);
  REQUIRE(PEM_write_bio_PUBKEY(bio.get(), key) == 1);
  char* text = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<std::size_t>(length)};
}

Json keys_of(const std::vector<Signer>& signers) {
  Json keys = Json::object();
  for (const Signer& each : signers) {
    keys[each.id()] = {{"keytype", each.key().type},
                       {"scheme", each.key().scheme},
                       {"keyval", {{"public", each.key().value}}}};
  }
  return keys;
}

}  // namespace

struct Signer::Private {
  explicit Private(EVP_PKEY* made) : key(made) {}
  ~Private() { EVP_PKEY_free(key); }
  Private(const Private&) = delete;
  Private& operator=(const Private&) = delete;
  EVP_PKEY* key;
};

Signer::Signer(const std::string& type)
    : private_(std::make_shared<const Private>(generate(type))) {
  REQUIRE(private_->key != nullptr);
  if (type == "ed25519") {
    unsigned char raw[32];
    std::size_t length = sizeof(raw);
    REQUIRE(EVP_PKEY_get_raw_public_key(private_->key, raw, &length) == 1);
    key_ = {type, type, hex_of({reinterpret_cast<const char*>(raw), length})};
  } else {
    key_ = {type, type == "rsa" ? "rsassa-pss-sha256" : "ecdsa-sha2-nistp256",
            pem_of(private_->key)};
  }
}

std::string Signer::sign(std::string_view bytes) const {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  EVP_PKEY_CTX* details = nullptr;
  const EVP_MD* const hash = key_.type == "ed25519" ? nullptr : EVP_sha256();
  REQUIRE(EVP_DigestSignInit(context.get(), &details, hash, nullptr, private_->key) == 1);
  if (key_.type == "rsa") {
    REQUIRE(EVP_PKEY_CTX_set_rsa_padding(details, RSA_PKCS1_PSS_PADDING) == 1);
    REQUIRE(EVP_PKEY_CTX_set_rsa_pss_saltlen(details, RSA_PSS_SALTLEN_DIGEST) == 1);
  }
  unsigned char signature[512];
  std::size_t length = sizeof(signature);
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  REQUIRE(EVP_DigestSign(context.get(), signature, &length, data, bytes.size()) == 1);
  return hex_of({reinterpret_cast<const char*>(signature), length});
}

std::string sign(const Json& body, const std::vector<Signer>& signers) {
  Json signatures = Json::array();
  const std::string canonical = trust::canonical_json(body);
  for (const Signer& each : signers) {
    signatures.push_back({{"keyid", each.id()}, {"sig", each.sign(canonical)}});
  }
  return dump_json({{"signatures", signatures}, {"signed", body}});
}

Json role_of(const std::vector<Signer>& signers, int threshold) {
  Json ids = Json::array();
  for (const Signer& each : signers) ids.push_back(each.id());
  return {{"keyids", ids}, {"threshold", threshold}};
}

Signed::Signed(std::filesystem::path registry)
    : expires(std::time(nullptr) + 30 * kDay), registry_(std::move(registry)) {
  rotate();
}

Json Signed::body(const std::string& role, int version) const {
  return {{"_type", role},
          {"spec_version", "1.0.31"},
          {"version", version},
          {"expires", trust::to_text(expires)}};
}

void Signed::add(const std::string& package, int version, const Descriptor& index) {
  targets_[package + "/" + std::to_string(version)] = std::make_shared<Json>(
      Json{{"length", index.size}, {"hashes", {{"sha256", index.digest.hex()}}}});
}

void Signed::yank(const std::string& package, int version, const std::string& reason) {
  (*targets_.at(package + "/" + std::to_string(version)))["custom"] = {{"yanked", reason}};
}

void Signed::rotate() {
  Json root = body("root", static_cast<int>(roots_.size()) + 1);
  std::vector<Signer> all = root_keys;
  all.push_back(targets_key);
  all.push_back(online_key);
  root["consistent_snapshot"] = true;
  root["keys"] = keys_of(all);
  root["roles"] = {{"root", role_of(root_keys)},
                   {"targets", role_of({targets_key})},
                   {"snapshot", role_of({online_key})},
                   {"timestamp", role_of({online_key})}};
  std::vector<Signer> signers = root_keys;
  for (const Signer& each : keys_before_) {
    const auto is_same = [&](const Signer& other) { return other.id() == each.id(); };
    if (std::none_of(signers.begin(), signers.end(), is_same)) signers.push_back(each);
  }
  roots_.push_back(sign(root, signers));
  keys_before_ = root_keys;
}

void Signed::publish(const Change& change) {
  std::map<std::string, std::string> files;
  const auto add = [&](const std::string& file, const std::string& role, Json document,
                       const Signer& by) {
    if (change) change(role, document);
    files[file] = sign(document, {by});
    return Json{{"version", document["version"]},
                {"length", files[file].size()},
                {"hashes", {{"sha256", Digest::of(files[file]).hex()}}}};
  };
  for (std::size_t i = 0; i < roots_.size(); ++i) {
    files[std::to_string(i + 1) + ".root.json"] = roots_[i];
  }
  const std::string number = std::to_string(++targets_version);
  ++timestamp_version;
  Json targets = body("targets", targets_version);
  targets["targets"] = Json::object();
  for (const auto& [name, target] : targets_) targets["targets"][name] = *target;
  Json snapshot = body("snapshot", targets_version);
  snapshot["meta"] = {
      {"targets.json", add(number + ".targets.json", "targets", targets, targets_key)}};
  Json timestamp = body("timestamp", timestamp_version);
  timestamp["meta"] = {
      {"snapshot.json", add(number + ".snapshot.json", "snapshot", snapshot, online_key)}};
  add("timestamp.json", "timestamp", timestamp, online_key);

  Published folder(registry_);
  const std::string name = trust::kTrustRepository;
  Json layers = Json::array();
  for (const auto& [file, bytes] : files) {
    Json layer = to_json(folder.put(name, bytes, trust::kMediaTypeTrust));
    layer["annotations"] = {{"org.opencontainers.image.title", file}};
    if (file == "timestamp.json") layer["data"] = base64(bytes);
    layers.push_back(layer);
  }
  const Descriptor manifest = folder.put(
      name,
      dump_json({{"schemaVersion", 2},
                 {"mediaType", kMediaTypeManifest},
                 {"artifactType", trust::kArtifactTypeTrust},
                 {"config", to_json(folder.put(name, "{}", "application/vnd.oci.empty.v1+json"))},
                 {"layers", layers}}),
      kMediaTypeManifest);
  write_file(registry_ / name / "oci-layout", serialize_layout_marker());
  write_file(registry_ / name / "index.json",
             serialize_layout_index({{trust::kTrustTag, manifest}}));
}

void trust_root(const std::string& registry, const std::string& root) {
  update_trust([&](Trust& trust) { trust.roots[registry] = root; });
}

}  // namespace kiln::test
