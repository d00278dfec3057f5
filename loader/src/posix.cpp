// SPDX-License-Identifier: Apache-2.0
#include "posix.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <random>
#include <system_error>

namespace kiln {
namespace {

std::string next_step(int error, const std::filesystem::path& path) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "Make room, or set KILN_CACHE to a folder on another disk";
    case EROFS:
    case EACCES:
    case EPERM:
      return "Give this user write access, or set KILN_CACHE to a folder of your own";
    default:
      return "Check " + path.parent_path().string() + ", or set KILN_CACHE to another folder";
  }
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

void fail_cache(std::string_view operation, const std::filesystem::path& path, int error) {
  throw Error(ErrorCode::kCache, std::string(operation) + " " + path.string() + ": " +
                                     std::generic_category().message(error) + ". " +
                                     next_step(error, path));
}

FileDescriptor try_open(const std::filesystem::path& path, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return FileDescriptor(fd);
}

void write_all(int fd, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_cache("write", path, errno);
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void read_pieces(int fd, const std::filesystem::path& path,
                 const std::function<void(std::string_view)>& sink) {
  std::array<char, std::size_t{64} * 1024> buffer;
  for (;;) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count == 0) return;
    if (count < 0) {
      if (errno == EINTR) continue;
      fail_cache("read", path, errno);
    }
    sink({buffer.data(), static_cast<std::size_t>(count)});
  }
}

void sync_file(int fd, const std::filesystem::path& path) {
  if (::fsync(fd) != 0) fail_cache("sync", path, errno);
}

void sync_folder(const std::filesystem::path& path) {
  const FileDescriptor folder = try_open(path, O_RDONLY | O_DIRECTORY);
  if (!folder.valid()) fail_cache("open", path, errno);
  // Some network file systems refuse to sync a folder; the rename itself is then all there is.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) fail_cache("sync", path, errno);
}

void publish_file(const FileDescriptor& file, const std::filesystem::path& from,
                  const std::filesystem::path& to) {
  if (::fchmod(file.get(), 0444) != 0) fail_cache("set mode of", from, errno);
  sync_file(file.get(), from);
  if (::rename(from.c_str(), to.c_str()) != 0) fail_cache("rename to", to, errno);
  sync_folder(to.parent_path());
}

std::string unique_suffix() {
  std::random_device random;
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%ld-%08x%08x", static_cast<long>(::getpid()), random(),
                random());
  return text.data();
}

}  // namespace kiln
