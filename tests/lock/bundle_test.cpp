// SPDX-License-Identifier: Apache-2.0
//
// Bundles: made reproducibly, installed offline by the same verified path as a registry's bytes,
// kept under this machine's own registry; and what is no bundle, or was changed, is refused.
#include "install/bundle.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>

#include "documents/json.hpp"
#include "install/catalog.hpp"
#include "install/install.hpp"
#include "install/lock.hpp"
#include "kiln/request.hpp"
#include "sample_setting.hpp"
#include "store/cache.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

struct BundleSetting : SampleSetting {
  fs::path file = scratch / "b.tar";

  /// On the machine that makes bundles.
  Request online() const {
    return {.version = 1, .registry = published.root().string(), .cache = scratch / "online"};
  }
  /// On the one that has no network, and another name for the same registry.
  Request offline() const {
    return {.version = 1,
            .registry = "https://kernels.example",
            .cache = scratch / "offline",
            .offline = true,
            .from = file.string()};
  }
  std::vector<BundledKernel> create(bool all = false, std::vector<std::string> ids = {}) {
    return create_bundle({{"sample", online(), {}, all, std::move(ids)}}, file);
  }
  Error refused() const {
    return error_of([&] { install("sample", offline()); });
  }

  /// The bundle's files, to be made into another one.
  std::vector<Entry> entries() const {
    std::vector<Entry> all;
    for (const Draft& draft : published.drafts()) {
      for (const std::string& blob : {draft.manifest_bytes, draft.config_bytes, draft.layer}) {
        all.push_back({"blobs/sha256/" + Digest::of(blob).hex(), blob});
      }
    }
    all.push_back(
        {"blobs/sha256/" + index.digest.hex(), read_file(published.blob("sample", index.digest))});
    all.push_back({"index.json", tags({{"sample:1", index}})});
    all.push_back({"oci-layout", R"({"imageLayoutVersion":"1.0.0"})"});
    return all;
  }
  static std::string tags(const std::vector<std::pair<std::string, Descriptor>>& named) {
    Json manifests = Json::array();
    for (const auto& [tag, descriptor] : named) {
      Json entry = to_json(descriptor);
      entry["annotations"] = {{"org.opencontainers.image.ref.name", tag}};
      manifests.push_back(entry);
    }
    return dump_json({{"schemaVersion", 2}, {"manifests", manifests}});
  }
  void check_nothing_installed() const {
    const fs::path unpacked = offline().cache / "unpacked";
    CHECK((!fs::exists(unpacked) || fs::is_empty(unpacked)));
  }
};

TEST_CASE(
    "bundle: the same state gives the same bytes, which tell its registry, and not who made it") {
  BundleSetting setting;
  const std::vector<BundledKernel> made = setting.create(true);
  REQUIRE(made.size() == 1);
  CHECK(made.front().index == setting.index);
  CHECK(made.front().variants.size() == 2);
  std::string bytes = read_file(setting.file);
  fs::remove_all(setting.online().cache);
  const mode_t before = ::umask(0077);
  setting.create(true);
  ::umask(before);
  CHECK(read_file(setting.file) == bytes);
  const std::string registry = setting.published.root().string();
  const std::size_t named = bytes.find(registry);
  REQUIRE(named != std::string::npos);
  bytes.erase(named, registry.size());
  CHECK(bytes.find(setting.scratch.path().string()) == std::string::npos);
  const std::vector<BundledKernel> inside = bundle_contents(setting.file);
  REQUIRE(inside.size() == 1);
  CHECK(inside.front().name == "sample");
  CHECK(inside.front().index == setting.index);
  CHECK(inside.front().variants == made.front().variants);
}

TEST_CASE(
    "bundle: installed without a network, then found by version under the machine's registry") {
  BundleSetting setting;
  setting.create();
  const Installed installed = install("sample", setting.offline());
  CHECK(installed.choice.registry == "https://kernels.example");
  CHECK(installed.choice.version.descriptor == setting.index);
  fs::remove(setting.file);
  Request later = setting.offline();
  later.from.clear();
  CHECK(install("sample", later).package.library == installed.package.library);
}

TEST_CASE("bundle: a file is a registry as well") {
  BundleSetting setting;
  setting.create();
  const Request request{
      .version = 1, .registry = setting.file.string(), .cache = setting.scratch / "third"};
  CHECK(install("sample", request).choice.registry == setting.file.string());
  CHECK(Catalog("sample", request).known_versions() == std::vector<int>{1});
}

TEST_CASE("bundle: two kernels in one, and a bare tag as other tools write it") {
  BundleSetting setting;
  setting.published.publish({cpu_draft(sample_library("other"), "other", 1)});
  create_bundle({{"sample", setting.online()}, {"other", setting.online()}}, setting.file);
  CHECK(bundle_contents(setting.file).size() == 2);
  CHECK(install("other", setting.offline()).package.config.name == "other");
  CHECK(install("sample", setting.offline()).package.config.name == "sample");

  BundleSetting bare;
  std::vector<Entry> entries = bare.entries();
  entries.at(entries.size() - 2).content = BundleSetting::tags({{"1", bare.index}});
  for (Entry& entry : entries) entry.path = "./" + entry.path;
  write_file(bare.file, make_tar(entries));
  CHECK(bundle_contents(bare.file).at(0).name == "sample");
  CHECK(install("sample", bare.offline()).package.config.name == "sample");

  entries.at(entries.size() - 2).content =
      BundleSetting::tags({{"1", bare.index}, {"sample:1", bare.index}});
  write_file(bare.file, make_tar(entries));
  const Request both{.registry = bare.file.string(), .cache = bare.scratch / "both"};
  CHECK(Catalog("sample", both).known_versions() == std::vector<int>{1});
}

TEST_CASE("bundle: what is asked for and not inside is said with what is") {
  BundleSetting setting;
  setting.create(false, {setting.drafts.at(1).variant.id});  // the GPU's alone
  const Error variant = setting.refused();
  CHECK(variant.code() == ErrorCode::kNotFound);
  CHECK_CONTAINS(variant.what(), "it is not inside, which has \"sample:1\"");
  CHECK_CONTAINS(variant.what(), "--all-variants");
  Request version = setting.offline();
  version.version = 7;
  const Error missing = error_of([&] { install("sample", version); });
  CHECK(missing.code() == ErrorCode::kNotFound);
  CHECK_CONTAINS(missing.what(), "published: 1");
  const Error unknown = error_of([&] { setting.create(false, {"cu99"}); });
  CHECK(unknown.code() == ErrorCode::kNotFound);
  CHECK_CONTAINS(unknown.what(), "there is no variant cu99, there are: cpu-base");
  fs::remove(setting.file);
  CHECK_CONTAINS(error_of([&] { bundle_contents(setting.file); }).what(), "open bundle");
  CHECK(error_of([&] { create_bundle({}, setting.file); }).code() == ErrorCode::kUsage);
}

TEST_CASE("bundle: with a lock file the lock decides, not the bundle") {
  BundleSetting setting;
  const fs::path lock = setting.scratch / "kiln.lock";
  std::vector<std::string> unread;
  write_lockfile(lock, {{"sample", lock_kernel("sample", setting.online(), unread)}});
  setting.create(true);
  Request locked = setting.offline();
  locked.registry.clear();
  locked.version = 0;
  locked.lock = lock;
  CHECK(install("sample", locked).choice.registry == setting.published.root().string());

  // The same version, built by somebody else.
  BundleSetting other;
  other.create(true);
  fs::remove_all(locked.cache);
  locked.from = other.file.string();
  const Error error = error_of([&] { install("sample", locked); });
  CHECK(error.code() == ErrorCode::kLock);
  CHECK_CONTAINS(error.what(), "names index " + setting.index.digest.str());
  setting.check_nothing_installed();
  // And without the lock, what this machine had before decides.
  locked.from.clear();
  locked.offline = false;
  install("sample", locked);
  Request unlocked{.version = 1,
                   .registry = setting.published.root().string(),
                   .refresh = true,
                   .cache = locked.cache,
                   .offline = true,
                   .from = other.file.string()};
  CHECK(error_of([&] { install("sample", unlocked); }).code() == ErrorCode::kIntegrity);
}

TEST_CASE("bundle: one flipped bit in any blob is refused, and nothing is installed") {
  BundleSetting setting;
  const Draft& cpu = setting.published.drafts().at(0);
  const std::string index = read_file(setting.published.blob("sample", setting.index.digest));
  for (const std::string& blob : {index, cpu.manifest_bytes, cpu.config_bytes, cpu.layer}) {
    setting.create();
    std::string bytes = read_file(setting.file);
    const std::size_t at = bytes.find(blob);
    REQUIRE(at != std::string::npos);
    bytes.at(at + blob.size() / 2) ^= 1;
    fs::remove(setting.file);
    write_file(setting.file, bytes);
    const Error error = setting.refused();
    CHECK(error.code() == ErrorCode::kIntegrity);
    CHECK_CONTAINS(error.what(), Digest::of(blob).brief());
    setting.check_nothing_installed();
    fs::remove_all(setting.offline().cache);
  }
}

TEST_CASE("bundle: tars that are no layout are refused with what is wrong, wherever they are cut") {
  BundleSetting setting;
  const auto with = [&](Entry entry) {
    std::vector<Entry> entries = setting.entries();
    entries.push_back(std::move(entry));
    return make_tar(entries);
  };
  const auto without = [&](const std::string& name) {
    std::vector<Entry> entries = setting.entries();
    std::erase_if(entries, [&](const Entry& entry) { return entry.path == name; });
    return make_tar(entries);
  };
  const auto index_json = [&](const std::string& text) {
    std::vector<Entry> entries = setting.entries();
    entries.at(entries.size() - 2).content = text;
    return make_tar(entries);
  };
  const std::string good = make_tar(setting.entries());
  const Descriptor large{std::string(kMediaTypeIndex), setting.index.digest, 5u << 20};
  Descriptor longer = setting.index;
  ++longer.size;
  std::vector<Entry> many;
  for (int i = 0; i < 65600; ++i) many.push_back({"f" + std::to_string(i), ""});
  constexpr unsigned kLink = 0120000;
  constexpr unsigned kFifo = 0010000;
  struct Row {
    std::string bytes;
    const char* says;
    ErrorCode code = ErrorCode::kIntegrity;
  };
  const std::vector<Row> rows = {
      {"", "not an uncompressed tar"},
      {"neither a tar nor anything else", "not an uncompressed tar"},
      {std::string(2048, '\xff'), "not an uncompressed tar"},
      {make_zstd(good), "tar"},
      {make_tar({{"hello", "x"}}), "not an OCI archive"},
      {without("oci-layout"), "not an OCI archive"},
      {without("index.json"), "not an OCI archive"},
      {with({"oci-layout", "again"}), "\"oci-layout\" is in it twice"},
      {with({"./index.json", "again"}), "\"index.json\" is in it twice"},
      {with({"link", "", kLink, "/etc/passwd"}), "is a link or a device"},
      {with({"hard", "", 0, "oci-layout"}), "is a link or a device"},
      {with({"pipe", "", kFifo}), "is a link or a device"},
      {with({"sparse", std::string(4096, 's'), 0100000, "", -1, true}),
       "\"sparse\" in it is sparse"},
      {with({std::string(1100, 'n'), ""}), "is longer than"},
      {make_tar(many), "more than 65536 files"},
      {index_json("{}"), "there is no such version",
       ErrorCode::kNotFound},  // as with "manifests": []
      {index_json("[1]"), "expected an object"},
      {index_json("not json"), "not JSON"},
      {index_json(std::string(5u << 20, ' ')), "expected at most"},
      {index_json(BundleSetting::tags({{"sample:1", setting.index}, {"sample:1", setting.index}})),
       "has the tag"},
      {index_json(BundleSetting::tags({{"sample:1", large}})), "expected at most"},
      {index_json(BundleSetting::tags({{"sample:1", longer}})), "verify"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.says);
    write_file(setting.file, row.bytes);
    const Error error = setting.refused();
    CHECK(error.code() == row.code);
    const std::string says = row.says;
    CHECK_CONTAINS(std::string(error.what()), says);
    setting.check_nothing_installed();
  }
  // Cut short at every block: never a crash, never anything but the bundle's own error, or, where
  // only the end marker went, the whole content.
  for (std::size_t size = 0; size < good.size(); size += 512) {
    CAPTURE(size);
    write_file(setting.file, good.substr(0, size));
    try {
      install("sample", setting.offline());
      CHECK(size + 10240 > good.size());
      fs::remove_all(setting.offline().cache);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kIntegrity);
      setting.check_nothing_installed();
    }
  }
}

TEST_CASE("bundle: a file that cannot be written leaves none, and an old one as it was") {
  BundleSetting setting;
  CHECK(error_of([&] {
          create_bundle({{"sample", setting.online()}}, setting.scratch / "no/such/b.tar");
        }).code() == ErrorCode::kNotFound);
  write_file(setting.file, "old");
  fs::remove_all(setting.online().cache);
  damage(setting.published.blob("sample", Digest::of(setting.published.drafts().at(0).layer)));
  CHECK(error_of([&] { setting.create(); }).code() == ErrorCode::kIntegrity);
  CHECK(read_file(setting.file) == "old");
  std::size_t files = 0;
  for (const auto& each : fs::directory_iterator(setting.scratch.path())) {
    files += each.path().filename().string().starts_with(".kiln-bundle") ? 1 : 0;
  }
  CHECK(files == 0);
}

}  // namespace
}  // namespace kiln::test
