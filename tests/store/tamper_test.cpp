// SPDX-License-Identifier: Apache-2.0
//
// Tampering after an install: refused with kIntegrity, restored by repair; and what is mapped is
// what was hashed, whatever happens to the file meanwhile.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>

#include "kiln/kernel.hpp"
#include "sample.hpp"
#include "store/installed.hpp"
#include "store/repair.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

/// Moves a file or folder out of the cache and leaves a link to it.
void make_link(Sample& sample, const fs::path& path) {
  fs::rename(path, sample.scratch / "moved");
  fs::create_symlink(sample.scratch / "moved", path);
}

/// As who may write to what is read-only: root, or its owner after a chmod.
void resize(const fs::path& path, std::uintmax_t bytes) {
  fs::permissions(path, fs::perms::owner_write, fs::perm_options::add);
  fs::resize_file(path, bytes);
}

void replace(const fs::path& path, std::string_view bytes) {
  fs::remove_all(path);
  write_file(path, bytes);
}

struct Case {
  const char* what;
  std::function<void(Sample&, const Installed&)> tamper;
};

fs::path ref_of(const Sample& sample) {
  return sample.cache().ref_path(sample.published.root().string(), "sample", 1);
}
fs::path index_of(const Sample& sample) {
  return sample.cache().blob_path(sample.cache().refs().at(0).index.digest);
}
fs::path manifest_of(const Sample& sample) {
  return sample.cache().blob_path(sample.published.drafts().at(0).variant.manifest.digest);
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"library edited", [](Sample&, const Installed& at) { damage(at.package.library); }},
      {"library replaced by another good one",
       [](Sample&, const Installed& at) { replace(at.package.library, sample_library("other")); }},
      {"library cut", [](Sample&, const Installed& at) { resize(at.package.library, 100); }},
      {"library emptied", [](Sample&, const Installed& at) { resize(at.package.library, 0); }},
      {"library appended to",
       [](Sample&, const Installed& at) {
         replace(at.package.library, read_file(at.package.library) + "x");
       }},
      {"library a hard link to another file",
       [](Sample& sample, const Installed& at) {
         write_file(sample.scratch / "other", sample_library("other"));
         fs::remove(at.package.library);
         fs::create_hard_link(sample.scratch / "other", at.package.library);
       }},
      {"library a link to the same bytes",
       [](Sample& sample, const Installed& at) { make_link(sample, at.package.library); }},
      {"library a pipe",
       [](Sample&, const Installed& at) {
         fs::remove(at.package.library);
         REQUIRE(::mkfifo(at.package.library.c_str(), 0600) == 0);
       }},
      {"library a folder",
       [](Sample&, const Installed& at) {
         fs::remove(at.package.library);
         fs::create_directory(at.package.library);
       }},
      {"folder of the library a link",
       [](Sample& sample, const Installed& at) {
         make_link(sample, at.package.library.parent_path());
       }},
      {"folder of the variant a link",
       [](Sample& sample, const Installed& at) { make_link(sample, at.package.folder); }},
      {"unpacked a link",
       [](Sample& sample, const Installed&) { make_link(sample, sample / "unpacked"); }},
      {"blobs a link",
       [](Sample& sample, const Installed&) { make_link(sample, sample / "blobs"); }},
      {"blobs/sha256 a link",
       [](Sample& sample, const Installed&) { make_link(sample, sample / "blobs/sha256"); }},
      {"refs a link", [](Sample& sample, const Installed&) { make_link(sample, sample / "refs"); }},
      {"folder of a ref a link",
       [](Sample& sample, const Installed&) { make_link(sample, ref_of(sample).parent_path()); }},
      {"ref a link", [](Sample& sample, const Installed&) { make_link(sample, ref_of(sample)); }},
      {"ref edited", [](Sample& sample, const Installed&) { replace(ref_of(sample), "{}"); }},
      {"ref of another package",
       [](Sample& sample, const Installed&) {
         std::string text = read_file(ref_of(sample));
         text.replace(text.find("\"sample\""), 8, "\"simple\"");
         replace(ref_of(sample), text);
       }},
      {"index edited", [](Sample& sample, const Installed&) { damage(index_of(sample)); }},
      {"index a link",
       [](Sample& sample, const Installed&) { make_link(sample, index_of(sample)); }},
      {"index a pipe",
       [](Sample& sample, const Installed&) {
         const fs::path index = index_of(sample);
         fs::remove(index);
         REQUIRE(::mkfifo(index.c_str(), 0600) == 0);
       }},
      {"manifest edited", [](Sample& sample, const Installed&) { damage(manifest_of(sample)); }},
      {"config edited",
       [](Sample& sample, const Installed&) {
         damage(sample.cache().blob_path(sample.manifest().config.digest));
       }},
      {"blobs exchanged",
       [](Sample& sample, const Installed&) {
         const fs::path config = sample.cache().blob_path(sample.manifest().config.digest);
         fs::rename(config, sample.scratch / "moved");
         fs::rename(manifest_of(sample), config);
         fs::rename(sample.scratch / "moved", manifest_of(sample));
       }},
  };
  return all;
}

std::size_t damaged_files(const Cache& cache) {
  const std::vector<CheckedFile> checked = verify_installed(cache);
  return static_cast<std::size_t>(
      std::count_if(checked.begin(), checked.end(),
                    [](const CheckedFile& file) { return !file.problem.empty(); }));
}

/// The digest of each memory file that Kiln has in this process.
std::set<std::string> mapped_digests() {
  std::set<std::string> found;
  for (const auto& each : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(each.path(), error).string();
    if (!target.starts_with("/memfd:kiln:")) continue;
    const FileDescriptor file = try_open(each.path(), O_RDONLY);
    Sha256 hash;
    read_pieces(file.get(), each.path(), [&](std::string_view piece) { hash.update(piece); });
    found.insert(hash.finish().hex());
  }
  return found;
}

constexpr useconds_t kPauseMicroseconds = 200;

/// A child that does `swap` all the time, while it lives.
class Swapper {
 public:
  explicit Swapper(const std::function<bool()>& swap) : child_(::fork()) {
    if (child_ != 0) return;
    while (swap()) ::usleep(kPauseMicroseconds);
    ::_exit(1);
  }
  ~Swapper() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Swapper(const Swapper&) = delete;
  Swapper& operator=(const Swapper&) = delete;

 private:
  pid_t child_;
};

// First, as a fork copies all that the tests before have touched.
TEST_CASE("tamper: a library that is swapped while it is loaded is refused or the right one") {
  constexpr int kLoads = 500;
  Sample sample;
  // Large enough to be read in many pieces: an ELF file may have a tail.
  sample.published.publish({cpu_draft(sample_library() + std::string(std::size_t{1} << 20, 'x'))});
  const fs::path library = install("sample", sample.request).package.library;
  const std::string good = read_file(library);
  std::string bad = good;
  bad.back() = static_cast<char>(bad.back() ^ 1);  // the tail of an ELF file: it would load
  const fs::path other = sample.scratch / "other";
  write_file(other, bad);
  ::chmod(library.c_str(), 0644);
  const std::vector<std::function<bool()>> swaps{
      // Another file of that name.
      [&] {
        return ::renameat2(AT_FDCWD, other.c_str(), AT_FDCWD, library.c_str(), RENAME_EXCHANGE) ==
               0;
      },
      // Other bytes in the same file.
      [&, good_next = false]() mutable {
        const FileDescriptor file = try_open(library, O_WRONLY);
        good_next = !good_next;
        const char last = good_next ? bad.back() : good.back();
        return ::pwrite(file.get(), &last, 1, static_cast<off_t>(good.size()) - 1) == 1;
      }};
  for (std::size_t i = 0; i < swaps.size(); ++i) {
    CAPTURE(i);
    std::map<int, int> ends;
    {
      const Swapper swapper(swaps[i]);
      for (int load = 0; load < kLoads; ++load) {
        // In a process of its own: this one would keep the first library that it loads.
        const pid_t child = ::fork();
        if (child == 0) {
          const auto before = mapped_digests();
          int code = 1;
          try {
            const Kernel kernel = get_kernel("sample", sample.request);
            auto after = mapped_digests();
            for (const std::string& each : before) after.erase(each);
            code = after == std::set<std::string>{Digest::of(good).hex()} ? 0 : 2;
          } catch (const Error& error) {
            code = static_cast<int>(error.code());
          }
          ::_exit(code);
        }
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        ++ends[status];
      }
    }
    const int refused = ends[static_cast<int>(ErrorCode::kIntegrity) << 8];
    CHECK(ends[0] + refused == kLoads);
    CHECK(ends[0] > 0);
    CHECK(refused > 0);
    write_file(library, good);
  }
}

TEST_CASE("tamper: refused with integrity, seen by verify, and restored by repair") {
  for (const Case& each : cases()) {
    CAPTURE(each.what);
    Sample sample;
    sample.published.publish({cpu_draft(sample_library())});
    {
      const Installed installed = install("sample", sample.request);
      each.tamper(sample, installed);
    }
    const int before = loaded_libraries();
    const Error error = error_of([&] { get_kernel("sample", sample.request); });
    CHECK(error.code() == ErrorCode::kIntegrity);
    CHECK(loaded_libraries() == before);
    CHECK(damaged_files(sample.cache()) > 0);

    const std::vector<CheckedFile> repaired = repair(sample.cache(), load_settings());
    CHECK_FALSE(repaired.empty());
    for (const CheckedFile& done : repaired) CHECK_MESSAGE(!done.failed, done.done);
    CHECK(damaged_files(sample.cache()) == 0);
    CHECK(repair(sample.cache(), load_settings()).empty());
    CHECK(get_kernel("sample", sample.request).version() == 1);
  }
}

TEST_CASE("tamper: repair without the registry says what is missing, and goes on later") {
  Sample sample;
  sample.install_version(1);
  damage(sample.cache().blob_path(sample.manifest().config.digest));
  Settings without_network = load_settings();
  without_network.offline = true;
  const std::vector<CheckedFile> offline = repair(sample.cache(), without_network);
  REQUIRE(offline.size() == 1);
  CHECK(offline[0].failed == ErrorCode::kOffline);
  CHECK_CONTAINS(offline[0].problem, "digest is");
  CHECK_CONTAINS(offline[0].done, "not fetched again");
  const std::vector<CheckedFile> online = repair(sample.cache(), load_settings());
  REQUIRE(online.size() == 1);
  CHECK_FALSE(online[0].failed);
  CHECK(damaged_files(sample.cache()) == 0);
  CHECK(list_installed(sample.cache()).size() == 1);
}

TEST_CASE("tamper: what is mapped is what was hashed, and sealed") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  const auto before = mapped_digests();
  const Kernel kernel = get_kernel("sample", sample.request);
  const Digest promised = Digest::of(read_file(kernel.library()));
  damage(kernel.library());
  auto after = mapped_digests();
  for (const std::string& each : before) after.erase(each);
  CHECK(after == std::set<std::string>{promised.hex()});
}

}  // namespace
}  // namespace kiln::test
