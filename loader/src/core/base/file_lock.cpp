// SPDX-License-Identifier: Apache-2.0
#include "base/file_lock.hpp"

#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/join.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{20};
constexpr std::chrono::seconds kFirstNote{1};
constexpr std::chrono::seconds kNextNote{30};

int operation(LockMode mode) {
  return mode == LockMode::kShared ? LOCK_SH : LOCK_EX;
}

/// "process 123", by the kernel's table of locks: "1: FLOCK ADVISORY WRITE 123 08:01:4567 0 EOF".
std::string holder_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return "another process";
  std::array<char, 64> file{};
  std::snprintf(file.data(), file.size(), "%02x:%02x:%llu", major(status.st_dev),
                minor(status.st_dev), static_cast<unsigned long long>(status.st_ino));
  std::ifstream table("/proc/locks");
  for (std::string line; std::getline(table, line);) {
    const std::vector<std::string_view> words = split(line, ' ');
    if (words.size() < 6 || words[1] != "FLOCK" || words[5] != file.data()) continue;
    // Of a process outside this one's namespace the number is 0.
    if (words[4] != "0") return "process " + std::string(words[4]);
  }
  return "another process";
}

}  // namespace

FileLock::~FileLock() {
  if (file_.valid()) ::flock(file_.get(), LOCK_UN);
}

FileLock FileLock::wait(FileDescriptor file, LockMode mode, const Waiting& waiting,
                        const std::filesystem::path& path) {
  // A blocked flock cannot be woken by a token, only by a signal, which is not a library's to send.
  const int poll = waiting.stop.stop_possible() || waiting.tell ? LOCK_NB : 0;
  auto pause = kFirstPause;
  auto next_note = Clock::now() + kFirstNote;
  while (::flock(file.get(), operation(mode) | poll) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return {};
    if (waiting.stop.stop_requested()) {
      throw Error(ErrorCode::kCancelled, "wait for " + path.string() + ", which " +
                                             holder_of(file.get()) +
                                             " holds: stopped as asked. Run it again to go on");
    }
    if (waiting.tell && Clock::now() >= next_note) {
      waiting.tell("waiting for " + holder_of(file.get()) + ", which holds " + path.string());
      next_note = Clock::now() + kNextNote;
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
