// SPDX-License-Identifier: Apache-2.0
#include "base/draft.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

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

/// Of `name`, in `folder`, that no other thread or process uses.
fs::path draft_path(const fs::path& folder, std::string_view name) {
  return folder / (std::string(name) + "-" + unique_suffix());
}

}  // namespace

void fail_file(std::string_view operation, const fs::path& path, int error) {
  const bool missing = error == ENOENT || error == ENOTDIR;
  throw Error(missing ? ErrorCode::kNotFound : ErrorCode::kCache,
              std::string(operation) + " " + path.string() + ": " +
                  std::generic_category().message(error) + ". " + std::string(next_step(error)));
}

void stream_file(const fs::path& path, const Sink& sink) {
  const FileDescriptor file = try_open(path, O_RDONLY);
  if (!file.valid()) fail_file("open", path, errno);
  if (const int error = try_read_pieces(file.get(), sink); error != 0) {
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
  if (folder.empty() || fs::is_directory(folder)) return;
  const fs::path parent = folder.parent_path();
  make_folders(parent);
  if (::mkdir(folder.c_str(), 0755) != 0) {
    if (errno == EEXIST && fs::is_directory(folder)) return;  // another process made it
    fail_file("make folder", folder, errno);
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

Draft::Draft(const fs::path& folder, std::string_view name, mode_t mode)
    : path_(draft_path(folder, name)),
      file_(try_open(path_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode)) {
  if (!file_.valid()) fail_file("create", path_, errno);
}

Draft::~Draft() {
  if (!published_) ::unlink(path_.c_str());
}

void Draft::write(std::string_view bytes) {
  if (const int error = try_write_all(file_.get(), bytes); error != 0) {
    fail_file("write", path_, error);
  }
}

void Draft::publish(const fs::path& to, mode_t mode) {
  if (::fchmod(file_.get(), mode) != 0) fail_file("set mode of", path_, errno);
  publish(to);
}

void Draft::publish(const fs::path& to) {
  check_replaceable(to);
  if (::fsync(file_.get()) != 0) fail_file("sync", path_, errno);
  if (::rename(path_.c_str(), to.c_str()) != 0) fail_file("rename to", to, errno);
  published_ = true;
  sync_folder(to.parent_path(), &fail_file);
}

void publish_bytes(const fs::path& folder, const fs::path& to, std::string_view bytes,
                   mode_t mode) {
  Draft draft(folder, "." + to.filename().string());
  draft.write(bytes);
  draft.publish(to, mode);
}

bool link_file(const fs::path& from, const fs::path& to) {
  const fs::path draft = draft_path(to.parent_path(), ".link");
  if (::link(from.c_str(), draft.c_str()) != 0) return false;
  if (::rename(draft.c_str(), to.c_str()) != 0) fail_file("rename to", to, errno);
  sync_folder(to.parent_path(), &fail_file);
  return true;
}

}  // namespace kiln
