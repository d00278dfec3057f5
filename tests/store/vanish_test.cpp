// SPDX-License-Identifier: Apache-2.0
//
// Vanish: files of the cache that somebody removes while Kiln is at work with them: a cleaner of
// /tmp, rm -rf. It ends with a kernel or with an error of the cache, never with a bug.
#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "kiln/kiln.hpp"
#include "sample.hpp"
#include "store/installed.hpp"
#include "store/repair.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

/// Whether it ended well or with an error that a user can do something about.
bool ends_well(const std::function<void()>& action) {
  try {
    action();
    return true;
  } catch (const Error& error) {
    const bool typed = error.code() == ErrorCode::kCache || error.code() == ErrorCode::kIntegrity ||
                       error.code() == ErrorCode::kNotFound || error.code() == ErrorCode::kNetwork;
    CHECK_MESSAGE(typed, static_cast<int>(error.code()), ": ", error.what());
    return typed;
  } catch (const std::exception& error) {
    CHECK_MESSAGE(false, error.what());
    return false;
  }
}

/// Removes what is below a folder of the cache, whatever else happens to it.
void sweep(const fs::path& folder) {
  std::error_code ignored;
  for (fs::recursive_directory_iterator each(folder, ignored), end; each != end;
       each.increment(ignored)) {
    if (ignored) return;
    if (!each->is_directory(ignored)) fs::remove(each->path(), ignored);
  }
}

TEST_CASE("vanish: what an install has written is removed at any of its events") {
  for (const char* folder : {"blobs", "refs", "unpacked", ""}) {
    for (int at = 0; at < 12; ++at) {
      CAPTURE(folder);
      CAPTURE(at);
      Sample sample;
      sample.published.publish({cpu_draft(sample_library())});
      int left = at;
      Request request = sample.request;
      request.on_event = [&](const Event&) {
        if (left-- != 0) return;
        std::error_code ignored;
        fs::remove_all(sample / folder, ignored);  // of "", the cache itself
      };
      CHECK(ends_well([&] { get_kernel("sample", request); }));
      request.on_event = {};
      request.refresh = true;
      CHECK(get_kernel("sample", request).version() == 1);
    }
  }
}

/// Does it while another thread removes documents, again and again.
void while_swept(const fs::path& folder, const std::function<void()>& action) {
  std::atomic<bool> done = false;
  std::thread sweeper([&] {
    while (!done) sweep(folder);
  });
  action();
  done = true;
  sweeper.join();
}

TEST_CASE("vanish: documents go while installs, a repair, a list and a verify read them") {
  for (const char* folder : {"blobs", "refs", "unpacked"}) {
    CAPTURE(folder);
    Sample sample;
    sample.install_version(1);
    while_swept(sample / folder, [&] {
      for (int round = 0; round < 40; ++round) {
        CAPTURE(round);
        Request request = sample.request;
        request.refresh = true;
        ends_well([&] { get_kernel("sample", request); });
        ends_well([&] { repair(sample.cache(), Settings()); });
        ends_well([&] { list_installed(sample.cache()); });
        ends_well([&] { verify_installed(sample.cache()); });
        ends_well([&] { has_kernel("sample", sample.request); });
      }
    });
    Request request = sample.request;
    request.refresh = true;
    CHECK(get_kernel("sample", request).version() == 1);
  }
}

}  // namespace
}  // namespace kiln::test
