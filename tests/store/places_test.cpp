// SPDX-License-Identifier: Apache-2.0
//
// Whatever stands in the place of anything that Kiln keeps in a cache: verify sees it, repair takes
// it away, and what failed because of it works again.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <functional>
#include <vector>

#include "documents/json.hpp"
#include "loader_paths.hpp"
#include "sample.hpp"
#include "settings/settings.hpp"
#include "signed.hpp"
#include "store/gc.hpp"
#include "store/inside.hpp"
#include "store/places.hpp"
#include "store/repair.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kHuge = std::uint64_t{8} << 30;

/// A cache with one of everything: of a signed registry, with a project and what was signed.
struct Used {
  Used() {
    fs::copy_file(paths::kSettings, sample.scratch / "config.json");
    fs::permissions(sample.scratch / "config.json", fs::perms(0644));
    const Descriptor index = sample.published.publish({cpu_draft(sample_library())});
    metadata.add("sample", 1, index);
    metadata.publish();
    const std::string first = metadata.first_root();
    metadata.rotate();
    metadata.publish();
    trust_root(sample.published.root().string(), first);
    write_file(lock_file, "{}");
    use();
    write_file(sample / ("attested/" + index.digest.hex() + ".json"), "{}");
  }

  void use() {
    Request request = sample.request;
    request.refresh = true;
    install("sample", request);
    sample.cache().keep_lock_file(lock_file);
    const FileLock lease = sample.cache().lease(Digest::of("a kernel that runs"));
    collect_garbage(sample.cache(), {.dry_run = true});
  }

  bool is_whole() const {
    for (const CheckedFile& each : verify_installed(sample.cache())) {
      if (!each.problem.empty()) return false;
    }
    return true;
  }

  Sample sample;
  Environment config{"KILN_CONFIG", (sample.scratch / "config.json").string()};
  Environment nothing_unsigned{"KILN_UNSIGNED", std::nullopt};
  Signed metadata{sample.published.root()};
  fs::path lock_file = sample.scratch / "kiln.lock";
};

struct Harm {
  const char* what;
  std::function<void(const fs::path&)> put;
};

void make_huge(const fs::path& path) {
  write_file(path, "{");
  fs::resize_file(path, kHuge);
}

/// Puts it in the place of each, and repairs.
void check_each(Used& used, const std::vector<fs::path>& places, const std::vector<Harm>& harms) {
  for (const fs::path& place : places) {
    for (const Harm& harm : harms) {
      CAPTURE(place);
      INFO(harm.what);
      const fs::path path = used.sample.request.cache / place;
      if (!stands(path, &fail_cache))
        continue;  // what an install makes for a while, or once in a cache's life
      fs::remove_all(path);
      harm.put(path);
      CHECK_FALSE(used.is_whole());
      const std::vector<CheckedFile> repaired = repair(used.sample.cache(), load_settings());
      CHECK_FALSE(repaired.empty());
      for (const CheckedFile& each : repaired) CHECK_MESSAGE(!each.failed, each.done);
      CHECK(used.is_whole());
      used.use();
      CHECK(used.is_whole());
    }
  }
}

/// All that is in the cache, but for what makes it one.
std::vector<fs::path> all_in(const Used& used, bool folders) {
  std::vector<fs::path> found;
  for (const auto& each : fs::recursive_directory_iterator(used.sample.request.cache)) {
    const fs::path name = each.path().filename();
    if (each.is_directory() != folders || name == "CACHEDIR.TAG" || name == "store.lock") continue;
    found.push_back(each.path().lexically_relative(used.sample.request.cache));
  }
  return found;
}

const Harm kFolder{"a folder", [](const fs::path& path) { write_file(path / "x", "mine"); }};
const Harm kLink{"a link", [](const fs::path& path) { fs::create_symlink("/dev/zero", path); }};
const Harm kFile{"a file", [](const fs::path& path) { write_file(path, "mine"); }};

TEST_CASE("places: what stands in the place of a file is found, taken away and made anew") {
  Used used;
  const std::vector<fs::path> files = all_in(used, false);
  CHECK(files.size() >= 16);
  check_each(used, files, {kFolder, kLink});
}

TEST_CASE("places: what stands in the place of a folder, too") {
  Used used;
  const std::vector<fs::path> folders = all_in(used, true);
  CHECK(folders.size() >= 15);
  for (const fs::path& folder : folders) {
    if (stands(used.sample.request.cache / folder, &fail_cache))
      check_each(used, {folder}, {kFile, kLink});
  }
}

TEST_CASE("places: no document is read beyond its bound, whatever size it claims") {
  Used used;
  std::vector<fs::path> documents;
  for (const fs::path& file : all_in(used, false)) {
    if (file.extension() == ".json" && *file.begin() != "unpacked") documents.push_back(file);
  }
  CHECK(documents.size() >= 8);
  check_each(used, documents, {{"8 GB", make_huge}, {"no JSON", kFile.put}});
}

TEST_CASE("places: the entry of a project whose folder has another name than UTF-8") {
  Sample sample;
  sample.install_version(1);
  const fs::path lock_file = sample.scratch / "caf\xe9/kiln.lock";
  write_file(lock_file, "{}");
  CHECK(sample.cache().keep_lock_file(lock_file));
  REQUIRE(sample.cache().kept_lock_files().size() == 1);
  CHECK(sample.cache().kept_lock_files()[0].lock_file == lock_file);
  CHECK(survey(sample.request.cache).files.empty());
}

TEST_CASE("places: a process without a descriptor left says so, and calls no cache foreign") {
  Sample sample;
  sample.install_version(1);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{3, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::vector<Error> errors;
  for (const auto& step : std::vector<std::function<void()>>{
           [&] { is_marked(sample.request.cache); },
           [&] { sample.cache().use_to_write(); },
           [&] { install("sample", sample.request); },
       }) {
    try {
      step();
    } catch (const Error& error) {
      errors.push_back(error);
    }
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(errors.size() == 3);
  for (const Error& error : errors) {
    CHECK(error.code() == ErrorCode::kCache);
    CHECK_CONTAINS(error.what(), "Too many open files. ");
  }
}

}  // namespace
}  // namespace kiln::test
