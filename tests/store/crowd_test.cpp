// SPDX-License-Identifier: Apache-2.0
//
// Crowd: 64 processes, and 64 threads, that start at once on an empty cache; and the same with half
// of the processes killed.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <random>
#include <thread>
#include <vector>

#include "kiln/kernel.hpp"
#include "sample.hpp"
#include "server.hpp"
#include "store/gc.hpp"
#include "store/repair.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

constexpr int kCrowd = 64;

/// Children that wait for the registry's URL, then load the kernel from it. Made before the server,
/// whose threads a fork would lack.
std::vector<pid_t> start_crowd(const Sample& sample, const fs::path& url) {
  std::vector<pid_t> children;
  for (int i = 0; i < kCrowd; ++i) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    int code = 1;
    try {
      while (!fs::exists(url)) ::usleep(1000);
      Request request = sample.request;
      request.registry = read_file(url);
      const int before = loaded_libraries();
      const Kernel kernel = get_kernel("sample", request);
      code = loaded_libraries() == before + 1 ? 0 : 2;
    } catch (const Error& error) {
      std::fprintf(stderr, "a child of the crowd: %s\n", error.what());
      code = static_cast<int>(error.code());
    }
    ::_exit(code);
  }
  return children;
}

void publish_url(const Sample& sample, const Server& server, const fs::path& url) {
  write_file(sample.scratch / "draft", server.url());
  fs::rename(sample.scratch / "draft", url);
}

/// How often the manifest, the config and the layer were asked for.
std::vector<int> downloads(const Sample& sample, const Server& server) {
  const VariantManifest manifest = sample.manifest();
  return {server.count(sample.published.drafts().at(0).variant.manifest.digest.str()),
          server.count(manifest.config.digest.str()), server.count(manifest.layer.digest.str())};
}

TEST_CASE("crowd: 64 processes on an empty cache download each blob once and load once each") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  const fs::path url = sample.scratch / "url";
  const std::vector<pid_t> children = start_crowd(sample, url);
  const Server server(sample.published.root());
  publish_url(sample, server, url);
  int good = 0;
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (status == 0) ++good;
  }
  CHECK(good == kCrowd);
  CHECK(downloads(sample, server) == std::vector<int>{1, 1, 1});
  for (const CheckedFile& file : verify_installed(sample.cache())) CHECK(file.problem == "");
  CHECK(fs::is_empty(sample / "ingest"));
}

TEST_CASE("crowd: half of the processes are killed at random moments, the others succeed") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  const fs::path url = sample.scratch / "url";
  const std::vector<pid_t> children = start_crowd(sample, url);
  const Server server(sample.published.root());
  publish_url(sample, server, url);
  const unsigned seed = std::random_device()();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < kCrowd / 2; ++i) {
    ::usleep(static_cast<useconds_t>(random() % 10000));
    ::kill(children[static_cast<std::size_t>(i)], SIGKILL);
  }
  int good = 0;
  int killed = 0;
  for (std::size_t i = 0; i < children.size(); ++i) {
    int status = 0;
    REQUIRE(::waitpid(children[i], &status, 0) == children[i]);
    if (WIFSIGNALED(status)) {
      ++killed;
    } else if (status == 0) {
      ++good;
    }
  }
  CHECK(good + killed == kCrowd);
  CHECK(good >= kCrowd / 2);
  // Again only after a kill in the middle of it.
  for (const int count : downloads(sample, server)) CHECK(count <= 1 + killed);
  Request request = sample.request;
  request.registry = server.url();
  CHECK(get_kernel("sample", request).version() == 1);
  collect_garbage(sample.cache(), {.partial = true});
  for (const CheckedFile& file : verify_installed(sample.cache())) CHECK(file.problem == "");
  for (const std::string& file : sample.files()) {
    CHECK_MESSAGE(file.find(".tmp-") == std::string::npos, file);
  }
  CHECK(fs::is_empty(sample / "ingest"));
}

TEST_CASE("crowd: 64 threads of one process: one download, one load") {
  Sample sample;
  sample.published.publish({cpu_draft(sample_library())});
  const Server server(sample.published.root());
  Request request = sample.request;
  request.registry = server.url();
  const int before = loaded_libraries();
  std::atomic<int> good = 0;
  std::atomic<bool> go = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < kCrowd; ++i) {
    threads.emplace_back([&] {
      while (!go) std::this_thread::yield();
      if (get_kernel("sample", request).version() == 1) ++good;
    });
  }
  go = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(good == kCrowd);
  CHECK(loaded_libraries() == before + 1);
  CHECK(downloads(sample, server) == std::vector<int>{1, 1, 1});
  CHECK(get_kernel("sample", request).op("probe").workspace_bytes({}) == 1);  // prepared once
}

}  // namespace
}  // namespace kiln::test
