// SPDX-License-Identifier: Apache-2.0
//
// Beside: what another process that is at work in the cache, or was stopped in it, is to this one.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stop_token>
#include <string>
#include <thread>

#include "kiln/kernel.hpp"
#include "sample.hpp"
#include "store/gc.hpp"
#include "store/repair.hpp"

namespace kiln::test {
namespace {

TEST_CASE("beside: an install that waits for a stopped process says so, and can be stopped") {
  Sample sample;
  sample.install_version(1);
  const Digest config = sample.manifest().config.digest;
  const FileLock used = sample.cache().use_to_write();
  const FileLock stopped = sample.cache().lock(config);  // as of a process under a debugger
  REQUIRE(stopped.held());
  sample.cache().drop_blob(config);
  std::stop_source stop;
  std::string waits_for;
  Request request = sample.request;
  request.refresh = true;
  request.stop = stop.get_token();
  request.on_event = [&](const Event& event) {
    if (event.stage != Event::Stage::kWait) return;
    waits_for = event.note;
    stop.request_stop();
  };
  const Error error = error_of([&] { install("sample", request); });
  CHECK(error.code() == ErrorCode::kCancelled);
  CHECK_CONTAINS(waits_for, "process");
  CHECK_CONTAINS(waits_for, config.hex());
}

TEST_CASE("beside: a whole cache is never called damaged while gc removes what is in it") {
  Sample sample;
  sample.install_version(1);
  std::atomic<bool> ends = false;
  std::thread cleans([&] {
    while (!ends) {
      install("sample", sample.request);
      collect_garbage(sample.cache(), {.unlocked = true});
    }
  });
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  int checks = 0;
  std::string damaged;
  while (std::chrono::steady_clock::now() < until && damaged.empty()) {
    for (const CheckedFile& file : verify_installed(sample.cache())) damaged += file.problem;
    ++checks;
  }
  ends = true;
  cleans.join();
  CHECK(damaged.empty());
  CHECK(checks > 10);
}

}  // namespace
}  // namespace kiln::test
