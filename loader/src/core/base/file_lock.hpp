// SPDX-License-Identifier: Apache-2.0
//
// FileLock: an advisory lock on an open file (flock), between threads and processes. Next to posix,
// below cache. The kernel gives the lock back when its holder dies. Used so that work is not done
// twice and that gc knows what is in use; no promise of the cache rests on a lock being held.
#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "base/posix.hpp"

namespace kiln {

enum class LockMode { kShared, kExclusive };

/// How to wait for a lock that another process holds, perhaps without end: it may be stopped.
struct Waiting {
  std::stop_token stop = {};  ///< ends the wait with kCancelled
  /// Called after a second, and seldom from then on, with one line for people: who holds what.
  std::function<void(const std::string& note)> tell = {};
};

/// Held while it lives. Safe to move; one object is for one thread at a time.
class FileLock {
 public:
  FileLock() = default;
  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) noexcept = default;
  /// Unlocks, and does not only close: a child of fork shares the open file, and its copy would
  /// hold the lock as long as the child lives.
  ~FileLock();

  bool held() const { return file_.valid(); }

  /// Waits for the lock. Holds nothing where the file system has no locks. `path` is for messages.
  static FileLock wait(FileDescriptor file, LockMode mode, const Waiting& waiting,
                       const std::filesystem::path& path);

  /// Does not wait: holds nothing if another one has it, or where there are no locks.
  static FileLock attempt(FileDescriptor file, LockMode mode);

 private:
  explicit FileLock(FileDescriptor file) : file_(std::move(file)) {}
  FileDescriptor file_;
};

}  // namespace kiln
