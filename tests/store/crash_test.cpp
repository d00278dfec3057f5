// SPDX-License-Identifier: Apache-2.0
//
// Crash: the real kiln is killed, or its disk fails, at every call that changes the cache, with
// strace's fault injection. After each: what is there is whole, the next install succeeds, and gc
// leaves the tree that an undisturbed install leaves. A kill is no power cut, so the order of the
// calls is checked too: bytes are synced before their rename, and the folder after it.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>

#include "sample.hpp"
#include "server.hpp"
#include "store/gc.hpp"
#include "store/repair.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMemoryDisk = "/dev/shm";  // hundreds of installs: syncs cost nothing there

bool can_trace() {
  return std::system("strace -f -o /dev/null true 2>/dev/null") == 0;
}

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

  /// The exit code of `kiln install` under strace; 128 and more: it was killed.
  int install_under(const std::string& strace_options) const {
    const std::string command =
        "strace -f -qq " + strace_options + " " KILN_BINARY " install --quiet --device cpu" +
        " --registry " + registry + " --cache " + root().string() + " sample@1 >" +
        (sample.scratch / "stdout").string() + " 2>" + (sample.scratch / "stderr").string();
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
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

TEST_CASE("crash: killed at every call that changes the cache") {
  if (!can_trace()) {
    MESSAGE("skipped: strace is not installed, or may not trace here");
    return;
  }
  std::map<std::string, int> kills;
  in_each_scene([&](const Scene& scene, const std::set<std::string>& clean) {
    for (const std::string call :
         {"write", "fsync", "rename", "unlink", "mkdir", "fchmod", "ftruncate", "flock"}) {
      const int calls = scene.count(call);
      for (int at = 1; at <= calls; ++at) {
        CAPTURE(call);
        CAPTURE(at);
        scene.reset();
        const int code =
            scene.install_under("-o /dev/null -e trace=" + call + " -e inject=" + call +
                                ":signal=SIGKILL:when=" + std::to_string(at));
        CHECK(code == 128 + SIGKILL);
        scene.check_after(clean);
        ++kills[call];
      }
    }
  });
  int all = 0;
  std::string text;
  for (const auto& [call, count] : kills) {
    all += count;
    text += " " + call + " " + std::to_string(count);
  }
  MESSAGE(all, " kills:", text);
  CHECK(kills["write"] >= 4 * 8);  // four documents, the layer, two files, a ref, a tag
  CHECK(kills["rename"] >= 2 * 7 + 2 * 6);
  CHECK(kills["fsync"] >= 4 * 20);
}

TEST_CASE("crash: a disk that is full or fails at every call that changes the cache") {
  if (!can_trace()) {
    MESSAGE("skipped: strace is not installed, or may not trace here");
    return;
  }
  int points = 0;
  int refused = 0;
  in_each_scene([&](const Scene& scene, const std::set<std::string>& clean) {
    for (const std::string call : {"write", "fsync", "rename", "mkdir"}) {
      const int calls = scene.count(call);
      for (const std::string error : {"ENOSPC", "EDQUOT", "EIO"}) {
        for (int at = 1; at <= calls; ++at) {
          CAPTURE(call);
          CAPTURE(error);
          CAPTURE(at);
          scene.reset();
          const int code =
              scene.install_under("-o /dev/null -e trace=" + call + " -e inject=" + call +
                                  ":error=" + error + ":when=" + std::to_string(at));
          ++points;
          ++refused;
          CAPTURE(scene.messages());
          CHECK(code == static_cast<int>(ErrorCode::kCache));
          // The last write prints the result.
          const bool result = scene.messages().find("to stdout") != std::string::npos;
          const char* next = error != "EIO" ? "Make room" : result ? "Check where" : "KILN_CACHE";
          CHECK(scene.messages().find(next) != std::string::npos);
          for (const std::string& file : scene.sample.files()) {
            CHECK_MESSAGE(file.find(".tmp-") == std::string::npos, file);
          }
          scene.check_after(clean);
        }
      }
    }
  });
  MESSAGE(points, " failing calls, ", refused, " refused with kCache");
  CHECK(refused > points * 9 / 10);
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
    for (int at = 1; at < 100; ++at) {
      CAPTURE(call);
      CAPTURE(at);
      fs::remove_all(sample.request.cache);
      sample.install_version(1);
      sample.install_version(2);
      const std::string command =
          "strace -f -qq -o /dev/null -e trace=" + call + " -e inject=" + call +
          ":signal=SIGKILL:when=" + std::to_string(at) + " " KILN_BINARY " gc --unlocked --cache " +
          sample.request.cache.string() + " >/dev/null 2>&1";
      if (std::system(command.c_str()) == 0) break;  // this call happens fewer times
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
    const std::regex synced_line(R"(fsync\(\d+<([^>]*)>\) += 0)");
    const std::regex renamed_line(R"re(rename\("([^"]*)", "([^"]*)"\) += 0)re");
    std::set<fs::path> synced;
    std::vector<std::string> renamed;
    std::ifstream lines(trace);
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      if (std::regex_search(line, match, synced_line)) {
        synced.insert(match[1].str());
      } else if (std::regex_search(line, match, renamed_line)) {
        const fs::path from = match[1].str();
        const fs::path to = match[2].str();
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
