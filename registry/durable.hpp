// SPDX-License-Identifier: Apache-2.0
//
// Durable: files that are whole or absent. Below layout and export. A file is written under a
// temporary name, made read-only, synced and renamed, and then its folder is synced, so that
// `kill -9` or a power cut leaves the old file or the new one. Errors are kiln::Error: kNotFound
// for a file that is not there, kCache for what the disk refuses. No globals; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace kiln::registry {

/// A file descriptor that closes itself.
class OpenFile {
 public:
  /// O_CLOEXEC is added; throws if the file cannot be opened.
  OpenFile(const std::filesystem::path& path, int flags, mode_t mode = 0);
  OpenFile(OpenFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OpenFile();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

/// "<operation> <path>: <what errno means>. <next step>".
[[noreturn]] void fail_file(std::string_view operation, const std::filesystem::path& path,
                            int error);

/// Calls `sink` with the file's bytes, piece by piece.
void stream_file(const std::filesystem::path& path,
                 const std::function<void(std::string_view)>& sink);

/// The whole of a document; kIntegrity if it has more than `limit` bytes.
std::string read_document(const std::filesystem::path& path, std::uint64_t limit);

/// Makes a folder and those above it (0755), and syncs the folders that were changed.
void make_folders(const std::filesystem::path& folder);
void sync_folder(const std::filesystem::path& folder);

/// A file under way: created exclusively in `folder`, removed again unless it is published.
class Draft {
 public:
  Draft(const std::filesystem::path& folder, std::string_view name);
  ~Draft();
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  void write(std::string_view bytes);
  /// Sets the mode, syncs, renames to `to` (on the same file system) and syncs its folder.
  void publish(const std::filesystem::path& to, mode_t mode);

 private:
  std::filesystem::path path_;
  OpenFile file_;
  bool published_ = false;
};

/// Waits for the exclusive lock of a file, which is created if needed and never removed. Held while
/// the object lives; the kernel drops it when the process dies.
OpenFile lock_file(const std::filesystem::path& path);

/// A name that no other process uses: "<name>.<pid>-<random>".
std::string unique_name(std::string_view name);

}  // namespace kiln::registry
