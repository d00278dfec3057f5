// SPDX-License-Identifier: Apache-2.0
#include "store/cache.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "kiln/error.hpp"
#include "store/ingest.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCacheTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# A cache of Kiln: kernels that can be fetched again.\n";

constexpr const char* kStoreLock = "store.lock";

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

void check_owner(const fs::path& root) {
  struct stat link {};
  struct stat status {};
  if (::lstat(root.c_str(), &link) != 0 || ::stat(root.c_str(), &status) != 0) {
    if (errno == ENOENT) return;  // made on the first write
    fail_cache("open cache", root, errno);
  }
  const std::string where = "open cache " + root.string() + ": ";
  if (link.st_uid != ::geteuid() && link.st_uid != 0 && S_ISLNK(link.st_mode)) {
    throw Error(ErrorCode::kCache,
                where + "it is a symbolic link of user " + std::to_string(link.st_uid) +
                    ", who could turn it elsewhere. Set KILN_CACHE to the folder "
                    "that it names, or to one of your own");
  }
  if (!S_ISDIR(status.st_mode)) {
    throw Error(ErrorCode::kCache,
                where + "it is not a folder. Set KILN_CACHE to a folder of your own");
  }
  // Another user could exchange what is read here between two calls, and plant refs.
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    throw Error(ErrorCode::kCache, where + "it belongs to user " + std::to_string(status.st_uid) +
                                       ", expected this user (" + std::to_string(::geteuid()) +
                                       ") or root. Set KILN_CACHE to a folder of your own");
  }
  if ((status.st_mode & S_IWOTH) != 0) {
    throw Error(ErrorCode::kCache, where + "everyone may write to it. Run 'chmod o-w " +
                                       root.string() +
                                       "', or set KILN_CACHE to a folder of your own");
  }
}

}  // namespace

fs::path Cache::default_root() {
  if (const char* value = environment("KILN_CACHE")) return value;
  if (const char* value = environment("XDG_CACHE_HOME")) return fs::path(value) / "kiln";
  if (const char* value = environment("HOME")) return fs::path(value) / ".cache" / "kiln";
  throw Error(ErrorCode::kCache,
              "find cache: none of KILN_CACHE, XDG_CACHE_HOME and HOME is set. Set KILN_CACHE to a "
              "folder of your own");
}

Cache::Cache(const fs::path& requested, std::stop_token stop)
    : root_(requested.empty() ? default_root() : requested), stop_(std::move(stop)) {
  if (!root_.is_absolute()) {
    throw Error(ErrorCode::kCache, "open cache " + root_.string() +
                                       ": the path is relative, expected an absolute one. Give the "
                                       "full path in KILN_CACHE");
  }
  root_ = root_.lexically_normal();
  check_owner(root_);
}

fs::path Cache::blob_path(const Digest& digest) const {
  return root_ / "blobs" / "sha256" / digest.hex();
}

FileDescriptor Cache::open_blob(const Digest& digest) const {
  return open_inside(root_, fs::path("blobs") / "sha256" / digest.hex());
}

bool Cache::has_blob(const Digest& digest) const {
  return ::access(blob_path(digest).c_str(), F_OK) == 0;
}

fs::path Cache::unpacked_path(const Digest& config) const {
  return root_ / "unpacked" / config.hex();
}

FileLock Cache::use() const {
  const fs::path path = root_ / kStoreLock;
  FileDescriptor file = try_open(path, O_RDONLY | O_NOFOLLOW);
  // A cache that was copied without it gets one, if this user may write.
  if (!file.valid() && errno == ENOENT) {
    file = try_open(path, O_RDONLY | O_CREAT | O_NOFOLLOW, 0644);
  }
  if (!file.valid()) return {};
  return FileLock::wait(std::move(file), LockMode::kShared, stop_, path);
}

FileLock Cache::use_to_write() const {
  if (std::error_code error; !fs::exists(root_, error)) {
    fs::create_directories(root_.parent_path(), error);
    if (error) fail_cache("make folder", root_.parent_path(), error.value());
    if (::mkdir(root_.c_str(), 0755) != 0 && errno != EEXIST) {
      fail_cache("make folder", root_, errno);
    }
    sync_folder(root_.parent_path());
  }
  FileLock used = use();
  struct stat status {};
  const fs::path tag = root_ / "CACHEDIR.TAG";
  const bool whole = ::lstat(tag.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
                     std::cmp_equal(status.st_size, kCacheTag.size());
  if (!whole) write_file(tag, kCacheTag);
  return used;
}

FileLock Cache::use_alone(const std::function<void()>& on_wait) const {
  const fs::path path = root_ / kStoreLock;
  const auto open = [&] {  // some network file systems lock exclusively only what can be written
    FileDescriptor file = try_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0644);
    return file.valid() || errno == ENOENT ? std::move(file)
                                           : try_open(path, O_RDONLY | O_NOFOLLOW);
  };
  FileDescriptor file = open();
  if (!file.valid()) {
    if (errno == ENOENT) return {};
    fail_cache("open", path, errno);
  }
  if (FileLock held = FileLock::attempt(std::move(file), LockMode::kExclusive); held.held()) {
    return held;
  }
  if (on_wait) on_wait();
  FileLock held = FileLock::wait(open(), LockMode::kExclusive, stop_, path);
  if (held.held()) return held;
  throw Error(ErrorCode::kCache, "lock " + path.string() +
                                     ": this file system has no locks, so nobody can know what is "
                                     "in use. Remove the cache as a whole while nothing runs, or "
                                     "move it to a local disk");
}

fs::path Cache::make_folder(const fs::path& relative) const {
  constexpr mode_t kForGroup = S_ISGID | 0775;
  struct stat root {};
  if (::stat(root_.c_str(), &root) != 0) fail_cache("open cache", root_, errno);
  fs::path folder = root_;
  for (const fs::path& part : relative) {
    folder /= part;
    if (::mkdir(folder.c_str(), 0755) == 0) {
      // chmod, since a umask would take the group's right away again.
      if ((root.st_mode & S_IWGRP) != 0 && ::chmod(folder.c_str(), kForGroup) != 0) {
        fail_cache("set mode of", folder, errno);
      }
      sync_folder(folder.parent_path());
    } else if (errno != EEXIST) {
      fail_cache("make folder", folder, errno);
    }
  }
  open_folder_inside(root_, relative);  // refuses links
  return folder;
}

FileLock Cache::lock(const Digest& digest) const {
  const fs::path path = make_folder("locks") / (digest.hex() + ".lock");
  FileDescriptor file = try_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0644);
  if (!file.valid() && errno == EACCES) file = try_open(path, O_RDONLY | O_NOFOLLOW);
  if (!file.valid()) fail_cache("open lock", path, errno);
  // Without locks (some network file systems) two processes may both download: wasteful, not
  // wrong, since each writes its own file and renames it to the same name.
  return FileLock::wait(std::move(file), LockMode::kExclusive, stop_, path);
}

FileLock Cache::lease(const Digest& config) const {
  const fs::path path = root_ / "locks" / (config.hex() + ".use");
  FileDescriptor file = try_open(path, O_RDONLY | O_NOFOLLOW);
  if (!file.valid() && errno == ENOENT) {
    file = try_open(path, O_RDONLY | O_CREAT | O_NOFOLLOW, 0644);
  }
  if (!file.valid()) return {};  // read-only and never leased: nobody can collect garbage there
  return FileLock::wait(std::move(file), LockMode::kShared, stop_, path);
}

bool Cache::is_leased(const Digest& config) const {
  const fs::path path = root_ / "locks" / (config.hex() + ".use");
  FileDescriptor file = try_open(path, O_RDWR | O_NOFOLLOW);
  if (!file.valid() && errno == ENOENT) return false;
  if (!file.valid()) file = try_open(path, O_RDONLY | O_NOFOLLOW);
  return !FileLock::attempt(std::move(file), LockMode::kExclusive).held();
}

bool Cache::verify_blob(const Descriptor& descriptor, std::string_view what,
                        std::string_view next_step) const {
  const fs::path path = blob_path(descriptor.digest);
  const FileDescriptor file = open_blob(descriptor.digest);
  if (!file.valid()) return false;
  StreamVerifier verifier(descriptor, {std::string(what), path.string(), std::string(next_step)});
  read_pieces(file.get(), path, [&](std::string_view piece) { verifier.update(piece); });
  verifier.finish();
  return true;
}

std::optional<std::string> Cache::read_document(const Descriptor& descriptor,
                                                std::string_view what) const {
  const fs::path path = blob_path(descriptor.digest);
  const FileDescriptor file = open_blob(descriptor.digest);
  if (!file.valid()) return std::nullopt;
  const Subject subject{std::string(what), path.string(), kFetchAgain};
  if (descriptor.size > kMaxDocumentBytes) {
    throw Error(ErrorCode::kIntegrity, "read " + subject.what + ": " +
                                           std::to_string(descriptor.size) +
                                           " bytes, expected at most " +
                                           std::to_string(kMaxDocumentBytes) + " for a document");
  }
  std::string bytes;
  StreamVerifier verifier(descriptor, subject);
  read_pieces(file.get(), path, [&](std::string_view piece) {
    verifier.update(piece);
    bytes += piece;
  });
  verifier.finish();
  return bytes;
}

void Cache::write_document(const Descriptor& descriptor, std::string_view bytes) const {
  write(descriptor, {"document", "memory", ""}, [&](BlobSink& sink) {
    if (sink.size() > 0) sink.restart();
    sink.write(bytes);
  });
}

void Cache::write(const Descriptor& descriptor, const Subject& subject,
                  const std::function<void(BlobSink&)>& fill) const {
  if (has_blob(descriptor.digest)) return;
  const FileLock used = use_to_write();
  const FileLock held = lock(descriptor.digest);
  if (has_blob(descriptor.digest)) return;  // another process was faster
  make_folder("blobs/sha256");
  const std::string alone = held.held() ? "" : "." + unique_suffix();
  Ingest ingest(make_folder("ingest") / (descriptor.digest.hex() + alone + ".part"), held.held(),
                descriptor, subject);
  try {
    fill(ingest);
    ingest.finish();
  } catch (const Error& error) {
    // Wrong bytes and those of a failing disk are of no use; those of a cut download are.
    if (error.code() != ErrorCode::kIntegrity && error.code() != ErrorCode::kCache) ingest.keep();
    throw;
  } catch (...) {
    ingest.keep();
    throw;
  }
  ingest.publish(blob_path(descriptor.digest));
}

void Cache::open(const Descriptor& descriptor, BlobSink& sink, const Asking& asking) const {
  const fs::path path = blob_path(descriptor.digest);
  const FileDescriptor file = open_blob(descriptor.digest);
  if (!file.valid()) {
    throw Error(ErrorCode::kNotFound, "read " + std::string(asking.what) + ": " + path.string() +
                                          " is not there. " + kFetchAgain);
  }
  if (sink.size() > 0) sink.restart();
  read_pieces(file.get(), path, [&](std::string_view piece) { sink.write(piece); });
}

std::vector<Digest> Cache::blobs() const {
  std::vector<Digest> found;
  if (!open_folder_inside(root_, "blobs/sha256").valid()) return found;
  for (const auto& each : fs::directory_iterator(root_ / "blobs" / "sha256")) {
    try {
      found.push_back(Digest::parse("sha256:" + each.path().filename().string()));
    } catch (const Error&) {  // not a blob, so nobody will ask for it
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string Cache::check_blob(const Digest& digest) const {
  try {
    const FileDescriptor file = open_blob(digest);
    if (!file.valid()) return "is missing";
    Sha256 hash;
    read_pieces(file.get(), blob_path(digest), [&](std::string_view piece) { hash.update(piece); });
    const Digest found = hash.finish();
    return found == digest ? "" : "digest is " + found.str() + ", its name says " + digest.str();
  } catch (const Error& error) {
    return error.what();
  }
}

void Cache::drop_blob(const Digest& digest) const {
  if (!open_folder_inside(root_, "blobs/sha256").valid()) return;  // throws for a link on the way
  const fs::path path = blob_path(digest);
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail_cache("remove", path, error.value());
}

}  // namespace kiln
