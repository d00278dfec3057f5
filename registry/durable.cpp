// SPDX-License-Identifier: Apache-2.0
#include "durable.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <system_error>
#include <vector>

#include "kiln/error.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

int open_retrying(const fs::path& path, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

std::string_view next_step(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return "Check the path";
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "Make room on that disk and run the command again";
    case EROFS:
    case EACCES:
    case EPERM:
      return "Give this user access to it and run the command again";
    default:
      return "Check the disk and run the command again";
  }
}

}  // namespace

void fail_file(std::string_view operation, const fs::path& path, int error) {
  const bool missing = error == ENOENT || error == ENOTDIR;
  throw Error(missing ? ErrorCode::kNotFound : ErrorCode::kCache,
              std::string(operation) + " " + path.string() + ": " +
                  std::generic_category().message(error) + ". " + std::string(next_step(error)));
}

OpenFile::OpenFile(const fs::path& path, int flags, mode_t mode)
    : fd_(open_retrying(path, flags, mode)) {
  if (fd_ < 0) fail_file((flags & O_CREAT) != 0 ? "create" : "open", path, errno);
}

OpenFile::~OpenFile() {
  if (fd_ >= 0) ::close(fd_);
}

void stream_file(const fs::path& path, const std::function<void(std::string_view)>& sink) {
  const OpenFile file(path, O_RDONLY);
  std::vector<char> buffer(std::size_t{256} * 1024);
  for (;;) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count == 0) return;
    if (count < 0) {
      if (errno == EINTR) continue;
      fail_file("read", path, errno);
    }
    sink({buffer.data(), static_cast<std::size_t>(count)});
  }
}

std::string read_document(const fs::path& path, std::uint64_t limit) {
  std::string bytes;
  stream_file(path, [&](std::string_view piece) {
    if (piece.size() > limit - bytes.size()) {
      throw Error(ErrorCode::kIntegrity, "read " + path.string() + ": has more than " +
                                             std::to_string(limit) +
                                             " bytes, the limit of a document");
    }
    bytes += piece;
  });
  return bytes;
}

void sync_folder(const fs::path& folder) {
  const OpenFile file(folder, O_RDONLY | O_DIRECTORY);
  // Some network file systems refuse to sync a folder; the rename itself is then all there is.
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail_file("sync", folder, errno);
}

void make_folders(const fs::path& folder) {
  if (folder.empty() || fs::is_directory(folder)) return;
  const fs::path parent = folder.parent_path();
  make_folders(parent);
  if (::mkdir(folder.c_str(), 0755) != 0) {
    if (errno == EEXIST && fs::is_directory(folder)) return;  // another process made it
    fail_file("make folder", folder, errno);
  }
  sync_folder(parent.empty() ? fs::path(".") : parent);
}

std::string unique_name(std::string_view name) {
  std::random_device random;
  return std::string(name) + "." + std::to_string(::getpid()) + "-" + std::to_string(random()) +
         std::to_string(random());
}

Draft::Draft(const fs::path& folder, std::string_view name)
    : path_(folder / unique_name(name)),
      file_(path_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600) {}

Draft::~Draft() {
  if (!published_) ::unlink(path_.c_str());
}

void Draft::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_file("write", path_, errno);
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void Draft::publish(const fs::path& to, mode_t mode) {
  if (::fchmod(file_.get(), mode) != 0) fail_file("set mode of", path_, errno);
  if (::fsync(file_.get()) != 0) fail_file("sync", path_, errno);
  if (::rename(path_.c_str(), to.c_str()) != 0) fail_file("rename to", to, errno);
  published_ = true;
  sync_folder(to.parent_path());
}

OpenFile lock_file(const fs::path& path) {
  OpenFile file(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0644);
  while (::flock(file.get(), LOCK_EX) != 0) {
    // Unlike a cache, a publish must not go on without the lock: it would lose another's variants.
    if (errno != EINTR) fail_file("lock", path, errno);
  }
  return file;
}

}  // namespace kiln::registry
