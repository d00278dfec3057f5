// SPDX-License-Identifier: Apache-2.0
//
// Whose a cache is, what in it is Kiln's, and who may do what in one that a group shares.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <stop_token>
#include <thread>

#include "kiln/kernel.hpp"
#include "loader_paths.hpp"
#include "sample.hpp"
#include "store/gc.hpp"
#include "store/inside.hpp"
#include "store/installed.hpp"
#include "store/repair.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kNobody = 65534;
constexpr uid_t kOneMember = 64001;
constexpr uid_t kOtherMember = 64002;
constexpr gid_t kTeam = 64003;

bool is_root() {
  return ::geteuid() == 0;
}

/// Settings and samples that every user may read.
struct Public {
  explicit Public(Sample& sample)
      : config("KILN_CONFIG", (sample.scratch / "config.json").string()) {
    fs::copy_file(paths::kSettings, sample.scratch / "config.json");
    fs::permissions(sample.scratch / "config.json", fs::perms(0644));
    fs::permissions(sample.scratch.path(), fs::perms(0755));
  }
  Environment config;
};

TEST_CASE("inside: a folder of something else is never written to, nor cleaned") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  const std::string hex(64, 'a');
  for (const char* name : {"notes.txt", "ingest/mine", ".tmp-mine/x", "refs/heads/main.json",
                           "blobs", "roots/x.json", "locks/x"}) {
    write_file(sample / name, "mine");
  }
  for (const char* tag : {"", "Signature: 8a477f597d28d172789f06886806bc55\n# of another tool\n"}) {
    CAPTURE(tag);
    if (*tag != '\0') write_file(sample / "CACHEDIR.TAG", tag);
    const auto before = sample.files();
    const std::vector<std::function<void()>> writers{
        [&] { install("sample", sample.request); },
        [&] { collect_garbage(sample.cache(), {.unlocked = true, .partial = true}); },
        [&] { repair(sample.cache(), Settings()); },
        [&] { sample.cache().keep_lock_file(sample.scratch / "kiln.lock"); },
    };
    for (const auto& write : writers) {
      const Error error = error_of(write);
      CHECK(error.code() == ErrorCode::kCache);
      CHECK_CONTAINS(error.what(), "Set KILN_CACHE to a new or an empty folder");
      CHECK(sample.files() == before);
    }
  }
}

TEST_CASE("inside: an empty folder, and one that mkfs made, becomes a cache") {
  for (const bool fresh_disk : {false, true}) {
    Sample sample;
    fs::create_directories(sample.request.cache / (fresh_disk ? "lost+found" : ""));
    CHECK_FALSE(is_marked(sample.request.cache));
    CHECK(collect_garbage(sample.cache()).empty());
    CHECK(repair(sample.cache(), Settings()).empty());
    CHECK(sample.files().empty());
    sample.install_version(1);
    CHECK(is_marked(sample.request.cache));
  }
}

TEST_CASE("inside: gc and repair leave names that are not of Kiln's shape") {
  Sample sample;
  sample.install_version(1);
  for (const char* name : {".tmp-mine", "ingest/notes", "ingest/1.part", "unpacked/notes/x",
                           "refs/.tmp-x", "refs/heads/x/1.json", "refs/a-0123456789ab/X/1.json",
                           "refs/a-0123456789ab/sample/x.json", "roots/x.json", "locks/x.lock"}) {
    write_file(sample / name, "mine");
  }
  const auto before = sample.files();
  collect_garbage(sample.cache(), {.layers = false, .partial = true});
  CHECK(repair(sample.cache(), Settings()).empty());
  CHECK(sample.files() == before);
}

TEST_CASE("inside: a cache is refused below a folder where others may exchange it") {
  Scratch scratch;
  const fs::path above = scratch / "above";
  fs::create_directories(above / "cache");
  REQUIRE(::chmod(above.c_str(), 0777) == 0);
  const Error open = error_of([&] { Cache(above / "cache"); });
  CHECK(open.code() == ErrorCode::kCache);
  CHECK_CONTAINS(open.what(), "everyone may put another folder in its place");
  CHECK_CONTAINS(open.what(), "chmod o-w " + above.string());
  fs::create_symlink(above / "cache", scratch / "link");
  CHECK(error_of([&] { Cache(scratch / "link"); }).code() == ErrorCode::kCache);
  CHECK(error_of([&] { Cache(above / "not there/cache"); }).code() == ErrorCode::kCache);
  REQUIRE(::chmod(above.c_str(), 01777) == 0);  // as /tmp is
  Cache{above / "cache"};
  Cache{scratch / "link"};
  REQUIRE(::chmod(above.c_str(), 0755) == 0);
  if (!is_root() || ::chown(above.c_str(), kNobody, kNobody) != 0) return;  // only root may
  const Error foreign = error_of([&] { Cache(above / "cache"); });
  CHECK(foreign.code() == ErrorCode::kCache);
  CHECK_CONTAINS(foreign.what(), "belongs to user 65534");
}

TEST_CASE("inside: a root that was exchanged after it was checked is refused as it is opened") {
  Sample sample;
  sample.install_version(1);
  const Cache cache = sample.cache();
  if (!is_root() || ::chown(cache.root().c_str(), kNobody, kNobody) != 0) return;  // only root may
  CHECK(error_of([&] { cache.refs(); }).code() == ErrorCode::kCache);
  CHECK(error_of([&] { cache.use_to_write(); }).code() == ErrorCode::kCache);
}

TEST_CASE("inside: what is below the root must be this user's, too") {
  for (const char* name : {"refs", "unpacked", "blobs/sha256"}) {
    CAPTURE(name);
    Sample sample;
    sample.install_version(1);
    if (!is_root() || ::chown((sample / name).c_str(), kNobody, kNobody) != 0)
      return;  // only root may
    const Error error = error_of([&] { get_kernel("sample", sample.request); });
    CHECK(error.code() == ErrorCode::kCache);
    CHECK_CONTAINS(error.what(), "belongs to user 65534");
  }
}

TEST_CASE("inside: each member of a group may use what another one made, under any umask") {
  if (!is_root()) return;  // nobody else can be two users
  const ReadableByAll made;
  Sample sample;
  const Public readable(sample);
  sample.published.publish({cpu_draft(sample_library())});
  fs::create_directory(sample.request.cache);
  REQUIRE(::chown(sample.request.cache.c_str(), 0, kTeam) == 0);
  REQUIRE(::chmod(sample.request.cache.c_str(), 0775) == 0);  // without the setgid bit
  CHECK(as_user(kOneMember, kTeam, 0077, [&] { get_kernel("sample", sample.request); }) == 0);
  for (const auto& each : fs::recursive_directory_iterator(sample.request.cache)) {
    CAPTURE(each.path().string());
    struct stat status {};
    REQUIRE(::stat(each.path().c_str(), &status) == 0);
    CHECK(status.st_gid == kTeam);
    CHECK((status.st_mode & S_IRGRP) != 0);
    const bool is_written = each.is_directory() ||
                            each.path().parent_path().filename() == "locks" ||
                            each.path().filename() == "store.lock";
    if (is_written) CHECK((status.st_mode & S_IWGRP) != 0);
  }
  Request again = sample.request;
  CHECK(as_user(kOtherMember, kTeam, 0077, [&] { get_kernel("sample", again); }) == 0);
  again.refresh = true;
  CHECK(as_user(kOtherMember, kTeam, 0022, [&] { install("sample", again); }) == 0);
  CHECK(as_user(kOtherMember, kTeam, 0022,
                [&] { collect_garbage(sample.cache(), {.unlocked = true}); }) == 0);
  CHECK(list_installed(sample.cache()).empty());
}

TEST_CASE("inside: what may not be read is neither empty nor damaged") {
  if (!is_root()) return;  // the modes bind the other user
  Sample sample;
  sample.install_version(1);
  const Public readable(sample);
  for (const char* closed : {"", "refs", "blobs", "unpacked"}) {
    CAPTURE(closed);
    fs::permissions(sample / closed, fs::perms(0700));
    const int denied = static_cast<int>(ErrorCode::kCache);
    CHECK(as_user(kNobody, kNobody, 022, [&] { verify_installed(sample.cache()); }) == denied);
    if (std::string_view(closed) == "unpacked") {
      CHECK(as_user(kNobody, kNobody, 022, [&] { install("sample", sample.request); }) == denied);
    } else {
      CHECK(as_user(kNobody, kNobody, 022, [&] { list_installed(sample.cache()); }) == denied);
    }
    fs::permissions(sample / closed, fs::perms(0755));
  }
}

TEST_CASE("inside: a pipe in the place of a lock is an error, not a wait") {
  for (const bool store : {true, false}) {
    CAPTURE(store);
    Sample sample;
    sample.install_version(1);
    const fs::path path =
        store ? sample / "store.lock"
              : sample / ("locks/" + sample.manifest().config.digest.hex() + ".use");
    fs::remove(path);
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    ::alarm(20);
    const Error error = error_of([&] { get_kernel("sample", sample.request); });
    CHECK(error.code() == ErrorCode::kIntegrity);
    CHECK_CONTAINS(error.what(), "expected a regular file. Remove it");
    if (store)
      CHECK(error_of([&] { repair(sample.cache(), Settings()); }).code() == ErrorCode::kIntegrity);
    ::alarm(0);
  }
}

TEST_CASE("inside: a path that is not UTF-8 is refused before anything is fetched") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  Request request = sample.request;
  request.cache = sample.scratch / "\xff";
  const Error cache = error_of([&] { install("sample", request); });
  CHECK(cache.code() == ErrorCode::kUsage);
  CHECK_CONTAINS(cache.what(), "\\xff");
  request = sample.request;
  request.registry = (sample.scratch / "\xc3\x28").string();
  CHECK(error_of([&] { install("sample", request); }).code() == ErrorCode::kUsage);
  CHECK_FALSE(fs::exists(sample.request.cache));
}

TEST_CASE("inside: what is not there is not whole") {
  Sample sample;
  CHECK(error_of([&] { verify_installed(sample.cache()); }).code() == ErrorCode::kNotFound);
  sample.install_version(1);
  CHECK(verify_installed(sample.cache(), "sample", 1).size() > 1);
  const Error error = error_of([&] { verify_installed(sample.cache(), "nosuch", 1); });
  CHECK(error.code() == ErrorCode::kNotFound);
  CHECK_CONTAINS(error.what(), "verify nosuch@1");
  CHECK(error_of([&] { verify_installed(sample.cache(), "sample", 2); }).code() ==
        ErrorCode::kNotFound);
}

TEST_CASE("inside: who waits for another process says so, and can be stopped") {
  Sample sample;
  sample.install_version(1);
  const FileLock alone = sample.cache().use_alone();
  REQUIRE(alone.held());
  std::stop_source stop;
  std::string note;
  const Cache cache(sample.request.cache, stop.get_token(), [&](const Event& event) {
    CHECK(event.stage == Event::Stage::kWait);
    CHECK(to_string(event.stage) == "wait");
    note = event.note;
    stop.request_stop();
  });
  const Error error = error_of([&] { verify_installed(cache); });  // gc would have removed half
  CHECK(error.code() == ErrorCode::kCancelled);
  CHECK_CONTAINS(note, "process");
  CHECK_CONTAINS(note, "store.lock");
}

TEST_CASE("inside: files that nobody installed are found, and removed by repair") {
  Sample sample;
  sample.install_version(1);
  const fs::path folder = sample.cache().unpacked_path(sample.manifest().config.digest);
  for (const char* planted : {"lib/libother.so", "more/x", "x"}) {
    CAPTURE(planted);
    write_file(folder / planted, "planted");
    std::vector<CheckedFile> damaged = verify_installed(sample.cache());
    std::erase_if(damaged, [](const CheckedFile& file) { return file.problem.empty(); });
    REQUIRE(damaged.size() == 1);
    CHECK_CONTAINS(damaged[0].problem, "not in its config");
    CHECK(repair(sample.cache(), Settings()).size() == 1);
    CHECK_FALSE(fs::exists(folder / planted));
    CHECK(fs::exists(folder / "LICENSE"));
  }
}

TEST_CASE("inside: a damaged version is told of by the list") {
  Sample sample;
  sample.install_version(1);
  const Ref ref = sample.cache().refs().at(0);
  damage(sample.cache().blob_path(ref.index.digest));
  int told = 0;
  const auto damaged = [&](const std::string& name, int version, const Error& error) {
    ++told;
    CHECK(name == "sample");
    CHECK(version == 1);
    CHECK(error.code() == ErrorCode::kIntegrity);
  };
  CHECK(list_installed(sample.cache(), damaged).empty());
  CHECK(told == 1);
  const fs::path path = sample.cache().ref_path(ref.registry, ref.name, ref.version);
  fs::remove(path);
  write_file(path, "{}");
  CHECK(list_installed(sample.cache(), damaged).empty());
  CHECK(told == 2);
}

TEST_CASE("inside: between the read and the write of a ref nobody else writes it") {
  Sample sample;
  const auto ref_to = [](std::string_view text) {
    return Ref{"/registry", "sample", 1, {"x/y", Digest::of(text), text.size()}};
  };
  sample.cache().write_ref(ref_to("old"), [](const Ref&) { return true; });
  std::thread other;
  std::atomic<bool> reads = false;
  sample.cache().write_ref(ref_to("newest"), [&](const Ref&) {
    other = std::thread([&] {
      sample.cache().write_ref(ref_to("stale"), [&](const Ref& known) {
        reads = true;
        return known.index.digest != Digest::of("newest");
      });
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    CHECK_FALSE(reads);
    return true;
  });
  other.join();
  CHECK(reads);
  CHECK(sample.cache().read_ref("/registry", "sample", 1)->index.digest == Digest::of("newest"));
  const auto before = sample.files();
  collect_garbage(sample.cache());
  CHECK(sample.files() == before);
}

}  // namespace
}  // namespace kiln::test
