// SPDX-License-Identifier: Apache-2.0
//
// Crash: the real kiln is killed, or its disk fails, at calls that change the cache, with strace's
// fault injection: at each fourth, each eighth with KILN_SHARE=2, or at every one with
// KILN_EXHAUSTIVE=1. After each: what is
// there is whole, the next install succeeds, and gc leaves the tree that an undisturbed install
// leaves. A kill is no power cut, so the order of the calls is checked too: bytes are synced before
// their rename, and the folder after it.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

#include "base/join.hpp"
#include "sample.hpp"
#include "server.hpp"
#include "store/gc.hpp"
#include "store/repair.hpp"
#include "store_paths.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMemoryDisk = "/dev/shm";  // hundreds of installs: syncs cost nothing there

bool can_trace() {
  return std::system("strace -f -o /dev/null true 2>/dev/null") == 0;
}

/// The exit code of kiln under strace, its output in files of `folder`; 128 and more: it was
/// killed.
int run_under(const std::string& strace_options, const std::string& arguments,
              const fs::path& folder) {
  const std::string command = "strace -f -qq " + strace_options + " " + paths::kKiln + " " +
                              arguments + " >" + (folder / "stdout").string() + " 2>" +
                              (folder / "stderr").string();
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Which of many points are tried. It counts on from scene to scene, so that another share is tried
/// in each.
class Share {
 public:
  bool takes_next() { return seen_++ % of_ == 0 && ++taken_ != 0; }
  int seen() const { return seen_; }
  int taken() const { return taken_; }

 private:
  /// As tests/sampling.py reads the environment.
  static int each_nth() {
    const char* all = std::getenv("KILN_EXHAUSTIVE");
    if (all != nullptr && *all != '\0' && std::string_view(all) != "0") return 1;
    const char* share = std::getenv("KILN_SHARE");
    return share != nullptr ? 4 * std::atoi(share) : 4;
  }

  int of_ = each_nth();
  int seen_ = 0;
  int taken_ = 0;
};

/// One way to install: from a folder or a server, into an empty cache or over a cut download.
struct Scene {
  Sample& sample;
  std::string registry;
  bool resumed;

  fs::path root() const { return sample.request.cache; }

  void reset() const {
    fs::remove_all(root());
    if (!resumed) return;
    const Digest layer = sample.manifest().layer.digest;
    const std::string bytes = read_file(sample.published.blob("sample", layer));
    Cache(root()).use_to_write();
    write_file(root() / "ingest" / (layer.hex() + ".part"), bytes.substr(0, bytes.size() / 2));
  }

  int install_under(const std::string& strace_options) const {
    return run_under(strace_options,
                     "install --quiet --device cpu --registry " + registry + " --cache " +
                         root().string() + " sample@1",
                     sample.scratch.path());
  }

  std::string messages() const { return read_file(sample.scratch / "stderr"); }

  /// How often an undisturbed install makes a call.
  int count(const std::string& call) const {
    reset();
    const fs::path trace = sample.scratch / "trace";
    REQUIRE(install_under("-o " + trace.string() + " -e trace=" + call) == 0);
    std::ifstream lines(trace);
    int calls = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.find(" " + call + "(") != std::string::npos) ++calls;
    }
    return calls;
  }

  /// Whole now, complete after the next install, clean after gc.
  void check_after(const std::set<std::string>& clean) const {
    const Cache cache(root());
    if (fs::exists(root())) {
      for (const CheckedFile& file : verify_installed(cache)) {
        CHECK_MESSAGE(file.problem.empty(), file.file.string(), ": ", file.problem);
      }
    }
    Request request = sample.request;
    request.registry = registry;
    CHECK(install("sample", request).package.variant.id == "cpu-base");
    for (const CheckedFile& file : verify_installed(cache)) CHECK(file.problem == "");
    collect_garbage(cache, {.partial = true});
    CHECK(sample.files() == clean);
  }
};

/// Runs `check` for a folder and for a server, cold and resumed.
template <class Check>
void in_each_scene(const Check& check) {
  const Environment disk("TMPDIR", ::access(kMemoryDisk, W_OK) == 0 ? kMemoryDisk : "/tmp");
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  const Server server(sample.published.root());
  for (const std::string& registry : {sample.published.root().string(), server.url()}) {
    for (const bool resumed : {false, true}) {
      CAPTURE(registry);
      CAPTURE(resumed);
      const Scene scene{sample, registry, resumed};
      scene.reset();
      Request request = sample.request;
      request.registry = registry;
      install("sample", request);
      collect_garbage(sample.cache());
      const std::set<std::string> clean = sample.files();
      check(scene, clean);
    }
  }
}

TEST_CASE("crash: killed at calls that change the cache") {
  if (!can_trace()) {
    MESSAGE("skipped: strace is not installed, or may not trace here");
    return;
  }
  std::map<std::string, Share> kills;
  in_each_scene([&](const Scene& scene, const std::set<std::string>& clean) {
    for (const std::string call :
         {"write", "fsync", "rename", "unlink", "mkdir", "fchmod", "ftruncate", "flock"}) {
      const int calls = scene.count(call);
      for (int at = 1; at <= calls; ++at) {
        if (!kills[call].takes_next()) continue;
        CAPTURE(call);
        CAPTURE(at);
        scene.reset();
        const int code =
            scene.install_under("-o /dev/null -e trace=" + call + " -e inject=" + call +
                                ":signal=SIGKILL:when=" + std::to_string(at));
        CHECK(code == 128 + SIGKILL);
        scene.check_after(clean);
      }
    }
  });
  int all = 0;
  std::string text;
  for (const auto& [call, share] : kills) {
    all += share.taken();
    text +=
        " " + call + " " + std::to_string(share.taken()) + " of " + std::to_string(share.seen());
  }
  MESSAGE(all, " kills:", text);
  CHECK(kills["write"].seen() >= 4 * 8);  // four documents, the layer, two files, a ref, a tag
  CHECK(kills["rename"].seen() >= 2 * 7 + 2 * 6);
  CHECK(kills["fsync"].seen() >= 4 * 20);
}

TEST_CASE("crash: a disk that is full or fails at calls that change the cache") {
  if (!can_trace()) {
    MESSAGE("skipped: strace is not installed, or may not trace here");
    return;
  }
  Share failures;
  in_each_scene([&](const Scene& scene, const std::set<std::string>& clean) {
    for (const std::string call : {"write", "fsync", "rename", "mkdir"}) {
      const int calls = scene.count(call);
      for (const std::string error : {"ENOSPC", "EDQUOT", "EIO"}) {
        for (int at = 1; at <= calls; ++at) {
          if (!failures.takes_next()) continue;
          CAPTURE(call);
          CAPTURE(error);
          CAPTURE(at);
          scene.reset();
          const int code =
              scene.install_under("-o /dev/null -e trace=" + call + " -e inject=" + call +
                                  ":error=" + error + ":when=" + std::to_string(at));
          const std::string said = scene.messages();
          CAPTURE(said);
          CHECK(code == static_cast<int>(ErrorCode::kCache));
          // The last write prints the result.
          const bool result = said.find("to stdout") != std::string::npos;
          const char* next = error != "EIO" ? "Make room" : result ? "Check where" : "KILN_CACHE";
          CHECK(said.find(next) != std::string::npos);
          for (const std::string& file : scene.sample.files()) {
            CHECK_MESSAGE(file.find(".tmp-") == std::string::npos, file);
          }
          scene.check_after(clean);
        }
      }
    }
  });
  MESSAGE(failures.taken(), " of ", failures.seen(), " failing calls, each refused with kCache");
  CHECK(failures.seen() > 300);
}

TEST_CASE("crash: gc killed at every call that removes leaves a whole cache") {
  if (!can_trace()) {
    MESSAGE("skipped: strace is not installed, or may not trace here");
    return;
  }
  const Environment disk("TMPDIR", ::access(kMemoryDisk, W_OK) == 0 ? kMemoryDisk : "/tmp");
  Sample sample;
  int kills = 0;
  for (const std::string call : {"unlink", "unlinkat", "rename", "rmdir", "fsync"}) {
    for (int at = 1;; ++at) {
      CAPTURE(call);
      CAPTURE(at);
      fs::remove_all(sample.request.cache);
      sample.install_version(1);
      sample.install_version(2);
      const int code = run_under("-o /dev/null -e trace=" + call + " -e inject=" + call +
                                     ":signal=SIGKILL:when=" + std::to_string(at),
                                 "cache gc --unlocked --cache " + sample.request.cache.string(),
                                 sample.scratch.path());
      if (code == 0) break;  // this call happens fewer times
      REQUIRE(code == 128 + SIGKILL);
      ++kills;
      for (const CheckedFile& file : verify_installed(sample.cache())) CHECK(file.problem == "");
      collect_garbage(sample.cache(), {.unlocked = true, .partial = true});
      CHECK(sample.files() == std::set<std::string>{"CACHEDIR.TAG", "store.lock"});
    }
  }
  MESSAGE(kills, " kills of gc");
  CHECK(kills > 20);  // two refs, two variants of two files each, eight blobs, their locks
}

TEST_CASE("crash: bytes are synced before their rename, and the folder after it") {
  if (!can_trace()) {
    MESSAGE("skipped: strace is not installed, or may not trace here");
    return;
  }
  in_each_scene([&](const Scene& scene, const std::set<std::string>&) {
    scene.reset();
    const fs::path trace = scene.sample.scratch / "trace";
    REQUIRE(scene.install_under("-y -o " + trace.string() + " -e trace=fsync,rename") == 0);
    std::set<fs::path> synced;
    std::vector<std::string> renamed;
    std::ifstream lines(trace);
    for (std::string line; std::getline(lines, line);) {
      if (!line.ends_with(" = 0")) continue;
      // "… fsync(3</path>) = 0" or "… rename("/from", "/to") = 0", with the process before it
      const std::vector<std::string_view> parts = split(line, '"');
      if (const std::size_t open = line.find("fsync("); open != std::string::npos) {
        const std::size_t begin = line.find('<', open) + 1;
        synced.insert(line.substr(begin, line.find('>', begin) - begin));
      } else if (parts.size() == 5 && parts[0].ends_with("rename(")) {
        const fs::path from = parts[1];
        const fs::path to = parts[3];
        CHECK_MESSAGE(synced.contains(from), "renamed before it was synced: ", from.string());
        if (!renamed.empty()) {
          const fs::path folder = fs::path(renamed.back()).parent_path();
          CHECK_MESSAGE(synced.contains(folder), "not synced after a rename: ", folder.string());
        }
        if (to.parent_path().filename() == "unpacked") {
          for (const char* part : {"LICENSE", "lib", "lib/libsample.so"}) {
            CHECK_MESSAGE(synced.contains(from / part), "not synced: ", part);
          }
        }
        synced.erase(to.parent_path());
        renamed.push_back(to.string());
      }
    }
    // The tag, which is there with a leftover, manifest, config, layer, files, index, ref.
    REQUIRE(renamed.size() == (scene.resumed ? 6 : 7));
    CHECK(renamed.back().find("/refs/") != std::string::npos);
    CHECK(synced.contains(fs::path(renamed.back()).parent_path()));
  });
}

}  // namespace
}  // namespace kiln::test
