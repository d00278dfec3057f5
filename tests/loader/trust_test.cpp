// SPDX-License-Identifier: Apache-2.0
//
// The pure parts of trust: canonical JSON, keys, times, delegations, and who may write trust.json.
#include <doctest/doctest.h>
#include <openssl/evp.h>

#include <cctype>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "documents/json.hpp"
#include "scratch.hpp"
#include "settings/trust_file.hpp"
#include "signed.hpp"
#include "trust/canonical.hpp"
#include "trust/metadata.hpp"
#include "trust/metadata_folder.hpp"
#include "trust/signature_memo.hpp"
#include "trust/trusted_set.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("canonical JSON: one spelling") {
  struct Row {
    const char* text;
    std::string canonical;
  };
  const Row rows[] = {
      {R"({ "b" : 1, "a" : [ ] })", R"({"a":[],"b":1})"},
      {R"({"z":{},"é":2,"":true,"Z":null})", R"({"":true,"Z":null,"z":{},"é":2})"},
      {R"(["\n\u0001\/\"\\ü", -3, 18446744073709551615])",
       std::string("[\"\n\x01/\\\"\\\\ü\",-3,18446744073709551615]")},
  };
  for (const Row& row : rows) {
    CHECK(trust::canonical_json(parse_json(row.text, "text")) == row.canonical);
  }
  CHECK_CONTAINS(error_of([] { trust::canonical_json(Json(1.5)); }).what(), "not an integer: 1.5");
}

TEST_CASE("keys: each type verifies its own signatures and no others") {
  const std::string text = "what is signed";
  for (const char* type : {"ed25519", "ecdsa", "rsa"}) {
    CAPTURE(type);
    const Signer signer(type);
    const std::string signature = signer.sign(text);
    CHECK(trust::verifies(signer.key(), text, signature));
    CHECK_FALSE(trust::verifies(signer.key(), "something else", signature));
    CHECK_FALSE(trust::verifies(Signer(type).key(), text, signature));
    CHECK_FALSE(trust::verifies(signer.key(), text, signature.substr(2)));
    CHECK_FALSE(trust::verifies(signer.key(), text, signature + "00"));
    CHECK_FALSE(trust::verifies(signer.key(), text, "xy" + signature.substr(2)));
    CHECK_FALSE(trust::verifies(signer.key(), text, ""));
    trust::Key other = signer.key();
    other.scheme = "sphincs+";
    CHECK_FALSE(trust::verifies(other, text, signature));
    other = signer.key();
    other.value = "no key";
    CHECK_FALSE(trust::verifies(other, text, signature));
  }
  // One signature in 256 begins with a zero.
  const Signer signer("rsa");
  std::string signature = signer.sign(text);
  while (!signature.starts_with("00")) signature = signer.sign(text);
  CHECK(trust::verifies(signer.key(), text, signature));
  CHECK_FALSE(trust::verifies(signer.key(), text, signature.substr(2)));
  // The test vector 2 of RFC 8032.
  const trust::Key known = {"ed25519", "ed25519",
                            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"};
  CHECK(trust::verifies(known, "\x72",
                        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
                        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"));
}

TEST_CASE("keys: what this OpenSSL cannot verify is not said to be unsigned") {
  const Signer signer;
  const Json root = [&] {
    Json made = {{"_type", "root"},
                 {"spec_version", "1.0.31"},
                 {"version", 1},
                 {"expires", "2100-01-01T00:00:00Z"}};
    made["keys"] = {{"a",
                     {{"keytype", "ed25519"},
                      {"scheme", "ed25519"},
                      {"keyval", {{"public", signer.key().value}}}}}};
    for (const char* role : {"root", "timestamp", "snapshot", "targets"}) {
      made["roles"][role] = {{"keyids", {"a"}}, {"threshold", 1}};
    }
    return made;
  }();
  const std::string text = dump_json(
      {{"signatures", {{{"keyid", "a"}, {"sig", signer.sign(trust::canonical_json(root))}}}},
       {"signed", root}});
  const auto trusts = [&] { trust::TrustedSet(text, "a registry", {}); };
  CHECK_NOTHROW(trusts());
  CHECK(trust::why_not_verifiable(signer.key()).empty());
  // No algorithm of the default provider has this property.
  REQUIRE(EVP_set_default_properties(nullptr, "fips=yes") == 1);
  const std::string why = trust::why_not_verifiable(signer.key());
  const Error error = error_of(trusts);
  REQUIRE(EVP_set_default_properties(nullptr, "") == 1);
  CHECK_CONTAINS(why, "verifies no signature of type \"ed25519\"");
  CHECK(error.code() == ErrorCode::kTrust);
  CHECK_CONTAINS(error.what(), "signed by 0 of the keys that may, expected 1; this OpenSSL");
  CHECK_NOTHROW(trusts());
}

TEST_CASE("times: one spelling, both ways") {
  CHECK(trust::parse_time("1970-01-01T00:00:00Z") == 0);
  CHECK(trust::parse_time("2024-02-29T23:59:59Z") == 1709251199);
  CHECK(trust::to_text(1709251199) == "2024-02-29T23:59:59Z");
  for (const char* text :
       {"", "2023-02-29T00:00:00Z", "2024-13-01T00:00:00Z", "2024-01-01 00:00:00Z",
        "2024-01-01T24:00:00Z", "2024-01-01T00:00:00", "2024-01-01T00:00:00+0",
        "+024-01-01T00:00:00Z", "2024-1-01T00:00:00ZZ"}) {
    CAPTURE(text);
    CHECK_FALSE(trust::parse_time(text));
  }
}

TEST_CASE("delegations: which names a role may speak of") {
  struct Row {
    const char* pattern;
    const char* name;
    bool covers;
  };
  const Row rows[] = {
      {"acme-*/*", "acme-gelu/1", true},
      {"acme-*/*", "acme-gelu/1/2", false},
      {"*", "acme/1", false},
      {"*/*", "acme/1", true},
      {"acme/?", "acme/1", true},
      {"acme/?", "acme/12", false},
      {"acme/[12]", "acme/2", true},
      {"acme/\\*", "acme/*", false},
      {"ACME/*", "acme/1", false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.pattern);
    CAPTURE(row.name);
    trust::Delegation delegation;
    delegation.paths = {row.pattern};
    CHECK(delegation.covers(row.name, Digest::of(row.name).hex()) == row.covers);
  }
  trust::Delegation bin;
  bin.hash_prefixes = {Digest::of("acme/1").hex().substr(0, 2)};
  CHECK(bin.covers("acme/1", Digest::of("acme/1").hex()));
  bin.hash_prefixes = {"zz"};
  CHECK_FALSE(bin.covers("acme/1", Digest::of("acme/1").hex()));
}

TEST_CASE("file names of roles: no way out of their folder") {
  CHECK(trust::file_name("acme") == "acme");
  CHECK(trust::file_name("../x/ü") == "..%2Fx%2F%C3%BC");
  CHECK(trust::file_name(std::string("\0\n", 2)) == "%00%0A");
  CHECK(error_of([] { trust::file_name(std::string(201, 'a')); }).code() == ErrorCode::kTrust);
}

TEST_CASE("signatures: a key counts once, whatever it is called") {
  const Signer one;
  const Signer other;
  Json root = {{"_type", "root"},
               {"spec_version", "1.0.31"},
               {"version", 1},
               {"expires", "2100-01-01T00:00:00Z"}};
  const auto key = [](const Signer& signer) {
    return Json{{"keytype", "ed25519"},
                {"scheme", "ed25519"},
                {"keyval", {{"public", signer.key().value}}}};
  };
  root["keys"] = {{"a", key(one)}, {"b", key(one)}, {"c", key(other)}};
  for (const char* role : {"root", "timestamp", "snapshot", "targets"}) {
    root["roles"][role] = {{"keyids", {"a", "b", "c"}}, {"threshold", 2}};
  }
  const std::string canonical = trust::canonical_json(root);
  const auto with = [&](const Json& signatures) {
    return dump_json({{"signatures", signatures}, {"signed", root}});
  };
  const Json a = {{"keyid", "a"}, {"sig", one.sign(canonical)}};
  const Json b = {{"keyid", "b"}, {"sig", one.sign(canonical)}};
  const Json c = {{"keyid", "c"}, {"sig", other.sign(canonical)}};
  const auto trusts = [&](const Json& signatures) {
    trust::TrustedSet(with(signatures), "a registry", {});
  };
  CHECK_NOTHROW(trusts({a, c}));
  CHECK_NOTHROW(trusts({a, b, c}));
  CHECK_CONTAINS(error_of([&] { trusts({a, b}); }).what(), "signed by 1 of the keys");
  CHECK_CONTAINS(error_of([&] { trusts({a, a, c}); }).what(), "signs a second time");
}

TEST_CASE("signatures: one key in two spellings is one key") {
  for (const char* type : {"ed25519", "ecdsa", "rsa"}) {
    CAPTURE(type);
    const Signer signer(type);
    trust::Key other = signer.key();
    if (other.type == "ed25519") {
      for (char& c : other.value)
        c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    } else {
      other.value.insert(0, "a comment\n");
    }
    REQUIRE(other.value != signer.key().value);
    CHECK(trust::verifies(other, "text", signer.sign("text")));
    CHECK(trust::is_same_key(signer.key(), other));
    CHECK_FALSE(trust::is_same_key(Signer(type).key(), other));
    trust::Key none = other;
    none.value = "none";
    CHECK_FALSE(trust::is_same_key(none, other));

    Json root = {{"_type", "root"},
                 {"spec_version", "1.0.31"},
                 {"version", 1},
                 {"expires", "2100-01-01T00:00:00Z"}};
    const auto add = [&](const char* id, const trust::Key& key) {
      root["keys"][id] = {
          {"keytype", key.type}, {"scheme", key.scheme}, {"keyval", {{"public", key.value}}}};
    };
    add("a", signer.key());
    add("b", other);
    for (const char* role : {"root", "timestamp", "snapshot", "targets"}) {
      root["roles"][role] = {{"keyids", {"a", "b"}}, {"threshold", 2}};
    }
    const std::string signature = signer.sign(trust::canonical_json(root));
    const std::string document =
        dump_json({{"signatures",
                    {{{"keyid", "a"}, {"sig", signature}}, {{"keyid", "b"}, {"sig", signature}}}},
                   {"signed", root}});
    CHECK_CONTAINS(error_of([&] { trust::TrustedSet(document, "a registry", {}); }).what(),
                   "signed by 1 of the keys");
  }
}

TEST_CASE("signature memo: what was verified, as long as nobody else may write it") {
  Scratch scratch;
  const fs::path file = scratch / "verified";
  const Digest fact = Digest::of("good");
  trust::SignatureMemo memo(file);
  CHECK_FALSE(memo.knows(fact));
  memo.save();
  CHECK_FALSE(fs::exists(file));  // nothing was learnt
  memo.learn(fact);
  memo.save();
  CHECK(read_file(file) == fact.hex() + "\n");
  CHECK(trust::SignatureMemo(file).knows(fact));
  CHECK_FALSE(trust::SignatureMemo(file).knows(Digest::of("other")));
  CHECK_FALSE(trust::SignatureMemo().knows(fact));

  fs::permissions(file, fs::perms(0666));
  CHECK_FALSE(trust::SignatureMemo(file).knows(fact));
  for (const std::string& text :
       {std::string("\n"), "x" + fact.hex() + "\n", std::string(70'000, 'a')}) {
    fs::remove(file);
    write_file(file, text);
    trust::SignatureMemo damaged(file);
    CHECK_FALSE(damaged.knows(fact));
    damaged.learn(fact);
    damaged.save();
    CHECK(trust::SignatureMemo(file).knows(fact));
  }
  for (int i = 0; i < 1500; ++i) memo.learn(Digest::of(std::to_string(i)));
  memo.save();
  CHECK(fs::file_size(file) <= 65'000);
  CHECK(trust::SignatureMemo(file).knows(Digest::of("1499")));

  fs::remove(file);
  fs::create_directory(file);  // cannot be written: it is found out again
  trust::SignatureMemo nowhere(file);
  nowhere.learn(fact);
  CHECK_NOTHROW(nowhere.save());
}

TEST_CASE("signature memo: a fact is of these bytes, these keys and this threshold") {
  Scratch scratch;
  Signed metadata(scratch / "registry");
  const std::string& root = metadata.first_root();
  trust::SignatureMemo memo(scratch / "verified");
  CHECK_NOTHROW(trust::TrustedSet(root, "a registry", {}, &memo));
  CHECK_NOTHROW(trust::TrustedSet(root, "a registry", {}, &memo));
  const auto refused = [&](const std::function<void(Json&)>& change) {
    Json changed = parse_json(root, "root");
    change(changed);
    const Error error =
        error_of([&] { trust::TrustedSet(dump_json(changed), "a registry", {}, &memo); });
    CHECK_CONTAINS(error.what(), "signed by 0 of the keys");
  };
  refused([](Json& json) { json["signed"]["version"] = 2; });
  refused([](Json& json) { json["signed"]["expires"] = "2100-01-01T00:00:00Z"; });
  refused([](Json& json) { json["signatures"][0]["sig"] = std::string(128, '0'); });
  refused([](Json& json) { json["signatures"] = Json::array(); });
}

TEST_CASE("trust.json: reads back, and is refused where others may write to it") {
  Scratch scratch;
  const Environment config("KILN_CONFIG", (scratch / "config.json").string());
  CHECK(read_trust() == Trust());
  update_trust([](Trust& trust) {
    trust.roots["https://example.org"] = "{\"\\u00fc\":\n1}";
    trust.unsigned_registries = {"/srv/kiln/", "http://127.0.0.1"};
  });
  const Trust trust = read_trust();
  REQUIRE(trust.root_of("https://example.org") != nullptr);
  CHECK(*trust.root_of("https://example.org") == "{\"\\u00fc\":\n1}");
  CHECK(trust.root_of("https://example.org/more") == nullptr);
  for (const char* registry : {"/srv/kiln", "/srv/kiln/sub", "http://127.0.0.1:5000/x"}) {
    CHECK(trust.is_unsigned(registry));
  }
  for (const char* registry : {"/srv/kilns", "/srv", "http://127.0.0.12", "https://127.0.0.1"}) {
    CHECK_FALSE(trust.is_unsigned(registry));
  }
  const Trust no_host{{}, {"https://", "http:"}};  // as $KILN_UNSIGNED may be by mistake
  for (const char* registry :
       {"https://example.org", "https://example.org/x", "http://127.0.0.1"}) {
    CHECK_FALSE(no_host.is_unsigned(registry));
  }
  fs::permissions(scratch / "trust.json", fs::perms(0666));
  CHECK_CONTAINS(error_of([] { read_trust(); }).what(), "everyone may write to it");
  fs::permissions(scratch / "trust.json", fs::perms(0664));
  CHECK_CONTAINS(error_of([] { read_trust(); }).what(), "its group may write to it");
  write_file(scratch / "trust.json", "{}");
  CHECK(error_of([] { read_trust(); }).code() == ErrorCode::kUsage);
}

TEST_CASE("trust.json: what was meant to require something and is not known is refused") {
  const std::string empty = R"("schema":"kiln.trust/1","roots":{},"unsigned":[])";
  CHECK(parse_trust("{" + empty + "}", "trust.json") == Trust());
  const Error misspelt =
      error_of([&] { parse_trust("{" + empty + R"(,"requird":[]})", "trust.json"); });
  CHECK(misspelt.code() == ErrorCode::kUsage);
  CHECK_CONTAINS(misspelt.what(), "has \"requird\", which Kiln");
  CHECK_CONTAINS(misspelt.what(), "it knows schema, roots, unsigned, required");
  const Error inside = error_of([&] {
    parse_trust("{" + empty + R"(,"required":[{"registry":"/","package":"*","statement":"sbom",)" +
                    R"("keys":["k"],"threshold":1,"treshold":2}]})",
                "trust.json");
  });
  CHECK_CONTAINS(inside.what(), "required[0]: has \"treshold\"");
}

TEST_CASE("trust.json: a registry that nobody could be called is refused") {
  struct Row {
    const char* members;
    const char* found;
  };
  const Row rows[] = {
      {R"("roots":{},"unsigned":["build/registry"])", R"(unsigned[0]: is "build/registry")"},
      {R"("roots":{},"unsigned":[""])", R"(unsigned[0]: is "")"},
      {R"("roots":{},"unsigned":["https://"])", R"(unsigned[0]: is "https://")"},
      {R"("roots":{},"unsigned":["file:///srv/kiln"])", R"(unsigned[0]: is "file:///srv/kiln")"},
      {R"("roots":{"srv/kiln":"{}"},"unsigned":[])", R"(roots: is "srv/kiln")"},
      {R"("roots":{},"unsigned":[],"required":[{"registry":"./kiln","package":"*",)"
       R"("statement":"sbom","keys":["k"],"threshold":1}])",
       R"(required[0].registry: is "./kiln")"},
  };
  for (const Row& row : rows) {
    const Error error = error_of([&] {
      parse_trust(R"({"schema":"kiln.trust/1",)" + std::string(row.members) + "}", "trust.json");
    });
    CHECK(error.code() == ErrorCode::kUsage);
    CHECK_CONTAINS(error.what(), row.found);
    CHECK_CONTAINS(error.what(), "expected an absolute folder or a URL, like /srv/kiln");
  }
}

}  // namespace
}  // namespace kiln::test
