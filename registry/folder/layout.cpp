// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/layout.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/ascii.hpp"
#include "base/draft.hpp"
#include "base/quote.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

/// While it lives, Ctrl-C, SIGTERM and SIGHUP end the process with the exit code of what was
/// stopped, where they were not ignored.
class QuitsOnSignals {
 public:
  QuitsOnSignals() {
    struct sigaction quit {};
    quit.sa_handler = [](int) { ::_exit(static_cast<int>(ErrorCode::kCancelled)); };
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler == SIG_DFL) ::sigaction(kSignals[i], &quit, nullptr);
    }
  }
  ~QuitsOnSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
  QuitsOnSignals(const QuitsOnSignals&) = delete;
  QuitsOnSignals& operator=(const QuitsOnSignals&) = delete;

 private:
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, 3> before_{};
};

[[noreturn]] void fail(const fs::path& path, std::string_view what, const std::string& found) {
  throw Error(ErrorCode::kIntegrity, "verify " + std::string(what) + ": " + path.string() + " " +
                                         found +
                                         ". Restore this file from a mirror, or build and publish "
                                         "the same variant again");
}

[[noreturn]] void fail_foreign(const fs::path& path, std::string_view expected) {
  throw Error(ErrorCode::kIntegrity,
              "open " + path.string() + ": found a link or another kind of file, expected " +
                  std::string(expected) + ". Put what belongs there in its place");
}

/// A step down. O_NONBLOCK: to open a pipe that stands in the place of a file would wait for its
/// other end. Invalid without one.
FileDescriptor open_step(int parent, const fs::path& path, int flags, std::string_view expected) {
  FileDescriptor step(::openat(parent, path.filename().c_str(),
                               flags | O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (step.valid() || errno == ENOENT) return step;
  if (errno == ENOTDIR || errno == ELOOP || errno == ENXIO) fail_foreign(path, expected);
  fail_file("open", path, errno);
}

std::uint64_t size_of(int file, const fs::path& path) {
  struct stat status {};
  if (::fstat(file, &status) != 0) fail_file("look at", path, errno);
  if (!S_ISREG(status.st_mode)) fail_foreign(path, "a regular file");
  return static_cast<std::uint64_t>(status.st_size);
}

/// The blob, opened; it has the size that is promised.
FileDescriptor open_promised(const Layout& layout, const Descriptor& descriptor,
                             std::string_view what) {
  const fs::path path = layout.blob_path(descriptor.digest);
  FileDescriptor file = layout.open_blob(descriptor.digest);
  if (!file.valid()) fail(path, what, "is missing (" + descriptor.digest.str() + ")");
  const std::uint64_t size = size_of(file.get(), path);
  if (size != descriptor.size) {
    fail(path, what,
         "has " + std::to_string(size) + " bytes, expected " + std::to_string(descriptor.size) +
             " of " + descriptor.digest.str());
  }
  return file;
}

Digest digest_of(const FileDescriptor& file, const fs::path& path) {
  Sha256 hash;
  if (const int error =
          try_read_pieces(file.get(), [&](std::string_view piece) { hash.update(piece); });
      error != 0) {
    fail_file("read", path, error);
  }
  return hash.finish();
}

std::string read_all(const FileDescriptor& file, const fs::path& path) {
  std::string bytes;
  const int error = try_read_pieces(file.get(), [&](std::string_view piece) {
    if (piece.size() > kMaxDocumentBytes - bytes.size()) {
      throw Error(ErrorCode::kIntegrity, "read " + path.string() + ": has more than " +
                                             std::to_string(kMaxDocumentBytes) +
                                             " bytes, the limit of a document");
    }
    bytes += piece;
  });
  if (error != 0) fail_file("read", path, error);
  return bytes;
}

void check_digest(const fs::path& path, const Digest& found, const Descriptor& descriptor,
                  std::string_view what) {
  if (found != descriptor.digest) {
    fail(path, what, "has digest " + found.str() + ", expected " + descriptor.digest.str());
  }
}

}  // namespace

bool Layout::exists() const {
  std::error_code unknown;  // what is there and cannot be looked at is told by who opens it
  return fs::symlink_status(index_path(), unknown).type() != fs::file_type::not_found;
}

FileDescriptor Layout::open(const fs::path& relative) const {
  const fs::path registry = folder_.parent_path();
  FileDescriptor step = try_open(registry.empty() ? "." : registry, O_RDONLY | O_DIRECTORY);
  if (!step.valid()) fail_file("open", registry, errno);
  fs::path at = registry;
  for (const fs::path& part : folder_.filename() / relative.parent_path()) {
    if (part.empty()) continue;
    at /= part;
    step = open_step(step.get(), at, O_DIRECTORY, "a folder");
    if (!step.valid()) return step;
  }
  at /= relative.filename();
  FileDescriptor file = open_step(step.get(), at, 0, "a regular file");
  if (file.valid()) size_of(file.get(), at);
  return file;
}

FileDescriptor Layout::open_blob(const Digest& digest) const {
  return open(fs::path("blobs") / "sha256" / digest.hex());
}

std::string Layout::read_file(const fs::path& relative) const {
  const FileDescriptor file = open(relative);
  if (!file.valid()) fail_file("open", folder_ / relative, errno);
  return read_all(file, folder_ / relative);
}

std::vector<Tag> Layout::read() const {
  if (!exists()) return {};
  check_layout_marker(read_file("oci-layout"), (folder_ / "oci-layout").string());
  return parse_layout_index(read_file("index.json"), index_path().string(), Untagged::kKept);
}

std::string Layout::read_blob(const Descriptor& descriptor, std::string_view what) const {
  const fs::path path = blob_path(descriptor.digest);
  std::string bytes = read_all(open_promised(*this, descriptor, what), path);
  check_digest(path, Digest::of(bytes), descriptor, what);
  return bytes;
}

void Layout::check_blob(const Descriptor& descriptor, std::string_view what) const {
  const fs::path path = blob_path(descriptor.digest);
  check_digest(path, digest_of(open_promised(*this, descriptor, what), path), descriptor, what);
}

bool Layout::has_blob(const Descriptor& descriptor) const try {
  check_blob(descriptor, "blob");
  return true;
} catch (const Error& error) {
  if (error.code() != ErrorCode::kIntegrity) throw;
  return false;
}

FileLock Layout::lock() const {
  make_folders(folder_);
  const fs::path path = folder_ / ".lock";
  FileDescriptor file = try_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0644);
  if (!file.valid()) fail_file("create", path, errno);
  const QuitsOnSignals quits;  // nothing is changed yet
  const Waiting waiting{{}, [](const std::string& note) {
                          std::fprintf(stderr, "kiln-registry: %s\n", printable(note).c_str());
                        }};
  FileLock held = FileLock::wait(std::move(file), LockMode::kExclusive, waiting, path);
  // Unlike a cache, a publish must not go on without the lock: it would lose another's variants.
  if (!held.held()) fail_file("lock", path, errno);
  make_folders(blobs_path());
  make_folders(ingest_path());
  open_blob(Digest::of(""));  // throws where a folder on the way is a link
  // Only the holder of the lock writes here, so whatever is left is of a process that died.
  for (const fs::directory_entry& leftover : fs::directory_iterator(ingest_path())) {
    fs::remove(leftover.path());
  }
  return held;
}

void Layout::write_blob(const Descriptor& descriptor, std::string_view bytes) const {
  if (has_blob(descriptor)) return;
  publish_bytes(ingest_path(), blob_path(descriptor.digest), bytes, 0444);
}

void Layout::copy_blob(const Descriptor& descriptor, const fs::path& from) const {
  if (has_blob(descriptor)) return;
  Draft draft(ingest_path(), descriptor.digest.hex(), blob_path(descriptor.digest));
  Sha256 hash;
  stream_file(from, [&](std::string_view piece) {
    hash.update(piece);
    draft.write(piece);
  });
  // The input was verified before, but it is another program's file and may have changed since.
  check_digest(from, hash.finish(), descriptor, "input");
  draft.publish(0444);
}

void Layout::write(const std::vector<Tag>& tags) const {
  const fs::path marker = folder_ / "oci-layout";
  if (!fs::exists(marker)) publish_bytes(ingest_path(), marker, serialize_layout_marker(), 0644);
  publish_bytes(ingest_path(), index_path(), serialize_layout_index(tags), 0644);
}

void check_is_path(const fs::path& folder, std::string_view operation) {
  const std::string text = folder.string();
  // "https:/…": fs::path may make one of two slashes. One letter is not a scheme.
  const auto end = std::find_if_not(text.begin(), text.end(), is_letter);
  if (end - text.begin() < 2 || !std::string_view(end, text.end()).starts_with(":/")) return;
  throw Error(
      ErrorCode::kUsage,
      std::string(operation) + " " + text +
          ": this is a URL, expected a folder; nothing was written. 'kiln registry publish' "
          "and 'kiln registry push --to' take a URL");
}

void check_is_outside(const fs::path& out, const fs::path& registry, std::string_view operation) {
  std::error_code error;
  const fs::path whole = fs::absolute(out, error).lexically_normal();
  for (fs::path at = whole; at.has_relative_path(); at = at.parent_path()) {
    if (!fs::equivalent(at, registry, error)) continue;  // or one of them is not there yet
    throw Error(ErrorCode::kUsage,
                std::string(operation) + ": " + out.string() +
                    (at == whole ? " is the registry itself" : " is in the registry ") +
                    (at == whole ? "" : registry.string()) +
                    "; nothing was written. Name another folder");
  }
}

std::vector<std::string> packages_of(const fs::path& registry) {
  check_is_path(registry, "open registry");
  if (!fs::is_directory(registry)) {
    fail_no_folder("open registry", registry, "Publish into it first, or check the path");
  }
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(registry)) {
    std::string name = entry.path().filename().string();
    if (entry.is_directory() && is_package_name(name)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

const Tag* find_tag(const std::vector<Tag>& tags, std::string_view name) {
  const auto found = std::ranges::find(tags, name, &Tag::name);
  return found == tags.end() ? nullptr : &*found;
}

}  // namespace kiln::registry
