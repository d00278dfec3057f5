// SPDX-License-Identifier: Apache-2.0
//
// Statements and referrers as values: the encoding that is signed, what is read back, what is
// refused. Whole commands are attest_test.py's.
#include <doctest/doctest.h>

#include "attest/statement.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "oci/referrers.hpp"
#include "oci/tag.hpp"
#include "settings/trust_file.hpp"

namespace kiln {
namespace {

const std::string kHex(64, 'a');
const Digest kIndex = Digest::parse("sha256:" + kHex);

// P-256 and Ed25519 keys of OpenSSL; the fingerprints are `openssl pkey -pubin -outform DER |
// sha256sum`.
constexpr const char* kP256 =
    "-----BEGIN PUBLIC KEY-----\n"
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE/rAOyfiJI++CWfUs6AZMzfrCD+NH\n"
    "3pKvRb3GTboyCswemIJ25n5oWNjmNV19YOPZ/uyjxSb/6jFVHSMxF4QD9w==\n"
    "-----END PUBLIC KEY-----\n";
constexpr const char* kEd25519 =
    "-----BEGIN PUBLIC KEY-----\n"
    "MCowBQYDK2VwAyEA0HrFcvPX5JmvnK6qZqVc/C/CfaBO977t+yu2TwFQwr4=\n"
    "-----END PUBLIC KEY-----\n";

TEST_CASE("the bytes that are signed are those of DSSE's own example") {
  CHECK(attest::signed_bytes("http://example.com/HelloWorld", "hello world") ==
        "DSSEv1 29 http://example.com/HelloWorld 11 hello world");
  CHECK(attest::signed_bytes("", "") == "DSSEv1 0  0 ");
}

TEST_CASE("a public key is read, and has the fingerprint that sigstore gives it") {
  const auto ecdsa = trust::key_in_pem(kP256);
  REQUIRE(ecdsa);
  CHECK(ecdsa->type == "ecdsa");
  CHECK(trust::fingerprint(*ecdsa) ==
        "130bc1d9bde37845d7141dbfc0067c93bca49a225ab114430ba35a63544b63f2");
  const auto ed25519 = trust::key_in_pem(kEd25519);
  REQUIRE(ed25519);
  CHECK(ed25519->scheme == "ed25519");
  CHECK(trust::fingerprint(*ed25519) ==
        "2b793f59e3fc534a207a622a11d6425f9b42f663934b004491e22253a58648e2");
  CHECK_FALSE(trust::key_in_pem("no key"));
  CHECK(trust::fingerprint({"ecdsa", "ecdsa-sha2-nistp256", "no key"}).empty());
}

TEST_CASE("what is written reads back as itself") {
  const attest::Statement statement{
      {{"geglu-mlp@1", kIndex}}, std::string(attest::kKinds[1].predicate_type), R"({"a":[1]})"};
  const attest::Envelope envelope{
      std::string(attest::kPayloadType), attest::serialize_statement(statement), {"00ff10"}};
  const std::string bundle = attest::serialize_bundle(envelope, *trust::key_in_pem(kEd25519));
  const attest::Envelope read = attest::parse_bundle(bundle, "bundle");
  CHECK(read.payload == envelope.payload);
  CHECK(read.signatures == envelope.signatures);
  const attest::Statement again = attest::parse_statement(read, "statement");
  CHECK(attest::speaks_of(again, kIndex));
  CHECK_FALSE(attest::speaks_of(again, Digest::of("another")));
  CHECK(again.predicate == statement.predicate);
  CHECK(attest::kind_of_type(again.predicate_type)->word == "provenance");
  CHECK(attest::kind_of_word("provenance") == &attest::kKinds[1]);
  CHECK(attest::kind_of_word("") == nullptr);
}

TEST_CASE("what is no statement is refused") {
  const auto refused = [](const std::string& payload, const char* type) {
    try {
      attest::parse_statement({type, payload, {}}, "statement");
      return std::string("read");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kIntegrity);
      return std::string(error.what());
    }
  };
  const std::string good = R"({"_type":"https://in-toto.io/Statement/v1","predicateType":"t",)"
                           R"("subject":[{"digest":{"sha256":")" +
                           kHex + R"("}}]})";
  const char* type = "application/vnd.in-toto+json";
  CHECK(refused(good, type) == "read");
  CHECK(refused(good, "application/json").find("payloadType") != std::string::npos);
  CHECK(refused("{}", type) != "read");
  CHECK(refused("[]", type) != "read");
  CHECK(refused(good.substr(1), type) != "read");
  CHECK(refused(std::string(good).replace(good.find(kHex), 1, "A"), type) != "read");
  CHECK(refused(std::string(good).insert(1, R"("predicate":[],)"), type) != "read");
}

TEST_CASE("a list of referrers keeps what others wrote, and never loses an entry") {
  const MadeReferrer ours = make_referrer({std::string(kMediaTypeIndex), kIndex, 9},
                                          attest::kMediaTypeBundle, "bundle", {{"k", "v"}});
  const Referrer read = parse_referrer(ours.manifest, "manifest");
  REQUIRE(read.subject);
  CHECK(read.subject->digest == kIndex);
  REQUIRE(read.layers.size() == 1);
  CHECK(read.layers.front() == ours.layer);
  CHECK(read.config.digest == Digest::of(kEmptyConfig));

  ListedReferrer theirs{{std::string(kMediaTypeManifest), Digest::of("x"), 1}, "a/b", ""};
  const ReferrerList both = join_referrers({theirs}, {ours.listed, theirs});
  REQUIRE(both.size() == 2);
  CHECK(both.back() == ours.listed);
  CHECK(parse_referrers(serialize_referrers(both), "list") == both);
  CHECK_FALSE(parse_referrer(R"({"config":{"mediaType":"a","digest":"sha256:)" + kHex +
                                 R"(","size":2},"layers":[]})",
                             "manifest")
                  .subject);
}

TEST_CASE("a tag names the document whose referrers it lists") {
  CHECK(referrers_tag(kIndex) == "sha256-" + kHex);
  CHECK(subject_of_tag("sha256-" + kHex) == kIndex);
  CHECK_FALSE(subject_of_tag("sha256-" + kHex + ".sig"));
  CHECK_FALSE(subject_of_tag("1"));
  CHECK(is_tag(referrers_tag(kIndex)));
}

TEST_CASE("a requirement covers a registry and what is below it") {
  const Requirement required{"https://example.org/acme", "geglu-*", "signature", {"k"}, 1};
  CHECK(required.covers("https://example.org/acme", "geglu-mlp"));
  CHECK(required.covers("https://example.org/acme/kernels", "geglu-mlp"));
  CHECK_FALSE(required.covers("https://example.org/acme2", "geglu-mlp"));
  CHECK_FALSE(required.covers("https://example.org/acme", "swiglu-mlp"));
  CHECK(Requirement{"/", "*", "signature", {"k"}, 1}.covers("/srv/kiln", "any"));

  Trust trust;
  trust.required = {required};
  CHECK(parse_trust(serialize_trust(trust), "trust.json") == trust);
  const std::string none = R"({"schema":"kiln.trust/1","roots":{},"unsigned":[],"required":[{)"
                           R"("registry":"/","package":"*","statement":"signature","keys":[],)"
                           R"("threshold":0}]})";
  CHECK_THROWS_AS(parse_trust(none, "trust.json"), Error);
}

}  // namespace
}  // namespace kiln
