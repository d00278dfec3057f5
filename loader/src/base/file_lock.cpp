// SPDX-License-Identifier: Apache-2.0
#include "base/file_lock.hpp"

#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "kiln/error.hpp"

namespace kiln {
namespace {

constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{20};

int operation(LockMode mode) {
  return mode == LockMode::kShared ? LOCK_SH : LOCK_EX;
}

}  // namespace

FileLock::~FileLock() {
  if (file_.valid()) ::flock(file_.get(), LOCK_UN);
}

FileLock FileLock::wait(FileDescriptor file, LockMode mode, const std::stop_token& stop,
                        const std::filesystem::path& path) {
  // A blocked flock cannot be woken by a token, only by a signal, which is not a library's to send.
  const int poll = stop.stop_possible() ? LOCK_NB : 0;
  auto pause = kFirstPause;
  while (::flock(file.get(), operation(mode) | poll) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return {};
    if (stop.stop_requested()) {
      throw Error(ErrorCode::kCancelled, "wait for " + path.string() +
                                             ", which another process holds: stopped as asked. Run "
                                             "it again to go on");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return FileLock(std::move(file));
}

FileLock FileLock::attempt(FileDescriptor file, LockMode mode) {
  if (!file.valid() || ::flock(file.get(), operation(mode) | LOCK_NB) != 0) return {};
  return FileLock(std::move(file));
}

}  // namespace kiln
