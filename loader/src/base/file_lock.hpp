// SPDX-License-Identifier: Apache-2.0
//
// FileLock: an advisory lock on an open file (flock), between threads and processes. Beside posix,
// below cache. The kernel gives the lock back when its holder dies. Used so that work is not done
// twice and that gc knows what is in use; no promise of the cache rests on a lock being held.
#pragma once

#include <filesystem>
#include <stop_token>

#include "base/posix.hpp"

namespace kiln {

enum class LockMode { kShared, kExclusive };

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

  /// Waits for the lock; kCancelled once `stop` asks. Holds nothing where the file system has no
  /// locks. `path` is for messages.
  static FileLock wait(FileDescriptor file, LockMode mode, const std::stop_token& stop,
                       const std::filesystem::path& path);

  /// Does not wait: holds nothing if another one has it, or where there are no locks.
  static FileLock attempt(FileDescriptor file, LockMode mode);

 private:
  explicit FileLock(FileDescriptor file) : file_(std::move(file)) {}
  FileDescriptor file_;
};

}  // namespace kiln
