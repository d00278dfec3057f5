// SPDX-License-Identifier: Apache-2.0
#include "store/ingest.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "store/inside.hpp"

namespace kiln {

Ingest::Ingest(std::filesystem::path part, bool resume, const Descriptor& promised,
               const Subject& subject)
    : promised_(promised),
      subject_(subject),
      verifier_(promised, subject, Hashing::kBeside),
      path_(std::move(part)),
      resumable_(resume) {
  open();
  if (!resume) return;
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) fail_cache("open", path_, errno);
  if (std::cmp_greater(status.st_size, promised.size)) {
    restart();
    return;
  }
  // Not the file alone, its hash too: the state of a SHA-256 is not stored.
  read_pieces(file_.get(), path_, [&](std::string_view piece) { verifier_.update(piece); });
}

void Ingest::open() {
  const int exclusive = resumable_ ? 0 : O_EXCL;
  const auto usable = [&] {
    struct stat status {};
    // A second name for the file would change with it.
    return file_.valid() && ::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode) &&
           status.st_nlink == 1;
  };
  // O_NONBLOCK: to open a pipe that stands here would wait for its other end.
  file_ = try_open(path_, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | exclusive, 0600);
  if (usable()) return share();
  if (!resumable_) fail_cache("create", path_, errno);
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) fail_cache("remove", path_, errno);
  file_ = try_open(path_, O_RDWR | O_CREAT | O_NOFOLLOW | O_EXCL, 0600);
  if (!file_.valid()) fail_cache("create", path_, errno);
  share();
}

/// Another member of the group that shares the cache may go on with it.
void Ingest::share() {
  const FileDescriptor folder = try_open(path_.parent_path(), O_RDONLY | O_DIRECTORY);
  struct stat status {};
  if (!folder.valid() || ::fstat(file_.get(), &status) != 0) fail_cache("open", path_, errno);
  if (status.st_uid == ::geteuid()) share_made(file_.get(), folder.get(), path_);
}

Ingest::~Ingest() {
  if (file_.valid() && !kept_) ::unlink(path_.c_str());
}

void Ingest::keep() {
  struct stat status {};
  kept_ = resumable_ && ::fstat(file_.get(), &status) == 0 && status.st_size > 0;
}

void Ingest::write(std::string_view bytes) {
  verifier_.update(bytes);
  const int error = try_write_all(file_.get(), bytes);
  if (error == 0) return behind_.wrote(file_.get(), bytes.size());
  // What is there is good, and there may be room tomorrow; a disk that fails is not to be trusted.
  if (error == ENOSPC || error == EDQUOT) keep();
  fail_cache("write", path_, error);
}

void Ingest::restart() {
  if (::ftruncate(file_.get(), 0) != 0 || ::lseek(file_.get(), 0, SEEK_SET) != 0) {
    fail_cache("empty", path_, errno);
  }
  verifier_ = StreamVerifier(promised_, subject_, Hashing::kBeside);
  behind_ = WriteBehind();
}

void Ingest::publish(const std::filesystem::path& to) {
  finish();
  publish_file(file_, path_, to);
  file_ = FileDescriptor();
}

}  // namespace kiln
