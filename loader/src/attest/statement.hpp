// SPDX-License-Identifier: Apache-2.0
//
// Statement: what somebody signed about a version: an in-toto Statement v1, in a DSSE envelope, in
// a sigstore bundle v0.3, as cosign reads and writes them. After trust/key; under attestations, and
// under the registry's attest. Nothing read here is trusted until signed_by() has checked it.
// Pure.
//
//   bundle      {"mediaType", "verificationMaterial": {"publicKey": {"hint"}}, "dsseEnvelope"}
//   envelope    {"payloadType", "payload", "signatures": [{"sig"}]}, base64
//   statement   {"_type", "subject": [{"name", "digest": {"sha256"}}], "predicateType",
//   "predicate"}
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "trust/key.hpp"

namespace kiln::attest {

inline constexpr std::string_view kMediaTypeBundle =
    "application/vnd.dev.sigstore.bundle.v0.3+json";
inline constexpr std::string_view kPayloadType = "application/vnd.in-toto+json";

/// What a statement may say of an index. Each has a word, for commands and settings, and the URI
/// that stands in the statement.
struct Kind {
  std::string_view word;
  std::string_view predicate_type;
};
inline constexpr Kind kKinds[] = {
    {"signature", "https://sigstore.dev/cosign/sign/v1"},  ///< only that it was signed
    {"provenance", "https://slsa.dev/provenance/v1"},      ///< of which sources, by which compilers
    {"sbom", "https://spdx.dev/Document"},                 ///< SPDX 2.3: its files, their licences
    {"tests", "urn:kiln:tests:v1"},  ///< {"records": [kiln.record/1 documents]}
};

/// Null for any other word or URI.
const Kind* kind_of_word(std::string_view word);
const Kind* kind_of_type(std::string_view predicate_type);

struct Envelope {
  std::string payload_type;
  std::string payload;
  std::vector<std::string> signatures;  ///< in hex
};

struct Subject {
  std::string name;  ///< may be empty
  Digest digest;
};

struct Statement {
  std::vector<Subject> subjects;  ///< those that have a SHA-256
  std::string predicate_type;
  std::string predicate;  ///< a JSON object
};

/// What a signature of an envelope covers: DSSE's pre-authentication encoding.
std::string signed_bytes(std::string_view payload_type, std::string_view payload);

/// Throws kIntegrity for another document, or for more than 8 signatures.
Envelope parse_bundle(std::string_view bytes, const std::string& subject);
/// `key`: who signed first.
std::string serialize_bundle(const Envelope& envelope, const trust::Key& key);

/// Throws kIntegrity for an envelope whose payload is not a Statement v1.
Statement parse_statement(const Envelope& envelope, const std::string& subject);
std::string serialize_statement(const Statement& statement);

/// Whether one of the envelope's signatures is this key's.
bool signed_by(const Envelope& envelope, const trust::Key& key);

/// Whether the statement is about these bytes.
bool speaks_of(const Statement& statement, const Digest& digest);

}  // namespace kiln::attest
