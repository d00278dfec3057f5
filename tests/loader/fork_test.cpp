// SPDX-License-Identifier: Apache-2.0
//
// Fork: a program that forks while other threads make their first get_kernel. Only a new process
// has a first one, so each round is a host of its own; this program uses nothing of Kiln itself.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kiln/kiln.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "server.hpp"

namespace kiln::test {
namespace {

constexpr int kForks = 25;          // of one host
constexpr unsigned kPatience = 30;  // seconds; a child takes milliseconds
constexpr int kOk = 0;
constexpr int kTypedError = 3;
constexpr int kOtherError = 4;

/// How many forks: all with KILN_TEST_ROUNDS=5000.
int forks() {
  const char* const value = std::getenv("KILN_TEST_ROUNDS");
  return value != nullptr ? std::atoi(value) : 5000;
}

/// Runs `work` in a child that ends by SIGALRM if it hangs.
template <class Work>
pid_t in_child(unsigned seconds, const Work& work) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::alarm(seconds);
  int code = kOtherError;
  try {
    code = work();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    code = kTypedError;
  } catch (...) {
  }
  ::_exit(code);
}

/// "exit 0", "signal 14".
std::string end_of(pid_t child) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? "exit " + std::to_string(WEXITSTATUS(status))
                           : "signal " + std::to_string(WTERMSIG(status));
}

/// What any program does after a fork, and what another thread may have held during it.
int use_the_process() {
  std::vector<std::string> memory;
  for (std::size_t size = 1; size < 100'000; size *= 3) memory.emplace_back(size, 'x');
  std::FILE* const sink = std::fopen("/dev/null", "w");
  if (sink == nullptr || std::getenv("KILN_CONFIG") == nullptr) return kOtherError;
  std::fprintf(sink, "%s %g", memory.back().c_str(), 0.5);
  return std::fclose(sink) == 0 ? kOk : kOtherError;
}

int expect_kernel(const Request& request) {
  return get_kernel("sample", request).version() == 1 ? kOk : kOtherError;
}

/// A program whose first kernels are loaded by three threads, from a warm cache, a folder and a
/// server, and which forks meanwhile. A third of its children asks for a kernel as well.
int host(const Request& warm, const std::filesystem::path& cold, unsigned seed) {
  const Server server(warm.registry);
  std::array<Request, 3> requests{warm, warm, warm};
  requests[1].cache = cold / "folder";
  requests[2].cache = cold / "http";
  requests[2].registry = server.url();
  std::atomic<int> failed = 0;
  std::atomic<bool> go = false;
  std::vector<std::thread> threads;
  for (const Request& request : requests) {
    threads.emplace_back([&] {
      while (!go) std::this_thread::yield();
      try {
        if (expect_kernel(request) != kOk) ++failed;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ++failed;
      }
    });
  }
  std::mt19937 random(seed);
  std::vector<pid_t> children;
  go = true;
  for (int i = 0; i < kForks; ++i) {
    const bool asks = random() % 3 == 0;
    children.push_back(in_child(kPatience, [&] {
      const int used = use_the_process();
      return asks && used == kOk ? expect_kernel(warm) : used;
    }));
    for (auto spins = random() % 50'000; spins > 0; --spins)
      std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  std::map<std::string, int> ends;
  for (const pid_t child : children) ++ends[end_of(child)];
  for (std::thread& thread : threads) thread.join();
  if (ends["exit 0"] == kForks && failed == 0) return kOk;
  for (const auto& [end, count] : ends) {
    std::fprintf(stderr, "of %d children %d: %s\n", kForks, count, end.c_str());
  }
  return kOtherError;
}

TEST_CASE("fork: 5,000 children of hosts that make their first get_kernel, and none is hurt") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const Request warm{.version = 1,
                     .device = Device::cpu(),
                     .registry = published.root().string(),
                     .cache = scratch / "warm"};
  REQUIRE(end_of(in_child(kPatience, [&] { return expect_kernel(warm); })) == "exit 0");
  std::map<std::string, int> ends;
  const int hosts = (forks() + kForks - 1) / kForks;
  for (int i = 0; i < hosts; ++i) {
    const Scratch cold;
    ++ends[end_of(in_child(2 * kPatience,
                           [&] { return host(warm, cold.path(), static_cast<unsigned>(i)); }))];
  }
  for (const auto& [end, count] : ends) MESSAGE(count, " hosts: ", end);
  CHECK(ends["exit 0"] == hosts);
}

}  // namespace
}  // namespace kiln::test
