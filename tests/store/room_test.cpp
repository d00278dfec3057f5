// SPDX-License-Identifier: Apache-2.0
//
// Where a cache may be, who may share it, and what is said before a disk is full.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <limits>
#include <optional>

#include "sample.hpp"

namespace kiln::test {
namespace {

std::optional<fsblkcnt_t> g_free_bytes;  // of every disk

}  // namespace
}  // namespace kiln::test

// In libc's place: as large as the disk of a test is, it may be full.
extern "C" int statvfs(const char* path, struct statvfs* disk) {
  static const auto libcs = reinterpret_cast<decltype(&statvfs)>(::dlsym(RTLD_NEXT, "statvfs"));
  const int result = libcs(path, disk);
  if (result == 0 && kiln::test::g_free_bytes) {
    disk->f_bavail = *kiln::test::g_free_bytes;
    disk->f_frsize = 1;
  }
  return result;
}

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kNobodyElse = 65534;

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

TEST_CASE("room: a package that cannot fit is refused before it is fetched, with what is missing") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  const VariantManifest manifest = sample.manifest();
  const std::uint64_t needed = manifest.layer.size + manifest.unpacked_size;
  g_free_bytes = needed - 3;
  const Error error = error_of([&] { install("sample", sample.request); });
  CHECK(error.code() == ErrorCode::kCache);
  CHECK_CONTAINS(error.what(), "install sample@1 cpu-base: it needs " + std::to_string(needed));
  CHECK_CONTAINS(error.what(), "3 too few. Make room");
  CHECK_FALSE(Cache(sample.scratch / "cache").has_blob(manifest.layer.digest));
  g_free_bytes = needed;
  install("sample", sample.request);
  g_free_bytes.reset();
}

TEST_CASE("room: the message counts the bytes that are too few") {
  Scratch scratch;
  check_room(scratch.path(), 1, "a byte");
  const std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
  const Error error = error_of([&] { check_room(scratch.path(), all, "everything"); });
  CHECK_CONTAINS(error.what(), "it needs 18446744073709551615 bytes");
}

TEST_CASE("room: an empty CACHEDIR.TAG, as an interrupted Kiln left it, is written anew") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  write_file(sample.scratch / "cache/CACHEDIR.TAG", "");
  install("sample", sample.request);
  CHECK_CONTAINS(read_file(sample.scratch / "cache/CACHEDIR.TAG"),
                 "Signature: 8a477f597d28d172789f06886806bc55");
}

TEST_CASE("room: the root may be a link of this user's, not of another one's") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  fs::create_directory(sample.scratch / "disk");
  fs::create_symlink(sample.scratch / "disk", sample.scratch / "cache");
  install("sample", sample.request);
  CHECK(fs::exists(sample.scratch / "disk" / "store.lock"));
  if (::geteuid() != 0 ||
      ::lchown((sample.scratch / "cache").c_str(), kNobodyElse, kNobodyElse) != 0)
    return;  // only root may
  const Error error = error_of([&] { install("sample", sample.request); });
  CHECK(error.code() == ErrorCode::kCache);
  CHECK_CONTAINS(error.what(), "symbolic link of user 65534");
}

TEST_CASE("room: a root that its group may write to stays shared by the group") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  fs::create_directory(sample.scratch / "cache");
  REQUIRE(::chmod((sample.scratch / "cache").c_str(), 0775) == 0);
  install("sample", sample.request);
  for (const char* folder : {"blobs/sha256", "refs", "ingest", "unpacked", "locks"}) {
    CAPTURE(folder);
    CHECK(mode_of(sample.scratch / "cache" / folder) == 02775);
  }
}

TEST_CASE("room: a folder below the root that everyone may write to is refused") {
  for (const char* folder : {"blobs/sha256", "refs", "unpacked"}) {
    CAPTURE(folder);
    Sample sample;
    sample.published.publish({cpu_draft(sample_library())});
    install("sample", sample.request);
    REQUIRE(::chmod((sample.scratch / "cache" / folder).c_str(), 0777) == 0);
    const Error error = error_of([&] { install("sample", sample.request); });
    CHECK(error.code() == ErrorCode::kCache);
    CHECK_CONTAINS(error.what(), "chmod o-w");
  }
}

}  // namespace
}  // namespace kiln::test
