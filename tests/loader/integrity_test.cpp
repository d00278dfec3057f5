// SPDX-License-Identifier: Apache-2.0
//
// Integrity: one wrong bit anywhere between the registry and the process is refused, with the file
// and both digests in the message, and nothing is loaded.
#include <doctest/doctest.h>

#include <functional>

#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "install/install.hpp"
#include "kiln/kiln.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "store/repair.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

/// The descriptors of a version with one variant.
struct Parts {
  Descriptor index;
  Descriptor manifest;
  Descriptor config;
  Descriptor layer;
};

Parts publish_one(Published& published) {
  Parts parts;
  parts.index = published.publish({cpu_draft(sample_library())});
  const Draft& draft = published.drafts().at(0);
  parts.manifest = draft.variant.manifest;
  const VariantManifest manifest = parse_manifest(draft.manifest_bytes, "manifest");
  parts.config = manifest.config;
  parts.layer = manifest.layer;
  return parts;
}

using Pick = std::function<const Descriptor&(const Parts&)>;
struct Place {
  const char* name;
  Pick pick;
};
const std::vector<Place>& places() {
  static const std::vector<Place> all{
      {"index", [](const Parts& parts) -> const Descriptor& { return parts.index; }},
      {"manifest", [](const Parts& parts) -> const Descriptor& { return parts.manifest; }},
      {"config", [](const Parts& parts) -> const Descriptor& { return parts.config; }},
      {"layer", [](const Parts& parts) -> const Descriptor& { return parts.layer; }},
  };
  return all;
}

void check_refused(const Error& error, const fs::path& file, const Digest& promised,
                   const Digest& found) {
  CHECK(error.code() == ErrorCode::kIntegrity);
  CHECK_CONTAINS(error.what(), file.string());
  CHECK_CONTAINS(error.what(), promised.str());
  CHECK_CONTAINS(error.what(), found.str());
}

TEST_CASE("integrity: one flipped bit in the registry is refused, and nothing is loaded") {
  for (const Place& place : places()) {
    CAPTURE(place.name);
    Scratch scratch;
    Published published(scratch / "registry");
    const Descriptor target = place.pick(publish_one(published));
    const fs::path file = published.blob("sample", target.digest);
    damage(file);
    const int before = loaded_libraries();
    const Request request{
        .version = 1, .registry = published.root().string(), .cache = scratch / "cache"};
    const Error error = error_of([&] { get_kernel("sample", request); });
    check_refused(error, file, target.digest, Digest::of(read_file(file)));
    CHECK(loaded_libraries() == before);
    CHECK_FALSE(Cache(scratch / "cache").has_blob(target.digest));
  }
}

TEST_CASE("integrity: one flipped bit in the cache is refused, and a refresh repairs it") {
  for (const Place& place : places()) {
    CAPTURE(place.name);
    Scratch scratch;
    Published published(scratch / "registry");
    const Parts parts = publish_one(published);
    Request request{
        .version = 1, .registry = published.root().string(), .cache = scratch / "cache"};
    const Installed installed = install("sample", request);
    const Descriptor target = place.pick(parts);
    const fs::path file = Cache(scratch / "cache").blob_path(target.digest);
    damage(file);
    fs::remove_all(installed.package.folder);  // so that the layer is read again
    const int before = loaded_libraries();
    const Error error = error_of([&] { get_kernel("sample", request); });
    check_refused(error, file, target.digest, Digest::of(read_file(file)));
    CHECK_CONTAINS(error.what(), "kiln cache repair");
    CHECK(loaded_libraries() == before);

    request.refresh = true;
    CHECK(get_kernel("sample", request).version() == 1);
    CHECK(Digest::of(read_file(file)) == target.digest);
  }
}

TEST_CASE(
    "integrity: one flipped bit in the unpacked library is refused, and a refresh repairs it") {
  Scratch scratch;
  Published published(scratch / "registry");
  publish_one(published);
  Request request{.version = 1, .registry = published.root().string(), .cache = scratch / "cache"};
  const Installed installed = install("sample", request);
  const Digest promised = Digest::of(read_file(installed.package.library));
  damage(installed.package.library);
  const Digest found = Digest::of(read_file(installed.package.library));
  const int before = loaded_libraries();
  const Error error = error_of([&] { get_kernel("sample", request); });
  check_refused(error, installed.package.library, promised, found);
  CHECK(loaded_libraries() == before);

  const std::vector<CheckedFile> checked = verify_installed(Cache(scratch / "cache"));
  CHECK(checked.size() == 6);  // index, manifest, config, layer, LICENSE, library
  int damaged = 0;
  for (const CheckedFile& file : checked) {
    if (file.problem.empty()) continue;
    ++damaged;
    CHECK(file.file == installed.package.library);
    CHECK(file.subject == "sample@1 cpu-base");
    CHECK_CONTAINS(file.problem, found.str());
  }
  CHECK(damaged == 1);

  request.refresh = true;
  CHECK(get_kernel("sample", request).version() == 1);
  CHECK(Digest::of(read_file(installed.package.library)) == promised);
}

TEST_CASE("integrity: a library that was loaded survives what happens to its file") {
  Scratch scratch;
  Published published(scratch / "registry");
  publish_one(published);
  const Kernel kernel = get_kernel(
      "sample", {.version = 1, .registry = published.root().string(), .cache = scratch / "cache"});
  damage(kernel.library());
  fs::resize_file(kernel.library(), 0);
  CHECK(kernel.op("add").workspace_bytes(std::vector<Tensor>(2)) == 64);
}

TEST_CASE("integrity: a published version never changes") {
  Scratch scratch;
  Published published(scratch / "registry");
  const Draft first = cpu_draft(sample_library(), "sample", 1, "cpu-one");
  const Draft second = cpu_draft(sample_library(), "sample", 1, "cpu-two");
  published.publish({first, second});
  Request request{.version = 1, .registry = published.root().string(), .cache = scratch / "cache"};
  install("sample", request);
  request.refresh = true;

  published.publish({cpu_draft(sample_library(), "sample", 1, "cpu-one"), second});
  const Error changed = error_of([&] { install("sample", request); });
  CHECK(changed.code() == ErrorCode::kIntegrity);
  CHECK_CONTAINS(changed.what(), "variant cpu-one is now sha256:");
  CHECK_CONTAINS(changed.what(), "a published version never changes");

  published.publish({first});
  const Error gone = error_of([&] { install("sample", request); });
  CHECK(gone.code() == ErrorCode::kIntegrity);
  CHECK_CONTAINS(gone.what(), "variant cpu-two is gone");

  published.publish({second, first, cpu_draft(sample_library(), "sample", 1, "cpu-three")});
  CHECK(install("sample", request).choice.version.index.variants.size() == 3);
}

TEST_CASE("integrity: an index that speaks of another package or version is refused") {
  for (const auto& [name, version] : {std::pair{"other", 1}, std::pair{"sample", 2}}) {
    Scratch scratch;
    Published published(scratch / "registry");
    Draft draft = cpu_draft(sample_library());
    published.add(draft);
    Index index{.name = name, .version = version, .variants = {draft.variant}};
    const std::string bytes = serialize_index(index);
    published.publish({draft});
    // The tag 1 of sample now names the other document.
    const Descriptor swapped = published.put("sample", bytes, kMediaTypeIndex);
    Json layout = Json::parse(read_file(published.root() / "sample" / "index.json"));
    layout["manifests"][0]["digest"] = swapped.digest.str();
    layout["manifests"][0]["size"] = swapped.size;
    write_file(published.root() / "sample" / "index.json", layout.dump());
    const Error error = error_of([&] {
      install("sample",
              {.version = 1, .registry = published.root().string(), .cache = scratch / "cache"});
    });
    CHECK(error.code() == ErrorCode::kIntegrity);
    CHECK_CONTAINS(error.what(), "it is the one of ");
  }
}

TEST_CASE("integrity: a config that does not keep the index's promise is refused") {
  Scratch scratch;
  Published published(scratch / "registry");
  Draft draft = cpu_draft(sample_library());
  published.add(draft);
  draft.variant.needs.glibc = {2, 5};  // the index now promises more than the config holds
  Index index{.name = "sample", .version = 1, .variants = {draft.variant}};
  published.publish_index(index);
  const Error error = error_of([&] {
    install("sample",
            {.version = 1, .registry = published.root().string(), .cache = scratch / "cache"});
  });
  CHECK(error.code() == ErrorCode::kIntegrity);
  CHECK_CONTAINS(error.what(), "glibc");
}

TEST_CASE("integrity: an index for a newer Kiln asks for an upgrade, not for a new registry") {
  Scratch scratch;
  Published published(scratch / "registry");
  Draft draft = cpu_draft(sample_library());
  published.add(draft);
  Index index{.name = "sample", .version = 1, .variants = {draft.variant}};
  index.requires_.min_loader = "99.0.0";
  published.publish_index(index);
  const Error error = error_of([&] {
    install("sample",
            {.version = 1, .registry = published.root().string(), .cache = scratch / "cache"});
  });
  CHECK(error.code() == ErrorCode::kUpgrade);
  CHECK_CONTAINS(error.what(), "99.0.0");
}

TEST_CASE("integrity: documents that are no documents are refused") {
  const std::vector<std::string> texts{"", "{", "[]", "null", std::string(5u << 20, ' ')};
  for (const std::string& text : texts) {
    CAPTURE(text.substr(0, 10));
    Scratch scratch;
    Published published(scratch / "registry");
    published.publish({cpu_draft(sample_library())});
    write_file(published.root() / "sample" / "index.json", text);
    const Error error = error_of([&] {
      install("sample",
              {.version = 1, .registry = published.root().string(), .cache = scratch / "cache"});
    });
    CHECK(error.code() == ErrorCode::kIntegrity);
  }
}

}  // namespace
}  // namespace kiln::test
