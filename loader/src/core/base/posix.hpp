// SPDX-License-Identifier: Apache-2.0
//
// Posix: file descriptors that close themselves, and the few calls of the file store (open without
// following links, write all, sync, rename) with their errors as kiln::Error. Below every stage
// that reads or writes files.
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

/// Takes bytes on their way, piece by piece; throws to stop them.
using Sink = std::function<void(std::string_view)>;

/// Never one of the standard streams: a host that closed its own may print all the same, which must
/// not land in a file of Kiln. A number below 3 is exchanged for a free one; invalid, with errno
/// set, if there is none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd);
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

/// Whether there is anything of that name. Where this user may not look `fail` throws, which is
/// fail_cache, or for files that are not the cache's fail_file: what is not to be seen is not
/// absent.
bool stands(const std::filesystem::path& path, decltype(&fail_cache) fail);

/// O_CLOEXEC is added. An invalid descriptor, with errno set, if it cannot be opened; but kCache
/// where no more files may be open, for which the path is not to blame and the remedy is another.
FileDescriptor try_open(const std::filesystem::path& path, int flags, mode_t mode = 0);

/// The same for a regular file; kIntegrity if something else is there. Never waits: to open a pipe
/// would wait for its other end.
FileDescriptor try_open_file(const std::filesystem::path& path, int flags, mode_t mode = 0);

/// 0, or the errno of the write that failed.
int try_write_all(int fd, std::string_view bytes);
void write_all(int fd, std::string_view bytes, const std::filesystem::path& path);

/// Calls `sink` with the file's bytes, piece by piece, until its end. 0, or the errno of a read.
int try_read_pieces(int fd, const Sink& sink);
/// The same; kCache for a read error.
void read_pieces(int fd, const std::filesystem::path& path, const Sink& sink);

enum class Pipes { kRefused, kRead };

/// A file that a user named, which may be anything, opened for reading.
struct NamedFile {
  FileDescriptor file;  ///< of open_named_file; invalid if there is a problem
  std::string text;     ///< of read_named_file
  std::string problem;  ///< why it is not to be had; empty if it is
  bool absent = false;  ///< there is no such file
  int error = 0;        ///< the errno that opening or reading it gave
};

/// Opens it and never waits: a device, a folder or a pipe in the file system, whose bytes may never
/// come or never end, is a problem. So is a pipe without a name unless it is to be read: a command
/// line's <(…), which ends with the command in it.
NamedFile open_named_file(const std::filesystem::path& path, Pipes pipes = Pipes::kRefused);

/// Reads at most `most` bytes of it; more are a problem.
NamedFile read_named_file(const std::filesystem::path& path, std::size_t most,
                          Pipes pipes = Pipes::kRefused);

/// Has the kernel begin to write a file to disk while more of it comes, so that sync_file() waits
/// for the rest alone. A hint: what goes wrong is for sync_file() to tell.
class WriteBehind {
 public:
  void wrote(int fd, std::uint64_t bytes);

 private:
  std::uint64_t bytes_ = 0;  ///< not begun yet
};

void sync_file(int fd, const std::filesystem::path& path);
/// `fail` throws what the disk refuses: fail_cache, or for files that are not the cache's
/// fail_file.
void sync_folder(const std::filesystem::path& path, decltype(&fail_cache) fail = &fail_cache);

/// Sets mode 0444, syncs, renames to `to` and syncs its folder. The file is durable afterwards.
void publish_file(const FileDescriptor& file, const std::filesystem::path& from,
                  const std::filesystem::path& to);

/// Writes a small file under a temporary name and publishes it. Its folder exists.
void write_file(const std::filesystem::path& to, std::string_view bytes);

/// Throws kCache, with how much is missing, unless the disk under `folder` has room for `bytes`
/// more.
void check_room(const std::filesystem::path& folder, std::uint64_t bytes, std::string_view what);

/// A name that no other thread or process uses: "<pid>-<16 hex digits>".
std::string unique_suffix();
bool is_unique_suffix(std::string_view text);

/// What is not yet, or no longer, what its folder is for: ".tmp-<unique suffix>".
std::string draft_name();
bool is_draft(std::string_view name);

}  // namespace kiln
