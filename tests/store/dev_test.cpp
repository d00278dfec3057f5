// SPDX-License-Identifier: Apache-2.0
//
// Dev layers: the headers of a version, installed without its library, verified, kept, mended and
// carried as the library is.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "install/bundle.hpp"
#include "install/lock.hpp"
#include "sample.hpp"
#include "settings/settings.hpp"
#include "store/gc.hpp"
#include "store/repair.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

const char* const kHeader = "include/kiln/layers/sample.hpp";

Draft with_header(Draft draft, const std::string& text = "#pragma once\n") {
  draft.dev = {{"CARD.md", "# sample\n"}, {kHeader, text}};
  return draft;
}

/// A version that no machine without a GPU can run.
struct GpuOnly : Sample {
  Environment no_gpu{"KILN_OVERRIDE_SM", ""};
  Environment no_lock{"KILN_LOCK", std::nullopt};
  Descriptor index = published.publish({with_header(gpu_draft(sample_library()))});

  DevFiles dev() const { return Install("sample", request).run_dev(); }
  fs::path header() const { return dev().folder / kHeader; }
};

void overwrite(const fs::path& file, const std::string& text) {
  fs::permissions(file, fs::perms::owner_write, fs::perm_options::add);
  write_file(file, text);
}

TEST_CASE("dev: a version's headers come to a machine that cannot run it, without its library") {
  GpuOnly sample;
  const DevFiles dev = sample.dev();
  CHECK(dev.name == "sample");
  CHECK(dev.version == 1);
  CHECK(dev.include == dev.folder / "include");
  CHECK(read_file(dev.folder / kHeader) == "#pragma once\n");
  CHECK(read_file(dev.folder / "CARD.md") == "# sample\n");
  REQUIRE(dev.files.size() == 2);
  for (const ArchiveFile& file : dev.files) {
    CHECK(file.digest == Digest::of(read_file(dev.folder / file.path)));
  }
  CHECK_FALSE(sample.cache().has_blob(sample.manifest().layer.digest));
  CHECK(error_of([&] { install("sample", sample.request); }).code() == ErrorCode::kNoVariant);
  // Then nothing more is asked.
  sample.request.offline = true;
  CHECK(sample.dev().folder == dev.folder);
  fs::remove_all(sample.published.root());
  sample.request.offline = false;
  CHECK(sample.dev().folder == dev.folder);
}

TEST_CASE("dev: offline and not there, and a package without headers, are errors with a way out") {
  GpuOnly sample;
  sample.request.offline = true;
  CHECK(error_of([&] { sample.dev(); }).code() == ErrorCode::kOffline);
  sample.request.offline = false;
  sample.published.publish({cpu_draft(sample_library("version2"), "sample", 2)});
  sample.request.version = 2;
  const Error none = error_of([&] { sample.dev(); });
  CHECK(none.code() == ErrorCode::kNotFound);
  CHECK_CONTAINS(none.what(), "install sample@2 dev: the package has no headers");
}

TEST_CASE("dev: what was changed, in the registry or in the cache, is refused") {
  GpuOnly sample;
  const Digest layer = sample.manifest().dev.digest;
  const fs::path blob = sample.published.blob("sample", layer);
  const std::string bytes = read_file(blob);
  std::string other = bytes;
  other[other.size() / 2] ^= 1;
  write_file(blob, other);
  CHECK(error_of([&] { sample.dev(); }).code() == ErrorCode::kIntegrity);
  write_file(blob, bytes);
  const fs::path header = sample.header();

  overwrite(header, "#pragma twice\n");
  const Error changed = error_of([&] { sample.dev(); });
  CHECK(changed.code() == ErrorCode::kIntegrity);
  CHECK_CONTAINS(changed.what(), "verify sample@1 dev: " + header.string());
  sample.request.refresh = true;
  CHECK(read_file(sample.header()) == "#pragma once\n");
  sample.request.refresh = false;
  write_file(header.parent_path() / "vector", "#error somebody's\n");
  CHECK(error_of([&] { sample.dev(); }).code() == ErrorCode::kIntegrity);
}

TEST_CASE("dev: a layer that its config does not list is not unpacked") {
  GpuOnly sample;
  Draft draft = with_header(cpu_draft(sample_library("version2"), "sample", 2));
  draft.config.dev_files = {{kHeader, Digest::of("another text"), 12}};
  sample.published.publish({draft});
  sample.request.version = 2;
  CHECK(error_of([&] { sample.dev(); }).code() == ErrorCode::kIntegrity);
  CHECK_FALSE(fs::exists(sample.cache().unpacked_path(sample.manifest().dev.digest)));
}

TEST_CASE("dev: gc keeps it as long as its version, repair mends it") {
  GpuOnly sample;
  const fs::path header = sample.header();
  CHECK(collect_garbage(sample.cache()).empty());
  CHECK(fs::exists(header));

  overwrite(header, "#pragma twice\n");
  const auto damaged = [&] {
    const std::vector<CheckedFile> files = verify_installed(sample.cache());
    return std::ranges::count_if(files, [](const auto& each) { return !each.problem.empty(); });
  };
  CHECK(damaged() == 1);
  CHECK_FALSE(repair(sample.cache(), load_settings()).empty());
  CHECK(damaged() == 0);
  CHECK(read_file(header) == "#pragma once\n");

  const auto all = [](const Ref&) { return true; };
  CHECK(uninstall(sample.cache(), all, {}).versions.size() == 1);
  CHECK_FALSE(fs::exists(header));
}

TEST_CASE("dev: a lock file pins it with the rest of its variant") {
  GpuOnly sample;
  const fs::path file = sample.scratch / "kiln.lock";
  std::vector<std::string> unread;
  const LockedKernel locked = lock_kernel("sample", sample.request, unread);
  write_lockfile(file, {{"sample", locked}});
  sample.request.lock = file;
  CHECK(read_file(sample.header()) == "#pragma once\n");

  // The registry moves its tag to other headers of the same library.
  Draft moved = with_header(sample.published.drafts().at(0), "#pragma twice\n");
  moved.config.dev_files.clear();
  moved.config_bytes.clear();
  moved.manifest_bytes.clear();
  sample.published.publish({moved});
  fs::remove_all(sample.request.cache);
  CHECK(read_file(sample.header()) == "#pragma once\n");
  sample.request.lock.clear();
  fs::remove_all(sample.request.cache);
  CHECK(read_file(sample.header()) == "#pragma twice\n");
}

TEST_CASE("dev: a bundle carries it") {
  GpuOnly sample;
  const fs::path file = sample.scratch / "b.tar";
  create_bundle({{"sample", sample.request, {}, true, {}}}, file);
  Sample elsewhere;
  elsewhere.request.registry = "https://kernels.example";
  elsewhere.request.from = file.string();
  elsewhere.request.offline = true;
  const DevFiles dev = Install("sample", elsewhere.request).run_dev();
  CHECK(read_file(dev.folder / kHeader) == "#pragma once\n");
}

}  // namespace
}  // namespace kiln::test
