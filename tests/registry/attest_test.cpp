// SPDX-License-Identifier: Apache-2.0
//
// What is too large for a client to read is not signed, and leaves nothing behind.
#include <doctest/doctest.h>

#include "built_fixture.hpp"
#include "kiln/error.hpp"
#include "registry/attest/attest.hpp"
#include "registry/folder/publish.hpp"

namespace kiln::registry {
namespace {

void ignore(const std::string& /*line*/) {}

/// A registry with a version of one variant, of so many files.
std::filesystem::path publish_files(int count, const test::TemporaryFolder& folder) {
  const test::Built built = test::cpu("x86-64-v3");
  std::vector<test::TarEntry> entries = built.entries();
  for (int i = static_cast<int>(entries.size()); i < count; ++i) {
    entries.push_back({"q/" + std::to_string(1'000'000 + i), "x"});  // after the others: sorted
  }
  test::Tamper tamper;
  tamper.layer = [&](std::string& layer) { layer = test::make_layer(entries); };
  tamper.config = [&](Config& config) {
    config.files.clear();
    for (const test::TarEntry& each : entries) {
      config.files.push_back({each.path, Digest::of(each.bytes), each.bytes.size()});
    }
  };
  publish({folder / "registry", {test::write_built(folder / "built", built, tamper)}, {}}, ignore);
  return folder / "registry";
}

TEST_CASE("an SBOM that clients would not read is refused, with its size and a way on") {
  const test::TemporaryFolder folder;
  AttestRequest request;
  request.registry = publish_files(3000, folder);
  request.versions = {"tiny-op", 1};
  request.keys.push_back(PrivateKey::make(KeyType::kEcdsa));
  request.kinds = {"signature", "sbom"};
  const std::string before = test::tree_hash(request.registry);
  std::string text;
  try {
    attest(request, ignore);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUsage);
    text = error.what();
  }
  CAPTURE(text);
  CHECK(text.find("attest tiny-op@1: the sbom of its 3000 files would have ") == 0);
  CHECK(text.find(" bytes, clients read at most 2097152; nothing was signed.") != text.npos);
  CHECK(text.find("or sign the other statements: --only signature") != text.npos);
  CHECK(test::tree_hash(request.registry) == before);

  request.kinds = {"signature"};
  CHECK(attest(request, ignore).front().added.size() == 1);
}

}  // namespace
}  // namespace kiln::registry
