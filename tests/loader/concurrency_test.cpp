// SPDX-License-Identifier: Apache-2.0
//
// Many at once: threads of one process, processes on one cache, and a fork in between.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "install/install.hpp"
#include "kiln/kiln.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "server.hpp"
#include "store/installed.hpp"

namespace kiln::test {
namespace {

constexpr int kThreads = 8;

/// Runs `work` in a child; whether it ended well.
template <class Work>
pid_t in_child(const Work& work) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int code = 1;
  try {
    code = work() ? 0 : 1;
  } catch (...) {
    code = 2;
  }
  ::_exit(code);
}

int exit_code(pid_t child) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::size_t prepares(const Kernel& kernel) {
  return kernel.op("probe").workspace_bytes({});
}

TEST_CASE("concurrency: eight threads, one request: one download, one load") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const Server server(published.root());
  const Request request{
      .version = 1, .device = Device::cpu(), .registry = server.url(), .cache = scratch / "cache"};
  const int before = loaded_libraries();
  std::vector<const kiln_package*> packages(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      packages[static_cast<std::size_t>(i)] = &get_kernel("sample", request).package();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const kiln_package* package : packages) CHECK(package == packages[0]);
  CHECK(loaded_libraries() == before + 1);
  CHECK(prepares(get_kernel("sample", request)) == 1);
  CHECK(server.asked().size() == 4);  // index, manifest, config, layer
}

TEST_CASE("concurrency: eight threads that fail each get the error, and a retry works") {
  Scratch scratch;
  std::atomic<bool> broken = true;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const Server server(published.root(), [&](const std::string&) -> std::optional<Answer> {
    if (!broken) return std::nullopt;
    return Answer{503, "busy", {}, {}, false};
  });
  const Request request{
      .version = 1, .device = Device::cpu(), .registry = server.url(), .cache = scratch / "cache"};
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      try {
        get_kernel("sample", request);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kNetwork) ++refused;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(refused == kThreads);
  broken = false;
  CHECK(get_kernel("sample", request).version() == 1);
}

TEST_CASE("concurrency: eight threads, different kernels of one cache") {
  Scratch scratch;
  Published published(scratch / "registry");
  std::vector<Draft> drafts;
  for (int i = 0; i < kThreads; ++i) {
    drafts.push_back(cpu_draft(sample_library(), "sample", 1, "cpu-" + std::to_string(i)));
  }
  published.publish(drafts);
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const std::string variant = "cpu-" + std::to_string(i);
      const Kernel kernel = get_kernel("sample", {.version = 1,
                                                  .device = Device::cpu(),
                                                  .registry = published.root().string(),
                                                  .variant = variant,
                                                  .cache = scratch / "cache"});
      if (kernel.variant() == variant) ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == kThreads);
  CHECK(list_installed(Cache(scratch / "cache")).size() == kThreads);
}

TEST_CASE("concurrency: processes on one empty cache download each blob once") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  // The children are made before the server's threads are, and start once its URL is there.
  const std::filesystem::path ready = scratch / "url";
  std::vector<pid_t> children;
  for (int i = 0; i < kThreads; ++i) {
    children.push_back(in_child([&] {
      while (!std::filesystem::exists(ready)) ::usleep(1000);
      const Request request{.version = 1,
                            .device = Device::cpu(),
                            .registry = read_file(ready),
                            .cache = scratch / "cache"};
      return get_kernel("sample", request).version() == 1;
    }));
  }
  const Server server(published.root());
  write_file(scratch / "draft", server.url());
  std::filesystem::rename(scratch / "draft", ready);
  for (const pid_t child : children) CHECK(exit_code(child) == 0);
  const VariantManifest manifest = published.manifest();
  CHECK(server.count(manifest.layer.digest.str()) == 1);
  CHECK(list_installed(Cache(scratch / "cache")).size() == 1);
}

TEST_CASE("concurrency: a child of fork goes on with its parent's kernel and can load more") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  published.publish({cpu_draft(sample_library("version2"), "sample", 2)});
  Request request{.version = 1,
                  .device = Device::cpu(),
                  .registry = published.root().string(),
                  .cache = scratch / "cache"};
  const Kernel kernel = get_kernel("sample", request);
  const pid_t child = in_child([&] {
    if (&get_kernel("sample", request).package() != &kernel.package()) return false;
    Request second = request;
    second.version = 2;
    return get_kernel("sample", second).version() == 2;
  });
  CHECK(exit_code(child) == 0);
}

TEST_CASE("concurrency: a child of fork does not wait for a load of a thread that it lacks") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  std::atomic<bool> asked = false;
  std::atomic<bool> go_on = false;
  const Server server(published.root(), [&](const std::string&) -> std::optional<Answer> {
    asked = true;
    while (!go_on) std::this_thread::yield();
    return std::nullopt;
  });
  const Request request{
      .version = 1, .device = Device::cpu(), .registry = server.url(), .cache = scratch / "cache"};
  std::thread loading([&] { get_kernel("sample", request); });
  while (!asked) std::this_thread::yield();
  const pid_t child = in_child([&] { return get_kernel("sample", request).version() == 1; });
  go_on = true;
  CHECK(exit_code(child) == 0);
  loading.join();
}

}  // namespace
}  // namespace kiln::test
