// SPDX-License-Identifier: Apache-2.0
#include "attest/statement.hpp"

#include <algorithm>
#include <iterator>

#include "base/base64.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"

namespace kiln::attest {
namespace {

constexpr std::string_view kBundlePrefix = "application/vnd.dev.sigstore.bundle.v0.3";
constexpr std::string_view kStatementType = "https://in-toto.io/Statement/v1";
constexpr std::size_t kMostSignatures = 8;  // each is verified with each key that is asked for

std::string bytes_of(const JsonView& text) {
  if (std::optional<std::string> bytes = decode_base64(text.string())) return *std::move(bytes);
  text.fail("is not base64");
}

void check_word(const JsonView& view, std::string_view expected) {
  if (const std::string found = view.string(); found != expected) {
    view.fail("is " + quote(found) + ", expected " + quote(expected));
  }
}

}  // namespace

const Kind* kind_of_word(std::string_view word) {
  const auto* const found = std::ranges::find(kKinds, word, &Kind::word);
  return found == std::end(kKinds) ? nullptr : found;
}

const Kind* kind_of_type(std::string_view predicate_type) {
  const auto* const found = std::ranges::find(kKinds, predicate_type, &Kind::predicate_type);
  return found == std::end(kKinds) ? nullptr : found;
}

std::string signed_bytes(std::string_view payload_type, std::string_view payload) {
  std::string bytes = "DSSEv1";
  for (const std::string_view part : {payload_type, payload}) {
    bytes.append(" ").append(std::to_string(part.size())).append(" ").append(part);
  }
  return bytes;
}

Envelope parse_bundle(std::string_view bytes, const std::string& subject) {
  const Json json = parse_others_json(bytes, subject);
  const JsonView bundle(json, subject);
  const JsonView type = bundle.at("mediaType");
  if (!type.string().starts_with(kBundlePrefix)) check_word(type, kMediaTypeBundle);
  const JsonView dsse = bundle.at("dsseEnvelope");
  Envelope envelope{dsse.at("payloadType").string(), bytes_of(dsse.at("payload")), {}};
  for (const JsonView& signature : dsse.at("signatures").items()) {
    if (envelope.signatures.size() == kMostSignatures) {
      dsse.at("signatures").fail("has more than " + std::to_string(kMostSignatures));
    }
    envelope.signatures.push_back(hex_of(bytes_of(signature.at("sig"))));
  }
  return envelope;
}

std::string serialize_bundle(const Envelope& envelope, const trust::Key& key) {
  Json signatures = Json::array();
  for (const std::string& hex : envelope.signatures) {
    signatures.push_back({{"sig", encode_base64(trust::bytes_of_hex(hex).value_or(""))}});
  }
  const std::string hint = encode_base64(trust::bytes_of_hex(trust::fingerprint(key)).value_or(""));
  return dump_json({{"mediaType", kMediaTypeBundle},
                    {"verificationMaterial", {{"publicKey", {{"hint", hint}}}}},
                    {"dsseEnvelope",
                     {{"payloadType", envelope.payload_type},
                      {"payload", encode_base64(envelope.payload)},
                      {"signatures", signatures}}}});
}

Statement parse_statement(const Envelope& envelope, const std::string& subject) {
  const Json json = parse_others_json(envelope.payload, subject);
  const JsonView view(json, subject);
  if (envelope.payload_type != kPayloadType) {
    view.fail("its payloadType is " + quote(envelope.payload_type) + ", expected " +
              quote(kPayloadType));
  }
  check_word(view.at("_type"), kStatementType);
  Statement statement{{}, view.at("predicateType").string(), "{}"};
  for (const JsonView& each : view.at("subject").items()) {
    const JsonView digest = each.at("digest");
    if (!digest.has("sha256")) continue;
    const std::optional<Digest> sha256 = Digest::from_hex(digest.at("sha256").string());
    if (!sha256) digest.at("sha256").fail("is not 64 hex digits");
    statement.subjects.push_back({each.string_or("name", ""), *sha256});
  }
  if (view.has("predicate")) {  // cosign leaves out one that is empty
    const JsonView predicate = view.at("predicate");
    if (!predicate.json().is_object()) predicate.fail("is not an object");
    statement.predicate = dump_json(predicate.json());
  }
  return statement;
}

std::string serialize_statement(const Statement& statement) {
  Json subjects = Json::array();
  for (const Subject& each : statement.subjects) {
    Json subject = {{"digest", {{"sha256", each.digest.hex()}}}};
    if (!each.name.empty()) subject["name"] = each.name;
    subjects.push_back(std::move(subject));
  }
  return dump_json({{"_type", kStatementType},
                    {"subject", subjects},
                    {"predicateType", statement.predicate_type},
                    {"predicate", parse_json(statement.predicate, "predicate")}});
}

bool signed_by(const Envelope& envelope, const trust::Key& key) {
  const std::string bytes = signed_bytes(envelope.payload_type, envelope.payload);
  return std::ranges::any_of(envelope.signatures, [&](const std::string& signature) {
    return trust::verifies(key, bytes, signature);
  });
}

bool speaks_of(const Statement& statement, const Digest& digest) {
  return std::ranges::find(statement.subjects, digest, &Subject::digest) !=
         statement.subjects.end();
}

}  // namespace kiln::attest
