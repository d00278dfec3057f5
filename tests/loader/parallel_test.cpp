// SPDX-License-Identifier: Apache-2.0
//
// Parallel: all jobs, a few at once, and what the first failure does to the others.
#include "install/parallel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kiln/error.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

TEST_CASE("parallel: each job once, never more than allowed at once") {
  for (const std::size_t at_once : {1U, 3U, 50U}) {
    std::vector<std::atomic<int>> done(40);
    std::atomic<int> running = 0;
    std::atomic<int> most = 0;
    in_parallel(done.size(), at_once, {}, [&](std::size_t i, const std::stop_token&) {
      const int now = ++running;
      int seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++done[i];
      --running;
    });
    for (const std::atomic<int>& each : done) CHECK(each == 1);
    CHECK(most <= static_cast<int>(at_once));
    if (at_once > 1) CHECK(most > 1);
  }
  in_parallel(0, 4, {}, [](std::size_t, const std::stop_token&) { FAIL("there is no job"); });
}

TEST_CASE("parallel: the first error stops the others and is what is thrown") {
  std::atomic<int> begun = 0;
  const Error error = error_of([&] {
    in_parallel(100, 4, {}, [&](std::size_t i, const std::stop_token& stop) {
      ++begun;
      if (i == 2) throw Error(ErrorCode::kNotFound, "job 2");
      while (!stop.stop_requested()) std::this_thread::yield();
      throw Error(ErrorCode::kCancelled, "another");
    });
  });
  CHECK(error.code() == ErrorCode::kNotFound);
  CHECK(begun <= 4);
}

TEST_CASE("parallel: a stop from outside reaches the jobs; what was not begun is cancelled") {
  std::stop_source stop;
  std::atomic<int> begun = 0;
  const Error error = error_of([&] {
    in_parallel(100, 2, stop.get_token(), [&](std::size_t, const std::stop_token& token) {
      if (++begun == 2) stop.request_stop();
      while (!token.stop_requested()) std::this_thread::yield();
    });
  });
  CHECK(error.code() == ErrorCode::kCancelled);
  CHECK(begun == 2);
}

TEST_CASE("parallel: an observer is called one call at a time") {
  int calls = 0;  // not atomic: a sanitizer sees two at once
  const Observer observer = one_at_a_time([&](const Event&) { ++calls; });
  in_parallel(200, 4, {}, [&](std::size_t, const std::stop_token&) { observer({}); });
  CHECK(calls == 200);
  CHECK(!one_at_a_time({}));
}

}  // namespace
}  // namespace kiln::test
