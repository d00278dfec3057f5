// SPDX-License-Identifier: Apache-2.0
//
// Check, list, and repair by publishing again, on registries that were damaged afterwards.
#include <doctest/doctest.h>

#include "built_fixture.hpp"
#include "documents/manifest.hpp"
#include "kiln/error.hpp"
#include "registry/folder/check.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/publish.hpp"
#include "registry/server/export.hpp"

namespace {

using namespace kiln;        // NOLINT(google-build-using-namespace)
using namespace kiln::test;  // NOLINT(google-build-using-namespace)
namespace fs = std::filesystem;

const auto kSilent = [](const std::string&) {};

/// A registry with one variant, and where its blobs are.
struct Sample {
  TemporaryFolder folder;
  fs::path registry = folder / "registry";
  fs::path built = write_built(folder / "built", cpu("x86-64-v3"));
  registry::Layout layout{registry / "tiny-op"};
  Descriptor index, manifest, config, layer;

  Sample() {
    registry::publish({registry, {built}, {}}, kSilent);
    index = layout.read()[0].descriptor;
    manifest = layout.read()[1].descriptor;
    const VariantManifest documents = parse_manifest(layout.read_blob(manifest, "test"), "test");
    config = documents.config;
    layer = documents.layer;
  }
  std::vector<std::string> problems() const {
    return registry::check_registry(registry, kSilent).problems;
  }
};

bool mentions(const std::vector<std::string>& problems, const std::string& text) {
  for (const std::string& problem : problems) {
    if (problem.find(text) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("check: a changed byte in any blob is found, with the file and both digests") {
  for (const auto which : {&Sample::index, &Sample::manifest, &Sample::config, &Sample::layer}) {
    Sample sample;
    const Descriptor& blob = sample.*which;
    const fs::path path = sample.layout.blob_path(blob.digest);
    std::string bytes = read_text(path);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_text(path, bytes);
    const auto problems = sample.problems();
    CHECK(mentions(problems, path.string()));
    CHECK(mentions(problems, blob.digest.str()));
    CHECK(mentions(problems, Digest::of(bytes).str()));
    // Nothing damaged is offered to others.
    CHECK_THROWS_AS(registry::export_static({sample.registry, sample.folder / "out", ""}, kSilent),
                    Error);
  }
}

TEST_CASE("check: a missing or cut blob is found") {
  for (const auto which : {&Sample::index, &Sample::manifest, &Sample::config, &Sample::layer}) {
    Sample sample;
    const fs::path path = sample.layout.blob_path((sample.*which).digest);
    const std::string bytes = read_text(path);
    fs::remove(path);
    CHECK(mentions(sample.problems(), path.string() + " is missing"));
    write_text(path, bytes.substr(1));
    CHECK(mentions(sample.problems(), path.string() + " has " + std::to_string(bytes.size() - 1)));
  }
}

TEST_CASE("publish: a damaged blob of a variant is replaced when the same variant is given again") {
  for (const auto which : {&Sample::manifest, &Sample::config, &Sample::layer}) {
    Sample sample;
    write_text(sample.layout.blob_path((sample.*which).digest), "damaged");
    CHECK_FALSE(sample.problems().empty());
    const auto again = registry::publish({sample.registry, {sample.built}, {}}, kSilent);
    CHECK_FALSE(again[0].changed);
    CHECK(sample.problems().empty());
  }
}

TEST_CASE("a dangling link in the place of index.json is refused, not an empty package") {
  Sample sample;
  fs::remove(sample.layout.index_path());
  fs::create_symlink("gone.json", sample.layout.index_path());
  CHECK(mentions(sample.problems(), "index.json: found a link"));
  const auto refuses = [](const auto& step) {
    try {
      step();
      FAIL("went past the link");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kIntegrity);
    }
  };
  refuses([&] { registry::list_registry(sample.registry); });
  refuses([&] { registry::export_static({sample.registry, sample.folder / "out", ""}, kSilent); });
  refuses([&] { registry::publish({sample.registry, {sample.folder / "built"}, {}}, kSilent); });
  CHECK(fs::is_symlink(sample.layout.index_path()));
}

TEST_CASE("check: tags that lie are found") {
  Sample sample;
  const auto references = sample.layout.read();
  SUBCASE("a version tag on the index of another version") {
    sample.layout.write({{"2", sample.index}, references[1]});
    CHECK(mentions(sample.problems(), "tiny-op@1"));
  }
  SUBCASE("a variant tag on other bytes") {
    sample.layout.write({references[0], {references[1].name, sample.config}});
    CHECK(mentions(sample.problems(), sample.manifest.digest.str()));
  }
}

TEST_CASE("read: a layout that breaks the format is an integrity error") {
  struct Row {
    const char* file;
    const char* text;
  };
  const std::vector<Row> rows = {
      {"oci-layout", R"({"imageLayoutVersion":"2.0.0"})"},
      {"oci-layout", "{}"},
      {"index.json", "{"},
      {"index.json", R"({"manifests":{}})"},
      {"index.json", R"({"manifests":[{"mediaType":"x","digest":"sha256:../../x","size":1}]})"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    Sample sample;
    write_text(sample.layout.folder() / row.file, row.text);
    CHECK_FALSE(sample.problems().empty());
    try {
      registry::publish({sample.registry, {sample.built}, {}}, kSilent);
      FAIL("a broken layout was written to");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kIntegrity);
    }
  }
}

TEST_CASE("check: entries of other tools in index.json are kept and ignored") {
  Sample sample;
  auto references = sample.layout.read();
  references.push_back({"", sample.manifest});  // oras adds children without a tag
  references.push_back({"latest", sample.index});
  sample.layout.write(references);
  write_built(sample.folder / "built", cpu("x86-64-v4"));
  registry::publish({sample.registry, {sample.folder / "built"}, {}}, kSilent);
  const auto after = sample.layout.read();
  CHECK(registry::find_tag(after, "latest") != nullptr);
  CHECK(registry::list_registry(sample.registry).size() == 1);
}

TEST_CASE("list: a registry that is not there is not found; an empty one lists nothing") {
  const TemporaryFolder folder;
  try {
    registry::list_registry(folder / "absent");
    FAIL("a missing registry was listed");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kNotFound);
  }
  fs::create_directories(folder / "registry/tiny-op/blobs/sha256");  // a publish that was killed
  CHECK(registry::list_registry(folder / "registry").empty());
  const auto problems = registry::check_registry(folder / "registry", kSilent).problems;
  CHECK(problems.size() == 1);
  CHECK(mentions(problems, "nothing is published in it"));
}

TEST_CASE("export: files stand at the URLs of the pull API, and a second export adds what is new") {
  Sample sample;
  const fs::path out = sample.folder / "out";
  const auto first = registry::export_static({sample.registry, out, "kernels"}, kSilent);
  REQUIRE(first.size() == 1);
  CHECK(first[0].name == "kernels/tiny-op");
  const fs::path repository = out / "v2/kernels/tiny-op";
  const std::string index = read_text(sample.layout.blob_path(sample.index.digest));
  CHECK(read_text(repository / "manifests/1") == index);
  CHECK(read_text(repository / "indexes/1") == index);
  CHECK(read_text(repository / "manifests" / sample.index.digest.str()) == index);
  CHECK(Digest::of(read_text(repository / "blobs" / sample.layer.digest.str())) ==
        sample.layer.digest);
  CHECK(fs::exists(repository / "manifests/1-cpu-x86-64-v3"));
  CHECK_FALSE(fs::exists(repository / "indexes/1-cpu-x86-64-v3"));
  CHECK(read_text(repository / "tags/list") ==
        R"({"name":"kernels/tiny-op","tags":["1","1-cpu-x86-64-v3"]})");

  const std::string before = tree_hash(out);
  CHECK(registry::export_static({sample.registry, out, "kernels"}, kSilent)[0].files_written == 0);
  CHECK(tree_hash(out) == before);

  write_built(sample.folder / "built", cpu("x86-64-v4"));
  const auto published =
      registry::publish({sample.registry, {sample.folder / "built"}, {}}, kSilent);
  registry::export_static({sample.registry, out, "kernels"}, kSilent);
  CHECK(Digest::of(read_text(repository / "manifests/1")) == published[0].index.digest);
  // The replaced index can still be fetched by digest.
  CHECK(read_text(repository / "manifests" / sample.index.digest.str()) == index);
}

TEST_CASE("export: a prefix or folder that cannot be meant is a usage error") {
  Sample sample;
  for (const auto& [out, prefix] :
       {std::pair{"out", "../up"}, std::pair{"out", "Upper"}, std::pair{"o\"ut", ""}}) {
    try {
      registry::export_static({sample.registry, sample.folder / out, prefix}, kSilent);
      FAIL("exported to " << out << " with " << prefix);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kUsage);
    }
  }
}

TEST_CASE("check: an index carries each variant's documents as they are") {
  Sample sample;
  const std::string bytes = sample.layout.read_blob(sample.index, "test");
  Index index = parse_index(bytes, "test");
  REQUIRE(index.variants.size() == 1);
  Variant& variant = index.variants.front();
  CHECK(variant.carried.manifest == sample.layout.read_blob(sample.manifest, "test"));
  CHECK(variant.carried.config == sample.layout.read_blob(sample.config, "test"));
  for (std::string* const text : {&variant.carried.manifest, &variant.carried.config}) {
    const std::string good = *text;
    *text += ' ';
    const std::string changed = serialize_index(index);
    const Descriptor descriptor{sample.index.media_type, Digest::of(changed), changed.size()};
    sample.layout.write_blob(descriptor, changed);
    std::vector<Tag> tags = sample.layout.read();
    tags[0].descriptor = descriptor;
    sample.layout.write(tags);
    CHECK(mentions(sample.problems(), "the index carries " + Digest::of(*text).str()));
    *text = good;
  }
}
