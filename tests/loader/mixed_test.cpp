// SPDX-License-Identifier: Apache-2.0
//
// Many callers of one kernel, each with its own wishes: nobody gets another's error, nobody waits
// for ever, and a version that grows meanwhile loses nothing.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "documents/manifest.hpp"
#include "install/install.hpp"
#include "kiln/kiln.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "server.hpp"

namespace kiln::test {
namespace {

/// What a caller does beside asking for the kernel, and how its call ended.
enum class Role { kPlain, kOffline, kCancelled, kThrowsInt, kThrowsError, kAsksAgain };
enum class End { kKernel, kOwnError, kOthersError };

End ask(const Request& plain, Role role) {
  Request request = plain;
  std::stop_source stop;
  switch (role) {
    case Role::kPlain:
      break;
    case Role::kOffline:
      request.offline = true;
      break;
    case Role::kCancelled:
      request.stop = stop.get_token();
      request.on_event = [&](const Event&) { stop.request_stop(); };
      break;
    case Role::kThrowsInt:
      request.on_event = [](const Event&) { throw 42; };
      break;
    case Role::kThrowsError:
      request.on_event = [](const Event&) { throw Error(ErrorCode::kBuild, "an observer's own"); };
      break;
    case Role::kAsksAgain:
      request.on_event = [&](const Event&) { get_kernel("sample", plain); };
      break;
  }
  try {
    return get_kernel("sample", request).version() == 1 ? End::kKernel : End::kOthersError;
  } catch (const Error& error) {
    const bool own = (role == Role::kOffline && error.code() == ErrorCode::kOffline) ||
                     (role == Role::kCancelled && error.code() == ErrorCode::kCancelled) ||
                     (role == Role::kThrowsError && error.code() == ErrorCode::kBuild) ||
                     (role == Role::kAsksAgain && error.code() == ErrorCode::kUsage);
    return own ? End::kOwnError : End::kOthersError;
  } catch (int) {
    return role == Role::kThrowsInt ? End::kOwnError : End::kOthersError;
  }
}

TEST_CASE("mixed: 10,000 requests from 32 threads, and each gets the kernel or its own error") {
  constexpr int kCallers = 32;
  constexpr int kRounds = 32;  // each has a kernel that nobody has loaded yet
  constexpr int kRequests = 10;
  std::array<std::atomic<int>, 3> ends{};
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  for (int round = 0; round < kRounds; ++round) {
    const Request plain{.version = 1,
                        .device = Device::cpu(),
                        .registry = published.root().string(),
                        .cache = scratch / ("cache" + std::to_string(round))};
    std::vector<std::thread> threads;
    for (int i = 0; i < kCallers; ++i) {
      threads.emplace_back([&, i] {
        std::mt19937 random(static_cast<unsigned>(round * kCallers + i));
        for (int n = 0; n < kRequests; ++n) {
          const auto role = static_cast<Role>(random() % 6);
          ++ends[static_cast<std::size_t>(ask(plain, role))];
        }
      });
    }
    // What a host program does beside: glibc moves the environment when it grows.
    for (int n = 0; n < 20; ++n) {
      ::setenv(("KILN_TEST_" + std::to_string(n)).c_str(), std::string(100, 'x').c_str(), 1);
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(get_kernel("sample", plain).version() == 1);
    for (int n = 0; n < 20; ++n) ::unsetenv(("KILN_TEST_" + std::to_string(n)).c_str());
  }
  CHECK(ends[static_cast<std::size_t>(End::kOthersError)] == 0);
  CHECK(ends[static_cast<std::size_t>(End::kKernel)] > 0);
  CHECK(ends[static_cast<std::size_t>(End::kOwnError)] > 0);
}

TEST_CASE("mixed: a program may change its environment beside downloads") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  const Server server(published.root());
  const auto fetch = [&](int number) {
    install("sample", {.version = 1,
                       .device = Device::cpu(),
                       .registry = server.url(),
                       .cache = scratch / ("cache" + std::to_string(number))});
  };
  fetch(0);  // libcurl is set up
  std::atomic<bool> done = false;
  std::thread changing([&] {  // the array of pointers moves each time, and the old one is reused
    const auto name = [](int n) { return "KILN_TEST_" + std::to_string(n); };
    for (int round = 0; !done; ++round) {
      for (int n = 0; n < 400; ++n) ::setenv(name(n).c_str(), "x", 1);
      for (int n = 0; n < 400; ++n) ::unsetenv(name(n).c_str());
    }
  });
  for (int number = 1; number <= 60; ++number) fetch(number);
  done = true;
  changing.join();
}

TEST_CASE("mixed: a caller that waits for another one can be stopped") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  Request slow{.version = 1,
               .device = Device::cpu(),
               .registry = published.root().string(),
               .cache = scratch / "cache"};
  Request waiting = slow;
  std::atomic<bool> begun = false;
  std::atomic<bool> go_on = false;
  slow.on_event = [&](const Event&) {
    begun = true;
    while (!go_on) std::this_thread::yield();
  };
  std::thread loader([&] { get_kernel("sample", slow); });
  while (!begun) std::this_thread::yield();
  std::stop_source stop;
  waiting.stop = stop.get_token();
  std::thread waiter([&] {
    CHECK(error_of([&] { get_kernel("sample", waiting); }).code() == ErrorCode::kCancelled);
  });
  stop.request_stop();
  waiter.join();  // before the load has ended
  go_on = true;
  loader.join();
  CHECK(get_kernel("sample", slow).version() == 1);
}

/// How many interleavings: a few each time, all with KILN_TEST_ROUNDS=1000.
int rounds() {
  const char* const value = std::getenv("KILN_TEST_ROUNDS");
  return value != nullptr ? std::atoi(value) : 60;
}

TEST_CASE("refs: a version that grows during installs never loses a variant") {
  std::mt19937 random(20261123);
  for (int round = 0; round < rounds(); ++round) {
    CAPTURE(round);
    Scratch scratch;
    Published published(scratch / "registry");
    std::vector<Draft> drafts{cpu_draft(sample_library(), "sample", 1, "cpu-0")};
    published.publish(drafts);
    const Request request{.version = 1,
                          .device = Device::cpu(),
                          .registry = published.root().string(),
                          .cache = scratch / "cache"};
    const auto install_variant = [&](std::size_t index, const Observer& on_event) {
      Request own = request;
      own.variant = "cpu-" + std::to_string(index);
      own.on_event = on_event;
      own.refresh = random() % 2 == 0;
      install("sample", own);
    };
    // At a random event of an install the version grows, and another process installs from it.
    const auto grow_at = [&](auto& self, unsigned depth) -> void {
      const std::size_t mine = drafts.size() - 1;
      int left = static_cast<int>(random() % 8);
      install_variant(mine, [&, depth](const Event&) {
        if (left-- != 0 || depth == 0) return;
        drafts.push_back(
            cpu_draft(sample_library(), "sample", 1, "cpu-" + std::to_string(drafts.size())));
        published.publish(drafts);
        std::thread other([&] { self(self, depth - 1); });
        other.join();
      });
    };
    grow_at(grow_at, 1 + static_cast<unsigned>(random() % 3));
    const Cache cache(request.cache);
    const std::vector<Ref> refs = cache.refs();
    REQUIRE(refs.size() == 1);
    const auto bytes = cache.read_document(refs[0].index, "index");
    REQUIRE(bytes);
    CHECK(parse_index(*bytes, "index").variants.size() == drafts.size());
  }
}

}  // namespace
}  // namespace kiln::test
