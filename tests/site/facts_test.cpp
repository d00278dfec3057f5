// SPDX-License-Identifier: Apache-2.0
//
// What is gathered out of a registry, and what is said of a change between versions.
#include <doctest/doctest.h>

#include <algorithm>

#include "built_fixture.hpp"
#include "kiln/error.hpp"
#include "registry/folder/card.hpp"
#include "registry/folder/check.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/publish.hpp"
#include "registry/site/facts.hpp"
#include "registry/site/write.hpp"

namespace {

using namespace kiln;            // NOLINT(google-build-using-namespace)
using namespace kiln::registry;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

void tell_nobody(const std::string&) {}

fs::path published(const test::TemporaryFolder& folder) {
  test::Built one = test::cpu("x86-64-v3");
  one.schema = R"({"name": "tiny-op", "license": "MIT", "summary": "out = 2 x", "ops": [
    {"name": "twice", "doc": "d", "tensors": [
      {"name": "x", "dtype": ["float32", "float16"], "shape": ["N", 4]},
      {"name": "out", "dtype": "x", "shape": ["N"], "output": true}]}]})";
  test::write_built(folder / "built", one);
  test::Built gpu = test::cuda("12.9", "sm_90a");
  gpu.schema = one.schema;
  test::write_built(folder / "built", gpu);
  test::Built two = one;
  two.version = 2;
  test::write_built(folder / "built2", two);
  publish({folder / "registry", {folder / "built", folder / "built2"}, {}}, tell_nobody);
  return folder / "registry";
}

}  // namespace

TEST_CASE("site: facts of a version come from its documents and its schema") {
  const test::TemporaryFolder folder;
  const SiteFacts site = gather_site(published(folder), tell_nobody);
  REQUIRE(site.packages.size() == 1);
  const PackageFacts& package = site.packages.front();
  REQUIRE(package.versions.size() == 2);
  const VersionFacts& first = package.versions.front();
  CHECK(first.problems.empty());
  CHECK(first.variants.size() == 2);
  CHECK(first.variants.back().download > 0);
  CHECK(first.variants.back().unpacked > 0);
  CHECK(first.vouched == SignedState::kNobody);
  CHECK(site.signed_until.empty());
  CHECK(package.current().version == 2);
  CHECK(package.versions.back().changes ==
        std::vector<std::string>{"Variants that are gone: cu12.9-sm_90a-x86_64"});
}

TEST_CASE("site: a card that is hung on a version is its card, the last one counts") {
  const test::TemporaryFolder folder;
  const fs::path registry = published(folder);
  const auto hang = [&](const std::string& text, int version = 0) {
    test::write_text(folder / "CARD.md", text);
    return describe(registry, {"tiny-op", version}, folder / "CARD.md");
  };
  CHECK(hang("one").changed);
  CHECK_FALSE(hang("one").changed);
  CHECK(hang("two").version == 2);
  CHECK(hang("one").changed);
  CHECK(hang("first", 1).version == 1);
  const SiteFacts site = gather_site(registry, tell_nobody);
  CHECK(site.packages.front().versions[0].card == "first");
  CHECK(site.packages.front().versions[1].card == "one");
  test::write_text(folder / "CARD.md", "\xff");
  const struct {
    PackageVersions wanted;
    std::string file;
    ErrorCode code;
  } refused[] = {{{"tiny-op", 3}, "built", ErrorCode::kUsage},
                 {{"tiny-op", 1}, "CARD.md", ErrorCode::kUsage},
                 {{"tiny-op", 1}, "none", ErrorCode::kUsage}};
  for (const auto& each : refused) {
    CAPTURE(each.file);
    try {
      describe(registry, each.wanted, folder / each.file);
      FAIL("was not refused");
    } catch (const Error& error) {
      CHECK(error.code() == each.code);
    }
  }
  test::write_text(folder / "CARD.md", "x");
  for (const PackageVersions& wanted :
       {PackageVersions{"tiny-op", 3}, PackageVersions{"other", 0}}) {
    try {
      describe(registry, wanted, folder / "CARD.md");
      FAIL("was not refused");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kNotFound);
    }
    CHECK_FALSE(fs::exists(registry / "other"));
  }
}

TEST_CASE("site: one damaged index leaves the rest of the site, which tells of it") {
  const test::TemporaryFolder folder;
  const fs::path registry = published(folder);
  fs::create_directories(registry / "broken-op");
  fs::copy(registry / "tiny-op", registry / "other-op", fs::copy_options::recursive);
  test::write_text(registry / "broken-op" / "oci-layout", R"({"imageLayoutVersion": "1.0.0"})");
  test::write_text(registry / "broken-op" / "index.json", "{");
  const Layout layout(registry / "tiny-op");
  for (const Tag& tag : layout.read()) {
    if (tag.name != "1") continue;
    fs::permissions(layout.blob_path(tag.descriptor.digest), fs::perms::owner_all);
    test::write_text(layout.blob_path(tag.descriptor.digest), "damaged");
  }
  CHECK_THROWS_AS(list_registry(registry), Error);
  const SiteReport report = write_site({registry, folder / "out"}, tell_nobody);
  CHECK(report.packages == 2);
  CHECK(report.versions == 3);
  REQUIRE(report.problems.size() == 2);
  CHECK(report.problems[0].find("broken-op/index.json: not JSON") != std::string::npos);
  CHECK(report.problems[1].find("index tiny-op@1") != std::string::npos);
  const std::string front = test::read_text(folder / "out" / "index.html");
  CHECK(front.find("Not shown: ") != std::string::npos);
  CHECK(front.find("packages/tiny-op/index.html") != std::string::npos);
  CHECK(fs::exists(folder / "out/packages/tiny-op/2.html"));
  CHECK_FALSE(fs::exists(folder / "out/packages/tiny-op/1.html"));
}

TEST_CASE("site: what changed between versions") {
  VersionFacts before;
  before.license = "MIT";
  before.min_loader = "0.1.0";
  before.ops = {{"kept", "", {{"x", "float32", "[N]", "", false, false}}, {}},
                {"gone", "", {}, {}},
                {"other", "", {{"x", "float32", "[N]", "", false, false}}, {}}};
  VersionFacts after = before;
  CHECK(changes_between(before, after).empty());
  after.license = "Apache-2.0";
  after.min_loader = "0.2.0";
  after.ops.erase(after.ops.begin() + 1);
  after.ops[1].tensors[0].dtype = "float32, float16";
  after.ops.push_back({"new", "", {}, {}});
  CHECK(changes_between(before, after) ==
        std::vector<std::string>{"New ops: new", "Ops that are gone: gone",
                                 "Ops with other arguments: other", "Licence: MIT -> Apache-2.0",
                                 "Oldest Kiln: 0.1.0 -> 0.2.0"});
}

TEST_CASE("site: a version taken back or not signed is not the current one") {
  PackageFacts package{"p", {{.version = 1}, {.version = 2}, {.version = 3}}};
  CHECK(package.current().version == 3);
  package.versions[2].yanked = "wrong";
  CHECK(package.current().version == 2);
  package.versions[1].vouched = SignedState::kNone;
  CHECK(package.current().version == 1);
  package.versions[1].vouched = SignedState::kAnother;  // clients get what was signed of it
  CHECK(package.current().version == 2);
  package.versions[0].yanked = package.versions[1].yanked = "wrong";
  CHECK(package.current().version == 3);
}

TEST_CASE(
    "site: a damaged blob is a problem of its version, and the registry is not written into") {
  const test::TemporaryFolder folder;
  const fs::path registry = published(folder);
  for (const auto& entry : fs::directory_iterator(registry / "tiny-op" / "blobs" / "sha256")) {
    if (test::read_text(entry.path()).starts_with("{")) continue;
    fs::permissions(entry.path(), fs::perms::owner_all);
    test::write_text(entry.path(), "damaged");
  }
  const SiteFacts site = gather_site(registry, tell_nobody);
  REQUIRE_FALSE(site.packages.front().versions.front().problems.empty());
  CHECK(site.packages.front().versions.front().ops.empty());
  CHECK_THROWS_AS(write_site({registry, registry}, tell_nobody), Error);
  CHECK_THROWS_AS(write_site({registry, folder / "out", "a\nb"}, tell_nobody), Error);
  CHECK_FALSE(fs::exists(folder / "out"));
}
