// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a sigstore bundle, as a signed statement, or as a key in PEM. The first byte says as
// what. Refused by name, or a statement that is written and read as the same; and nothing here is
// signed by a key that did not sign it.
#include "attest/statement.hpp"
#include "fuzz.hpp"

namespace {

using namespace kiln;

const trust::Key kStranger{"ed25519", "ed25519",
                           "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"};

void read_statement(const attest::Envelope& envelope) {
  attest::Statement statement;
  const bool taken = fuzz::accepts(
      {ErrorCode::kIntegrity}, [&] { statement = attest::parse_statement(envelope, "statement"); });
  if (!taken) return;
  fuzz::round_trip(
      attest::serialize_statement(statement),
      [](const std::string& again) {
        return attest::parse_statement({std::string(attest::kPayloadType), again, {}}, "again");
      },
      attest::serialize_statement);
}

void read_bundle(std::string_view text) {
  attest::Envelope envelope;
  const bool taken = fuzz::accepts({ErrorCode::kIntegrity},
                                   [&] { envelope = attest::parse_bundle(text, "bundle"); });
  if (!taken) return;
  fuzz::require(envelope.signatures.size() <= 8, "signatures are bounded");
  fuzz::require(!attest::signed_by(envelope, kStranger), "nobody signed these bytes");
  const std::string again = attest::serialize_bundle(envelope, kStranger);
  fuzz::accepts({}, [&] {
    const attest::Envelope read = attest::parse_bundle(again, "again");
    fuzz::require(read.payload == envelope.payload && read.signatures == envelope.signatures,
                  "a bundle reads back");
  });
  read_statement(envelope);
}

void read_key(std::string_view text) {
  const std::optional<trust::Key> key = trust::key_in_pem(text);
  if (!key) return;
  fuzz::require(trust::fingerprint(*key).size() == 64, "a key that is read has a fingerprint");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text = fuzz::text_of(data + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      read_bundle(text);
      break;
    case 1:
      read_statement({std::string(attest::kPayloadType), std::string(text), {}});
      break;
    default:
      read_key(text);
  }
  return 0;
}
