// SPDX-License-Identifier: Apache-2.0
#include "base/draft.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>
#include <map>
#include <system_error>
#include <utility>

namespace kiln {
namespace {

namespace fs = std::filesystem;

std::string_view next_step(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return "Check the path";
    case ENOSPC:
    case EDQUOT:
      return "Make room on that disk and run the command again";
    case EFBIG:
      return "Raise the limit of a file's size (ulimit -f) and run the command again";
    case EROFS:
    case EACCES:
    case EPERM:
      return "Give this user access to it and run the command again";
    case EMFILE:
    case ENFILE:
      return "Raise the limit of open files (ulimit -n), or close some";
    default:
      return "Check the disk and run the command again";
  }
}

/// What a draft has of `name`: a file's own name may be as long as a name can be.
std::string_view stem_of(std::string_view name) {
  constexpr std::size_t kSuffix = 32;  // "-<unique suffix>" has no more
  return name.substr(0, NAME_MAX - kSuffix);
}

/// Of `name`, in `folder`, that no other thread or process uses.
fs::path draft_path(const fs::path& folder, std::string_view name) {
  return folder / (std::string(stem_of(name)) + "-" + unique_suffix());
}

/// "<name>-<unique suffix>" has `name`; empty of any other.
std::string_view name_of_draft(std::string_view file) {
  const std::size_t random = file.rfind('-');
  const std::size_t dash = random == 0 ? random : file.rfind('-', random - 1);
  if (random == std::string_view::npos || dash == std::string_view::npos) return {};
  return is_unique_suffix(file.substr(dash + 1)) ? file.substr(0, dash) : std::string_view();
}

/// Whether nobody works on it: it is a link that nobody renames, or a file that nobody has locked.
bool is_left(const fs::path& draft) {
  constexpr std::time_t kYoung = 60;  // seconds, in which it may not be locked yet
  struct stat status {};
  if (::lstat(draft.c_str(), &status) != 0) return false;
  if (status.st_ctim.tv_sec > std::time(nullptr) - kYoung) return false;
  if (!S_ISREG(status.st_mode)) return S_ISLNK(status.st_mode);
  FileDescriptor file = try_open(draft, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  return file.valid() && FileLock::attempt(std::move(file), LockMode::kExclusive).held();
}

}  // namespace

std::string told_of_file(int error) {
  return std::generic_category().message(error) + ". " + std::string(next_step(error));
}

void fail_file(std::string_view operation, const fs::path& path, int error) {
  const bool missing = error == ENOENT || error == ENOTDIR;
  throw Error(missing ? ErrorCode::kNotFound : ErrorCode::kCache,
              std::string(operation) + " " + path.string() + ": " + told_of_file(error));
}

void fail_no_folder(std::string_view operation, const fs::path& path, std::string_view next_step) {
  const std::string subject = std::string(operation) + " " + path.string();
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    throw Error(ErrorCode::kUsage, subject + ": it is " +
                                       (S_ISREG(status.st_mode) ? "a file" : "a pipe or a device") +
                                       ", expected a folder. Name another path");
  }
  throw Error(ErrorCode::kNotFound,
              subject + ": there is no such folder. " + std::string(next_step));
}

fs::path absolute_path(const fs::path& path) {
  if (path.empty()) throw Error(ErrorCode::kUsage, "find a file: its name is empty. Name one");
  std::error_code error;
  fs::path found = fs::absolute(path, error);
  if (!error) return found;
  throw Error(ErrorCode::kNotFound, "find " + path.string() + ": the current folder was removed (" +
                                        error.message() +
                                        "). Go to another one (cd), or name the whole path");
}

fs::path followed(const fs::path& file) {
  constexpr int kMostLinks = 40;  // as many as the kernel follows
  std::error_code error;
  fs::path target = absolute_path(file);
  for (int links = 0; fs::is_symlink(fs::symlink_status(target, error)); ++links) {
    if (links == kMostLinks) {
      throw Error(ErrorCode::kUsage, "find " + file.string() +
                                         ": its links lead to no file. Remove the link, or point "
                                         "it to one");
    }
    target = target.parent_path() / fs::read_symlink(target, error);
    if (error) fail_file("find", file, error.value());
  }
  return target;  // where this look failed, the open says why
}

fs::path followed_to_write(const fs::path& file) {
  fs::path target = followed(file);
  struct stat status {};  // behind /dev/stdout may be "pipe:[7]", which is no path
  if (::stat(file.c_str(), &status) == 0 && ::lstat(target.c_str(), &status) != 0 &&
      (errno == ENOENT || errno == ENOTDIR)) {
    throw Error(ErrorCode::kUsage, "write " + file.string() +
                                       ": it is a pipe or a device, expected a file. Name another "
                                       "path");
  }
  return target;
}

void stream_file(const fs::path& path, const Sink& sink) {
  const NamedFile opened = open_named_file(path, Pipes::kRead);
  if (opened.error == EISDIR || (opened.error == 0 && !opened.problem.empty())) {
    throw Error(ErrorCode::kUsage, "read " + path.string() + ": " + opened.problem +
                                       (opened.error == 0 ? "" : ", expected a file") +
                                       ". Name another path");
  }
  if (opened.error != 0) fail_file("open", path, opened.error);
  if (const int error = try_read_pieces(opened.file.get(), sink); error != 0) {
    fail_file("read", path, error);
  }
}

Digest digest_of_file(const fs::path& path) {
  Sha256 hash;
  stream_file(path, [&](std::string_view piece) { hash.update(piece); });
  return hash.finish();
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

void make_folders(const fs::path& folder) {
  std::error_code unknown;  // mkdir says what is wrong
  if (folder.empty() || fs::is_directory(folder, unknown)) return;
  const fs::path parent = folder.parent_path();
  make_folders(parent);
  if (::mkdir(folder.c_str(), 0755) != 0) {
    const int error = errno;
    if (error == EEXIST && fs::is_directory(folder, unknown)) return;  // another process made it
    if (error == EEXIST) fail_no_folder("write into", folder, "Remove the link that is there");
    fail_file("make folder", folder, error);
  }
  sync_folder(parent.empty() ? fs::path(".") : parent, &fail_file);
}

void check_replaceable(const fs::path& to) {
  struct stat status {};
  if (::lstat(to.c_str(), &status) != 0) return;  // nothing there, or the rename says what is wrong
  if (S_ISREG(status.st_mode) || S_ISLNK(status.st_mode)) return;
  throw Error(ErrorCode::kUsage, "write " + to.string() + ": it is " +
                                     (S_ISDIR(status.st_mode) ? "a folder" : "a pipe or a device") +
                                     ", expected a file. Name another path");
}

Draft::Draft(const fs::path& folder, std::string_view name, fs::path to, mode_t mode)
    : path_(draft_path(folder, name)),
      to_(std::move(to)),
      file_(try_open(path_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode)) {
  if (!file_.valid()) fail_file("make a file in", folder, errno);
  ::flock(file_.get(), LOCK_EX | LOCK_NB);
}

Draft::~Draft() {
  if (!published_) ::unlink(path_.c_str());
}

void Draft::write(std::string_view bytes) {
  if (const int error = try_write_all(file_.get(), bytes); error != 0) {
    fail_file("write", to_, error);
  }
}

void Draft::publish(mode_t mode) {
  if (::fchmod(file_.get(), mode) != 0) fail_file("set mode of", to_, errno);
  publish();
}

void Draft::publish() {
  check_replaceable(to_);
  if (::fsync(file_.get()) != 0) fail_file("sync", to_, errno);
  if (::rename(path_.c_str(), to_.c_str()) != 0) fail_file("rename to", to_, errno);
  published_ = true;
  sync_folder(to_.parent_path(), &fail_file);
}

void sweep_drafts(const fs::path& folder, std::string_view name) {
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end;
       each.increment(error)) {
    const std::string file = each->path().filename().string();
    if (name_of_draft(file) == stem_of(name) && is_left(each->path()))
      ::unlink(each->path().c_str());
  }
}

void sweep_drafts_below(const fs::path& folder) {
  std::error_code error;
  for (fs::recursive_directory_iterator each(folder, error), end; !error && each != end;
       each.increment(error)) {
    const std::string file = each->path().filename().string();
    const bool is_one = name_of_draft(file).starts_with('.');
    if (is_one && is_left(each->path())) ::unlink(each->path().c_str());
  }
}

void publish_bytes(const fs::path& folder, const fs::path& to, std::string_view bytes,
                   mode_t mode) {
  Draft draft(folder, "." + to.filename().string(), to);
  draft.write(bytes);
  draft.publish(mode);
}

void replace_file(const fs::path& file, std::string_view bytes, mode_t mode) {
  const fs::path target = followed_to_write(file);
  const std::string name = "." + target.filename().string();
  sweep_drafts(target.parent_path(), name);
  Draft draft(target.parent_path(), name, target, mode);
  draft.write(bytes);
  draft.publish();
}

std::vector<FileLock> lock_folders_of(const std::vector<fs::path>& files, const Waiting& waiting) {
  // By device and number: one folder has many names. In one order: two processes that each held
  // what the other waits for would wait for ever.
  std::map<std::pair<dev_t, ino_t>, std::pair<FileDescriptor, fs::path>> folders;
  for (const fs::path& named : files) {
    const fs::path file = followed(named);
    const fs::path folder = file.parent_path();
    FileDescriptor opened = try_open(folder, O_RDONLY | O_DIRECTORY);
    struct stat status {};
    if (!opened.valid() || ::fstat(opened.get(), &status) != 0) {
      fail_file("open the folder", folder, errno);
    }
    folders.try_emplace({status.st_dev, status.st_ino}, std::move(opened), file);
  }
  std::vector<FileLock> held;
  held.reserve(folders.size());
  for (auto& [number, each] : folders) {
    held.push_back(
        FileLock::wait(std::move(each.first), LockMode::kExclusive, waiting, each.second));
  }
  return held;
}

bool link_file(const fs::path& from, const fs::path& to) {
  const fs::path draft = draft_path(to.parent_path(), ".link");
  if (::link(from.c_str(), draft.c_str()) != 0) return false;
  if (::rename(draft.c_str(), to.c_str()) != 0) fail_file("rename to", to, errno);
  sync_folder(to.parent_path(), &fail_file);
  return true;
}

}  // namespace kiln
