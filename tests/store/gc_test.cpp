// SPDX-License-Identifier: Apache-2.0
//
// Gc: what goes, what stays, and who has to wait for whom.
#include "store/gc.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "kiln/kernel.hpp"
#include "sample.hpp"
#include "store/installed.hpp"
#include "store/repair.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

std::multiset<std::string> kinds(const std::vector<Removed>& removed) {
  std::multiset<std::string> found;
  for (const Removed& each : removed) {
    if (each.what != "lock") found.insert(each.what);
  }
  return found;
}

bool is_whole(const Cache& cache) {
  const std::vector<CheckedFile> checked = verify_installed(cache);
  return std::all_of(checked.begin(), checked.end(),
                     [](const CheckedFile& file) { return file.problem.empty(); });
}

using Kinds = std::multiset<std::string>;

TEST_CASE("gc: an installed version stays, and the tree is as it was") {
  Sample sample;
  sample.install_version(1);
  const auto before = sample.files();
  CHECK(kinds(collect_garbage(sample.cache())) == Kinds{});
  CHECK(sample.files() == before);
  CHECK(collect_garbage(Cache(sample.scratch / "no cache")).empty());
  CHECK_FALSE(fs::exists(sample.scratch / "no cache"));
}

TEST_CASE("gc: what killed installs left goes, a young download only if it is asked for") {
  Sample sample;
  sample.install_version(1);
  const auto before = sample.files();
  const std::string young(64, 'a');
  const std::string old(64, 'b');
  write_file(sample / ("ingest/" + young + ".part"), "half");
  write_file(sample / ("ingest/" + old + ".part"), "half");
  fs::last_write_time(sample / ("ingest/" + old + ".part"),
                      fs::file_time_type::clock::now() - std::chrono::hours(25));
  write_file(sample / ("ingest/" + young + ".1-0123456789abcdef.part"), "nobody can find it again");
  write_file(sample / "ingest" / (sample.manifest().layer.digest.hex() + ".part"), "it is here");
  write_file(sample / "unpacked/.tmp-1-0123456789abcdef/lib/half.so", "half");
  write_file(sample / "refs/.tmp-1-0123456789abcdef", "half");
  write_file(sample / ".tmp-1-0123456789abcdef", "half");
  write_file(sample / ("unpacked/" + young + "/lib/x.so"), "nobody names it");
  const Digest lonely = Digest::of("nobody names it");
  write_file(sample.cache().blob_path(lonely), "nobody names it");

  const auto all = sample.files();
  const Kinds expected{"partial download",
                       "partial download",
                       "partial download",
                       "draft",
                       "draft",
                       "draft",
                       "files",
                       "blob"};
  CHECK(kinds(collect_garbage(sample.cache(), {.dry_run = true})) == expected);
  CHECK(sample.files() == all);
  const std::vector<Removed> removed = collect_garbage(sample.cache());
  CHECK(kinds(removed) == expected);
  const auto blob = std::find_if(removed.begin(), removed.end(),
                                 [](const Removed& each) { return each.what == "blob"; });
  REQUIRE(blob != removed.end());
  CHECK(blob->bytes == 15);
  CHECK(fs::exists(sample / ("ingest/" + young + ".part")));
  CHECK(kinds(collect_garbage(sample.cache(), {.partial = true})) == Kinds{"partial download"});
  CHECK(sample.files() == before);
}

TEST_CASE("uninstall: takes what is wanted, and says what holds the rest") {
  Sample sample;
  sample.install_version(1);
  const Digest first = sample.manifest().config.digest;
  sample.install_version(2);
  const auto version = [](int wanted) {
    return [wanted](const Ref& ref) { return ref.version == wanted; };
  };
  {
    const FileLock lease = sample.cache().lease(first);
    const Uninstalled refused = uninstall(sample.cache(), version(1));
    CHECK(refused.versions.empty());
    CHECK(refused.removed.empty());
    REQUIRE(refused.kept.size() == 1);
    CHECK(refused.kept[0].ref.version == 1);
    CHECK(refused.kept[0].holder == "a running process");
  }
  const auto before = sample.files();
  CHECK(uninstall(sample.cache(), version(1), {.dry_run = true}).versions.size() == 1);
  CHECK(sample.files() == before);
  const Uninstalled done = uninstall(sample.cache(), version(1));
  CHECK(done.kept.empty());
  REQUIRE(done.versions.size() == 1);
  CHECK(done.versions[0].version == 1);
  CHECK(kinds(done.removed).count("files") == 1);
  CHECK(is_whole(sample.cache()));
  CHECK(list_installed(sample.cache()).size() == 1);
  CHECK(uninstall(sample.cache(), version(1)).versions.empty());
}

TEST_CASE("gc: unlocked versions go, those of a lock file stay until it is gone") {
  Sample sample;
  sample.install_version(1);
  const std::string locked = sample.published.drafts().at(0).variant.manifest.digest.str();
  sample.install_version(2);
  const fs::path lock_file = sample.scratch / "project/kiln.lock";
  write_file(lock_file, R"({"kernels": {"sample": {"manifest": ")" + locked + "\"}}}");
  CHECK(sample.cache().keep_lock_file(lock_file));
  CHECK(sample.cache().keep_lock_file(lock_file));  // again changes nothing
  CHECK(sample.cache().kept_lock_files().size() == 1);

  CHECK(kinds(collect_garbage(sample.cache())) == Kinds{});
  CHECK(kinds(collect_garbage(sample.cache(), {.unlocked = true})) ==
        Kinds{"version", "files", "blob", "blob", "blob", "blob"});
  REQUIRE(sample.cache().refs().size() == 1);
  CHECK(sample.cache().refs()[0].version == 1);
  CHECK(is_whole(sample.cache()));
  CHECK(list_installed(sample.cache()).size() == 1);

  fs::remove(lock_file);
  CHECK(kinds(collect_garbage(sample.cache(), {.unlocked = true})) ==
        Kinds{"root", "version", "files", "blob", "blob", "blob", "blob"});
  CHECK(sample.files() == std::set<std::string>{"CACHEDIR.TAG", "store.lock"});
  sample.install_version(1);
  CHECK(is_whole(sample.cache()));
}

TEST_CASE("gc: what a running process has loaded stays until the process ends") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  int loaded[2];
  int end[2];
  REQUIRE(::pipe(loaded) == 0);
  REQUIRE(::pipe(end) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(end[1]);
    const bool good = get_kernel("sample", sample.request).version() == 1;
    char byte = good ? 'y' : 'n';
    if (::write(loaded[1], &byte, 1) != 1) ::_exit(1);
    const ssize_t count = ::read(end[0], &byte, 1);  // until the parent closes it
    ::_exit(count == 0 ? 0 : 1);
  }
  char byte = 0;
  REQUIRE(::read(loaded[0], &byte, 1) == 1);
  CHECK(byte == 'y');
  CHECK(kinds(collect_garbage(sample.cache(), {.unlocked = true})) == Kinds{});
  ::close(end[1]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  for (const int fd : {loaded[0], loaded[1], end[0]}) ::close(fd);
  CHECK(kinds(collect_garbage(sample.cache(), {.unlocked = true})).count("files") == 1);
}

TEST_CASE("gc: the archives of what is unpacked go where room counts, and the kernel still loads") {
  Sample sample;
  sample.install_version(1);
  const Descriptor layer = sample.manifest().layer;
  const std::vector<Removed> removed = collect_garbage(sample.cache(), {.layers = true});
  CHECK(kinds(removed) == Kinds{"blob"});
  CHECK_FALSE(sample.cache().has_blob(layer.digest));
  CHECK(is_whole(sample.cache()));
  CHECK(get_kernel("sample", sample.request).version() == 1);
}

TEST_CASE("gc: waits for an install under way, and can be told to stop waiting") {
  Sample sample;
  sample.install_version(1);
  std::atomic<bool> waits = false;
  {
    const FileLock used = sample.cache().use();
    std::stop_source source;
    source.request_stop();
    const Error error =
        error_of([&] { collect_garbage(Cache(sample.request.cache, source.get_token())); });
    CHECK(error.code() == ErrorCode::kCancelled);
  }
  std::optional<FileLock> used = sample.cache().use();
  std::thread gc([&] { collect_garbage(sample.cache(), {.on_wait = [&] { waits = true; }}); });
  while (!waits) std::this_thread::yield();
  used.reset();
  gc.join();
}

TEST_CASE("gc: does not guess what something damaged or unreadable holds") {
  struct Case {
    const char* what;
    ErrorCode code;
    std::function<void(Sample&)> damage;
  };
  const std::vector<Case> cases{
      {"ref", ErrorCode::kIntegrity,
       [](Sample& sample) {
         const fs::path ref =
             sample.cache().ref_path(sample.published.root().string(), "sample", 1);
         fs::remove(ref);
         write_file(ref, "{}");
       }},
      {"index", ErrorCode::kIntegrity,
       [](Sample& sample) {
         damage(sample.cache().blob_path(sample.cache().refs().at(0).index.digest));
       }},
      {"lock file", ErrorCode::kCache,
       [](Sample& sample) {
         fs::create_directory(sample.scratch / "kiln.lock");
         CHECK(sample.cache().keep_lock_file(sample.scratch / "kiln.lock"));
       }},
  };
  for (const Case& each : cases) {
    CAPTURE(each.what);
    Sample sample;
    sample.install_version(1);
    each.damage(sample);
    const auto before = sample.files();
    const Error error = error_of([&] { collect_garbage(sample.cache(), {.unlocked = true}); });
    CHECK(error.code() == each.code);
    CHECK_CONTAINS(error.what(), "nothing was removed");
    CHECK(sample.files() == before);
  }
}

}  // namespace
}  // namespace kiln::test
