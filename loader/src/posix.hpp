// SPDX-License-Identifier: Apache-2.0
//
// Posix: file descriptors that close themselves, and the few calls of the file store (open, write
// all, sync, rename) with their errors as kiln::Error. Below cache, unpack and load.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "kiln/error.hpp"

namespace kiln {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  bool valid() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Throws kCache: "<operation> <path>: <what errno means>. <next step>".
[[noreturn]] void fail_cache(std::string_view operation, const std::filesystem::path& path,
                             int error);

/// O_CLOEXEC is added. An invalid descriptor, with errno set, if it cannot be opened.
FileDescriptor try_open(const std::filesystem::path& path, int flags, mode_t mode = 0);

void write_all(int fd, std::string_view bytes, const std::filesystem::path& path);

/// Calls `sink` with the file's bytes, piece by piece, until its end. kCache for a read error.
void read_pieces(int fd, const std::filesystem::path& path,
                 const std::function<void(std::string_view)>& sink);

void sync_file(int fd, const std::filesystem::path& path);
void sync_folder(const std::filesystem::path& path);

/// Sets mode 0444, syncs, renames to `to` and syncs its folder. The file is durable afterwards.
void publish_file(const FileDescriptor& file, const std::filesystem::path& from,
                  const std::filesystem::path& to);

/// A name that no other thread or process uses: "<pid>-<random>".
std::string unique_suffix();

}  // namespace kiln
