// SPDX-License-Identifier: Apache-2.0
#include "store/inside.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "documents/descriptor.hpp"
#include "kiln/error.hpp"
#include "settings/owners.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# A cache of Kiln: kernels that can be fetched again.\n";
constexpr const char* kMarkName = "CACHEDIR.TAG";
constexpr mode_t kSharedFolder = S_ISGID | 0775;
constexpr mode_t kSharedFile = 0664;
constexpr int kOpenFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

[[noreturn]] void refuse(const fs::path& path, const std::string& why,
                         const std::string& next_step = "Set KILN_CACHE to a folder of your own") {
  throw Error(ErrorCode::kCache, "open cache " + path.string() + ": " + why + ". " + next_step);
}

[[noreturn]] void fail_foreign(const fs::path& path, std::string_view expected) {
  throw Error(ErrorCode::kIntegrity, "open " + path.string() + ": it is not " +
                                         std::string(expected) +
                                         ", and Kiln puts nothing else there; nothing was loaded. "
                                         "Run 'kiln cache repair', which removes it");
}

[[noreturn]] void fail_too_large(const fs::path& path) {
  throw Error(ErrorCode::kIntegrity, "read " + path.string() + ": it has more than " +
                                         std::to_string(kMaxDocumentBytes) +
                                         " bytes, which Kiln never writes; nothing was loaded. "
                                         "Run 'kiln cache repair', which removes it");
}

std::string whose(uid_t owner) {
  return "it belongs to user " + std::to_string(owner) + ", expected this user (" +
         std::to_string(::geteuid()) + ") or root";
}

struct stat status_of(int fd, const fs::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_cache("look at", path, errno);
  return status;
}

bool is_shared(const struct stat& status) {
  return (status.st_mode & S_IWGRP) != 0;
}

void check_root_folder(const struct stat& status, const fs::path& root) {
  if (is_vouched_for(root)) return;
  const std::string vouch = "or, where all who may write to it are trusted, KILN_SAFE_FOLDERS=" +
                            shell_word(root.string());
  // Its owner could exchange what is read here between two calls, and plant refs.
  if (!is_own(status.st_uid)) {
    refuse(root, whose(status.st_uid), "Set KILN_CACHE to a folder of your own, " + vouch);
  }
  if ((status.st_mode & S_IWOTH) != 0) {
    refuse(root, "everyone may write to it",
           "Run 'chmod o-w " + shell_word(root.string()) +
               "', or set KILN_CACHE to a folder of your own, " + vouch);
  }
}

void check_folder(const struct stat& status, const struct stat& root, const fs::path& path) {
  if (is_vouched_for(path)) return;
  const bool group = is_shared(root) && status.st_gid == root.st_gid;
  if (!is_own(status.st_uid) && !group) {
    refuse(path, whose(status.st_uid), "Remove it, or set KILN_CACHE to a folder of your own");
  }
  if ((status.st_mode & S_IWOTH) != 0) {
    throw Error(ErrorCode::kCache, "open " + path.string() +
                                       ": everyone may write to it. Run 'chmod o-w " +
                                       shell_word(path.string()) + "', then 'kiln cache verify'");
  }
}

/// A step down from an open folder. Invalid if there is none.
FileDescriptor open_in(int parent, const fs::path& path) {
  FileDescriptor folder(::openat(parent, path.filename().c_str(), kOpenFolder));
  if (folder.valid() || errno == ENOENT) return folder;
  if (errno == ENOTDIR || errno == ELOOP) fail_foreign(path, "a folder");
  fail_cache("open", path, errno);
}

/// The same, and makes the folder if it is not there.
FileDescriptor make_in(int parent, const fs::path& path) {
  const bool made = ::mkdirat(parent, path.filename().c_str(), 0755) == 0;
  if (!made && errno != EEXIST) fail_cache("make folder", path, errno);
  FileDescriptor folder = open_in(parent, path);
  if (!folder.valid()) fail_cache("open", path, ENOENT);
  if (made) {
    share_made(folder.get(), parent, path);
    // Some network file systems refuse to sync a folder.
    if (::fsync(parent) != 0 && errno != EINVAL) fail_cache("sync", path.parent_path(), errno);
  }
  return folder;
}

/// Invalid if it is not there.
FileDescriptor open_root(const fs::path& root) {
  FileDescriptor folder = try_open(root, O_RDONLY | O_DIRECTORY);
  if (!folder.valid() && errno != ENOENT) fail_cache("open", root, errno);
  if (folder.valid()) check_root_folder(status_of(folder.get(), root), root);
  return folder;
}

/// From the root down, step by step. Invalid where it, or a step, is not there.
FileDescriptor walk(const fs::path& root, const fs::path& relative, decltype(&open_in) step) {
  FileDescriptor folder = open_root(root);
  if (!folder.valid()) return folder;
  const struct stat top = status_of(folder.get(), root);
  fs::path at = root;
  for (const fs::path& part : relative) {
    folder = step(folder.get(), at /= part);
    if (!folder.valid()) break;
    check_folder(status_of(folder.get(), at), top, at);
  }
  return folder;
}

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

/// A name in the folder that neither Kiln wrote on its way to the mark nor mkfs; empty: none.
std::string other_thing_in(const fs::path& root) {
  for (const std::string& name : list_inside(root, "")) {
    if (name != kMarkName && name != "lost+found" && !is_draft(name)) return name;
  }
  return {};
}

enum class Mark { kNone, kKiln, kForeign };

Mark read_mark(const fs::path& root) {
  const FileDescriptor folder = open_root(root);
  if (!folder.valid()) return Mark::kNone;
  const FileDescriptor file(
      ::openat(folder.get(), kMarkName, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid() && errno == ENOENT) return Mark::kNone;
  if (!file.valid() && (errno == ELOOP || errno == ENXIO)) return Mark::kForeign;
  if (!file.valid()) fail_cache("open", root / kMarkName, errno);
  std::array<char, kMark.size() + 1> text{};
  const ssize_t count = ::read(file.get(), text.data(), text.size());
  if (count == 0) return Mark::kNone;  // as a Kiln that was killed in the middle left it once
  if (count < 0 && errno == EISDIR) return Mark::kForeign;
  if (count < 0) fail_cache("read", root / kMarkName, errno);
  const bool same = std::string_view(text.data(), static_cast<std::size_t>(count)) == kMark;
  return same ? Mark::kKiln : Mark::kForeign;
}

/// Under any umask: a cache below a folder that everyone may write to would be refused.
void make_way(const fs::path& folder) {
  std::error_code unknown;  // mkdir says what is wrong
  if (folder.empty() || fs::is_directory(folder, unknown)) return;
  make_way(folder.parent_path());
  if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) {
    fail_cache("make folder", folder, errno);
  }
}

}  // namespace

void check_root(const fs::path& root) {
  if (const auto doubt = doubt_about_way(root, "KILN_CACHE")) {
    refuse(doubt->at, doubt->why, doubt->next_step);
  }
  // O_PATH: whose it is can be told where it may not be read.
  FileDescriptor folder = try_open(root, O_PATH);
  if (!folder.valid()) {
    if (errno != ENOENT) fail_cache("open cache", root, errno);
    if (!stands(root, &fail_cache)) return;  // made on the first write
    folder = try_open(root, O_PATH);         // another process may have made it since
  }
  if (!folder.valid()) {
    refuse(root, "it is a symbolic link to a place that is not there",
           "Make that folder, or set KILN_CACHE to a folder of your own");
  }
  const struct stat status = status_of(folder.get(), root);
  if (!S_ISDIR(status.st_mode)) refuse(root, "it is not a folder");
  check_root_folder(status, root);
}

bool is_marked(const fs::path& root) {
  const Mark mark = read_mark(root);
  if (mark == Mark::kKiln) return true;
  const std::string other = mark == Mark::kForeign ? std::string(kMarkName) : other_thing_in(root);
  if (other.empty()) return false;
  // What is seen now may be of another Kiln that made the mark after it was looked for.
  if (read_mark(root) == Mark::kKiln) return true;
  refuse(root,
         mark == Mark::kForeign
             ? "its CACHEDIR.TAG is not Kiln's"
             : "it is not a cache of Kiln's: it has no CACHEDIR.TAG, and other things in it, such "
               "as " +
                   quote(other),
         "Nothing was changed in it. Set KILN_CACHE to a new or an empty folder");
}

void make_root(const fs::path& root) {
  if (!stands(root, &fail_cache)) {
    make_way(root.parent_path());
    if (::mkdir(root.c_str(), 0755) != 0 && errno != EEXIST) {
      fail_cache("make folder", root, errno);
    }
    sync_folder(root.parent_path());
  }
  if (is_marked(root)) return;
  try {
    write_file(root / kMarkName, kMark);
  } catch (const Error&) {
    // Another Kiln may have made the mark, and its gc has taken the draft of this one for left.
    if (!is_marked(root)) throw;
  }
}

FileDescriptor open_folder_inside(const fs::path& root, const fs::path& relative) {
  return walk(root, relative, open_in);
}

FileDescriptor make_folder_inside(const fs::path& root, const fs::path& relative) {
  FileDescriptor folder = walk(root, relative, make_in);
  if (!folder.valid()) fail_cache("open cache", root, ENOENT);
  return folder;
}

std::vector<std::string> list_inside(const fs::path& root, const fs::path& relative) {
  FileDescriptor folder = open_folder_inside(root, relative);
  if (!folder.valid()) return {};
  const std::unique_ptr<DIR, CloseFolder> listed(::fdopendir(folder.get()));
  if (!listed) fail_cache("list", root / relative, errno);
  folder.release();
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(listed.get())) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
    errno = 0;
  }
  if (errno != 0) fail_cache("list", root / relative, errno);
  std::sort(names.begin(), names.end());
  return names;
}

FileDescriptor open_inside(const fs::path& root, const fs::path& relative) {
  const fs::path path = root / relative;
  const FileDescriptor folder = open_folder_inside(root, relative.parent_path());
  if (!folder.valid()) return {};
  // O_NONBLOCK: to open a pipe that stands in the place of a file would wait for its other end.
  FileDescriptor file(::openat(folder.get(), relative.filename().c_str(),
                               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) {
    if (errno == ENOENT) return {};
    if (errno == ELOOP || errno == ENXIO) fail_foreign(path, "a regular file");
    fail_cache("open", path, errno);
  }
  if (!S_ISREG(status_of(file.get(), path).st_mode)) fail_foreign(path, "a regular file");
  return file;
}

std::optional<std::string> read_inside(const fs::path& root, const fs::path& relative) {
  const FileDescriptor file = open_inside(root, relative);
  if (!file.valid()) return std::nullopt;
  std::string text;
  read_pieces(file.get(), root / relative, [&](std::string_view piece) {
    text += piece;
    if (text.size() > kMaxDocumentBytes) fail_too_large(root / relative);
  });
  return text;
}

void remove_whole(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail_cache("remove", path, error.value());
}

void share_made(int made, int parent, const fs::path& path) {
  const struct stat above = status_of(parent, path.parent_path());
  if (!is_shared(above)) return;
  const struct stat status = status_of(made, path);
  if (status.st_gid != above.st_gid && ::fchown(made, static_cast<uid_t>(-1), above.st_gid) != 0) {
    fail_cache("set group of", path, errno);
  }
  if (::fchmod(made, S_ISDIR(status.st_mode) ? kSharedFolder : kSharedFile) != 0) {
    fail_cache("set mode of", path, errno);
  }
}

FileDescriptor open_lock_file(const fs::path& path, LockMode mode) {
  const auto open = [&] {
    if (mode == LockMode::kShared) return try_open_file(path, O_RDONLY | O_NOFOLLOW);
    // Some network file systems lock exclusively only what can be written.
    FileDescriptor file = try_open_file(path, O_RDWR | O_NOFOLLOW);
    if (file.valid() || (errno != EACCES && errno != EROFS)) return file;
    return try_open_file(path, O_RDONLY | O_NOFOLLOW);
  };
  FileDescriptor file = open();
  if (file.valid() || errno != ENOENT) return file;
  const FileDescriptor parent = try_open(path.parent_path(), O_RDONLY | O_DIRECTORY);
  if (!parent.valid()) return {};
  // Under a name of its own until the group may open it: another process may ask at any time.
  const fs::path draft = path.parent_path() / draft_name();
  file = try_open(draft, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
  if (!file.valid()) return file;
  share_made(file.get(), parent.get(), path);
  const bool linked = ::link(draft.c_str(), path.c_str()) == 0;
  const int error = linked ? 0 : errno;
  ::unlink(draft.c_str());
  if (linked) return file;
  if (error == EEXIST) return open();
  // A file system without hard links.
  return try_open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0644);
}

}  // namespace kiln
