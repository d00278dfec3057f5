// SPDX-License-Identifier: Apache-2.0
#include "base/posix.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <random>
#include <system_error>

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDraft = ".tmp-";

std::string next_step(int error, const fs::path& path) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "Make room ('kiln cache gc' may help), or set KILN_CACHE to a folder on another disk";
    case EFBIG:
      return "Raise the limit of a file's size (ulimit -f), or set KILN_CACHE to a folder on "
             "another disk";
    case EROFS:
      return "Its disk is mounted read-only: set KILN_CACHE to a folder of your own";
    case EACCES:
    case EPERM:
      return "Give this user the right to it, or set KILN_CACHE to a folder of your own";
    case EMFILE:
    case ENFILE:
      return "Raise the limit of open files (ulimit -n), or close some";
    case EISDIR:
    case ENOTEMPTY:  // of a rename or a removal: Kiln did not make what stands there
      return "Run 'kiln cache repair', which removes what stands there";
    default:
      return "Check " + path.parent_path().string() + ", or set KILN_CACHE to another folder";
  }
}

/// A pipe that a shell made for <(…): not one that somebody put into a folder, which may have no
/// writer for as long as one waits.
bool is_without_name(int fd) {
  struct statfs disk {};
  return ::fstatfs(fd, &disk) == 0 && disk.f_type == PIPEFS_MAGIC;
}

}  // namespace

FileDescriptor::FileDescriptor(int fd) : fd_(fd) {
  if (fd < 0 || fd > STDERR_FILENO) return;
  fd_ = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  ::close(fd);
  errno = error;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

void fail_cache(std::string_view operation, const fs::path& path, int error) {
  throw Error(ErrorCode::kCache, std::string(operation) + " " + path.string() + ": " +
                                     std::generic_category().message(error) + ". " +
                                     next_step(error, path));
}

bool stands(const fs::path& path, decltype(&fail_cache) fail) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  fail("look at", path, errno);
  return true;  // fail does not come back
}

FileDescriptor try_open(const fs::path& path, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0 && (errno == EMFILE || errno == ENFILE)) fail_cache("open", path, errno);
  return FileDescriptor(fd);
}

FileDescriptor try_open_file(const fs::path& path, int flags, mode_t mode) {
  FileDescriptor file = try_open(path, flags | O_NONBLOCK, mode);
  struct stat status {};
  const bool opened = file.valid() && ::fstat(file.get(), &status) == 0;
  if (opened ? !S_ISREG(status.st_mode) : errno == ELOOP || errno == ENXIO || errno == EISDIR) {
    throw Error(ErrorCode::kIntegrity, "open " + path.string() +
                                           ": it is a link, a pipe, a device or a folder, expected "
                                           "a regular file. Remove it");
  }
  return file;
}

int try_write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void write_all(int fd, std::string_view bytes, const fs::path& path) {
  if (const int error = try_write_all(fd, bytes); error != 0) {
    fail_cache("write", path, error);
  }
}

int try_read_pieces(int fd, const Sink& sink) {
  constexpr std::size_t kBytes = std::size_t{64} * 1024;
  // A thread may have a small stack. Not cleared: a small file then touches one page of 16.
  const auto buffer = std::make_unique_for_overwrite<char[]>(kBytes);
  for (;;) {
    const ssize_t count = ::read(fd, buffer.get(), kBytes);
    if (count == 0) return 0;
    if (count > 0) {
      sink({buffer.get(), static_cast<std::size_t>(count)});
    } else if (errno != EINTR) {
      return errno;
    }
  }
}

void read_pieces(int fd, const fs::path& path, const Sink& sink) {
  if (const int error = try_read_pieces(fd, sink); error != 0) fail_cache("read", path, error);
}

NamedFile open_named_file(const fs::path& path, Pipes pipes) {
  NamedFile opened;
  FileDescriptor file = try_open(path, O_RDONLY | O_NONBLOCK);
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0) {
    opened.error = errno;
  } else if (S_ISDIR(status.st_mode)) {
    opened.error = EISDIR;
  }
  opened.absent = opened.error == ENOENT || opened.error == ENOTDIR;
  if (opened.error != 0) {
    opened.problem = std::generic_category().message(opened.error);
  } else if (S_ISREG(status.st_mode) ||
             (pipes == Pipes::kRead && S_ISFIFO(status.st_mode) && is_without_name(file.get()))) {
    ::fcntl(file.get(), F_SETFL, O_RDONLY);  // to read it may wait: its writer is there
    opened.file = std::move(file);
  } else {
    opened.problem = "it is a pipe or a device, expected a file";
  }
  return opened;
}

NamedFile read_named_file(const fs::path& path, std::size_t most, Pipes pipes) {
  NamedFile read = open_named_file(path, pipes);
  std::array<char, 4096> buffer{};
  while (read.problem.empty()) {
    const ssize_t count = ::read(read.file.get(), buffer.data(), buffer.size());
    if (count == 0) return read;
    if (count < 0) {
      if (errno == EINTR) continue;
      read.error = errno;
      read.problem = std::generic_category().message(read.error);
      break;
    }
    read.text.append(buffer.data(), static_cast<std::size_t>(count));
    if (read.text.size() > most) {
      read.problem = "it has more than " + std::to_string(most) + " bytes";
    }
  }
  read.text.clear();
  return read;
}

void WriteBehind::wrote(int fd, std::uint64_t bytes) {
  constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 20;
  bytes_ += bytes;
  if (bytes_ < kAtOnce) return;
  bytes_ = 0;
  ::sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

void sync_file(int fd, const fs::path& path) {
  if (::fsync(fd) != 0) fail_cache("sync", path, errno);
}

void sync_folder(const fs::path& path, decltype(&fail_cache) fail) {
  const FileDescriptor folder = try_open(path, O_RDONLY | O_DIRECTORY);
  if (!folder.valid()) fail("open", path, errno);
  // Some network file systems refuse to sync a folder; the rename itself is then all there is.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) fail("sync", path, errno);
}

void publish_file(const FileDescriptor& file, const fs::path& from, const fs::path& to) {
  if (::fchmod(file.get(), 0444) != 0) fail_cache("set mode of", from, errno);
  sync_file(file.get(), from);
  if (::rename(from.c_str(), to.c_str()) != 0) fail_cache("rename to", to, errno);
  sync_folder(to.parent_path());
}

void write_file(const fs::path& to, std::string_view bytes) {
  const fs::path draft = to.parent_path() / draft_name();
  const FileDescriptor file = try_open(draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  if (!file.valid()) fail_cache("create", draft, errno);
  try {
    write_all(file.get(), bytes, draft);
    publish_file(file, draft, to);
  } catch (...) {
    ::unlink(draft.c_str());
    throw;
  }
}

void check_room(const fs::path& folder, std::uint64_t bytes, std::string_view what) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) fail_cache("ask for the room in", folder, errno);
  const std::uint64_t room = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (bytes <= room) return;
  throw Error(ErrorCode::kCache,
              "install " + std::string(what) + ": it needs " + std::to_string(bytes) +
                  " bytes in " + folder.string() + ", there are " + std::to_string(room) + ", " +
                  std::to_string(bytes - room) + " too few. " + next_step(ENOSPC, folder));
}

std::string unique_suffix() {
  std::random_device random;
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%ld-%08x%08x", static_cast<long>(::getpid()), random(),
                random());
  return text.data();
}

bool is_unique_suffix(std::string_view text) {
  constexpr std::size_t kRandomDigits = 16;
  const auto all = [](std::string_view part, std::string_view of) {
    return !part.empty() && part.find_first_not_of(of) == std::string_view::npos;
  };
  const std::size_t dash = text.find('-');
  return dash != std::string_view::npos && text.size() - dash - 1 == kRandomDigits &&
         all(text.substr(0, dash), "0123456789") && all(text.substr(dash + 1), "0123456789abcdef");
}

std::string draft_name() {
  return std::string(kDraft) + unique_suffix();
}

bool is_draft(std::string_view name) {
  return name.starts_with(kDraft) && is_unique_suffix(name.substr(kDraft.size()));
}

}  // namespace kiln
