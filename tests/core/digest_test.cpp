// SPDX-License-Identifier: Apache-2.0
#include "base/digest.hpp"

#include <string>
#include <utility>

#include "samples.hpp"

namespace kiln {

using test::check_throws;

TEST_CASE("digest: the vectors of FIPS 180-4") {
  const struct {
    std::string bytes;
    std::string hex;
  } rows[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {std::string(1000000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (const auto& row : rows) {
    CHECK(Digest::of(row.bytes).hex() == row.hex);
    CHECK(Digest::of(row.bytes) == Digest::parse("sha256:" + row.hex));
    // Piece by piece, at sizes around the block of 64 bytes.
    for (const std::size_t piece : {std::size_t{1}, std::size_t{63}, std::size_t{64}}) {
      Sha256 hash;
      for (std::size_t at = 0; at < row.bytes.size(); at += piece) {
        hash.update(std::string_view(row.bytes).substr(at, piece));
      }
      CHECK(hash.finish().hex() == row.hex);
    }
  }
}

TEST_CASE("digest: only sha256 and 64 lower-case hex digits parse") {
  const std::string hex(64, 'a');
  CHECK(Digest::parse("sha256:" + hex).hex() == hex);
  CHECK(Digest::parse("sha256:" + hex).str() == "sha256:" + hex);
  CHECK(Digest::parse("sha256:" + hex).brief() == std::string(12, 'a'));
  CHECK(Digest().empty());
  for (const std::string& text :
       {std::string(), hex, "sha256:" + hex + "a", "sha256:" + hex.substr(1), "SHA256:" + hex,
        "sha512:" + hex + hex, "sha256:" + std::string(64, 'A'), "sha256:" + std::string(64, 'g'),
        std::string("sha256:../../etc/passwd"), "sha256:" + hex.substr(2) + "/x", " sha256:" + hex,
        "sha256:" + hex.substr(1) + std::string(1, '\0')}) {
    check_throws(ErrorCode::kIntegrity, {"digest \"", "64 lower-case hex"},
                 [&] { Digest::parse(text); });
  }
}

TEST_CASE("digest: a hash moves, and is spent once it is finished") {
  Sha256 first;
  first.update("ab");
  Sha256 second = std::move(first);
  second.update("c");
  CHECK(second.finish() == Digest::of("abc"));
  check_throws(ErrorCode::kInternal, {"finish"}, [&] { second.finish(); });
  check_throws(ErrorCode::kInternal, {"update"}, [&] { second.update("x"); });
}

TEST_CASE("error: every code has a word of its own") {
  const std::pair<ErrorCode, std::string_view> rows[] = {
      {ErrorCode::kInternal, "internal"},
      {ErrorCode::kUsage, "usage"},
      {ErrorCode::kNoVariant, "no-variant"},
      {ErrorCode::kNotFound, "not-found"},
      {ErrorCode::kNetwork, "network"},
      {ErrorCode::kIntegrity, "integrity"},
      {ErrorCode::kCache, "cache"},
      {ErrorCode::kUpgrade, "upgrade"},
      {ErrorCode::kLoad, "load"},
      {ErrorCode::kInvalidCall, "invalid-call"},
      {ErrorCode::kDevice, "device"},
      {ErrorCode::kBuild, "build"},
      {ErrorCode::kConflict, "conflict"},
  };
  for (const auto& [code, word] : rows) CHECK(to_string(code) == word);
}

}  // namespace kiln
