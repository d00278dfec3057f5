// SPDX-License-Identifier: Apache-2.0
#include "cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "kiln/error.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCacheTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# A cache of Kiln: kernels that can be fetched again.\n";

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

void check_owner(const fs::path& root) {
  struct stat status {};
  if (::stat(root.c_str(), &status) != 0) {
    if (errno == ENOENT) return;  // made on the first write
    fail_cache("open cache", root, errno);
  }
  const std::string where = "open cache " + root.string() + ": ";
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

/// An exclusively created file that is removed again unless it was published.
class Ingest final : public BlobSink {
 public:
  Ingest(const fs::path& folder, const Descriptor& promised, const Subject& subject)
      : promised_(promised),
        subject_(subject),
        verifier_(promised, subject),
        path_(folder / (promised.digest.hex() + "." + unique_suffix())),
        file_(try_open(path_, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600)) {
    if (!file_.valid()) fail_cache("create", path_, errno);
  }
  ~Ingest() override {
    if (!published_) ::unlink(path_.c_str());
  }
  Ingest(const Ingest&) = delete;
  Ingest& operator=(const Ingest&) = delete;

  std::uint64_t size() const override { return verifier_.seen(); }

  void write(std::string_view bytes) override {
    verifier_.update(bytes);
    write_all(file_.get(), bytes, path_);
  }

  void restart() override {
    if (::ftruncate(file_.get(), 0) != 0 || ::lseek(file_.get(), 0, SEEK_SET) != 0) {
      fail_cache("empty", path_, errno);
    }
    verifier_ = StreamVerifier(promised_, subject_);
  }

  void finish() override { verifier_.finish(); }

  void publish(const fs::path& to) {
    finish();
    publish_file(file_, path_, to);
    published_ = true;
  }

 private:
  Descriptor promised_;
  Subject subject_;
  StreamVerifier verifier_;
  fs::path path_;
  FileDescriptor file_;
  bool published_ = false;
};

}  // namespace

fs::path Cache::default_root() {
  if (const char* value = environment("KILN_CACHE")) return value;
  if (const char* value = environment("XDG_CACHE_HOME")) return fs::path(value) / "kiln";
  if (const char* value = environment("HOME")) return fs::path(value) / ".cache" / "kiln";
  throw Error(ErrorCode::kCache,
              "find cache: none of KILN_CACHE, XDG_CACHE_HOME and HOME is set. Set KILN_CACHE to a "
              "folder of your own");
}

Cache::Cache(const fs::path& requested) : root_(requested.empty() ? default_root() : requested) {
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

bool Cache::has_blob(const Digest& digest) const {
  return ::access(blob_path(digest).c_str(), F_OK) == 0;
}

fs::path Cache::unpacked_path(const Digest& config) const {
  return root_ / "unpacked" / config.hex();
}

fs::path Cache::make_folder(const fs::path& relative) const {
  const auto make = [](const fs::path& folder) {
    if (::mkdir(folder.c_str(), 0755) == 0) return true;
    if (errno != EEXIST) fail_cache("make folder", folder, errno);
    return false;
  };
  if (std::error_code error; !fs::exists(root_, error)) {
    fs::create_directories(root_.parent_path(), error);
    if (error) fail_cache("make folder", root_.parent_path(), error.value());
    make(root_);
  }
  const fs::path tag = root_ / "CACHEDIR.TAG";
  if (const FileDescriptor file = try_open(tag, O_WRONLY | O_CREAT | O_EXCL, 0644); file.valid()) {
    write_all(file.get(), kCacheTag, tag);
  }
  fs::path folder = root_;
  for (const fs::path& part : relative) {
    folder /= part;
    if (make(folder)) sync_folder(folder.parent_path());
  }
  return folder;
}

FileDescriptor Cache::lock(const Digest& digest) const {
  const fs::path path = make_folder("locks") / (digest.hex() + ".lock");
  FileDescriptor file = try_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0644);
  if (!file.valid()) fail_cache("open lock", path, errno);
  while (::flock(file.get(), LOCK_EX) != 0) {
    // Without locks (some network file systems) two processes may both download: wasteful, not
    // wrong, since each writes its own file and renames it to the same name.
    if (errno != EINTR) return FileDescriptor();
  }
  return file;
}

std::optional<std::string> Cache::read_document(const Descriptor& descriptor,
                                                std::string_view what) const {
  const fs::path path = blob_path(descriptor.digest);
  const FileDescriptor file = try_open(path, O_RDONLY | O_NOFOLLOW);
  if (!file.valid()) {
    if (errno == ENOENT) return std::nullopt;
    fail_cache("open", path, errno);
  }
  const Subject subject{std::string(what), path.string(),
                        "Run 'kiln install --refresh' to fetch it again"};
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
  write_blob(descriptor, {"document", "memory", ""}, [&](BlobSink& sink) { sink.write(bytes); });
}

fs::path Cache::write_blob(const Descriptor& descriptor, const Subject& subject,
                           const std::function<void(BlobSink&)>& fetch) const {
  fs::path path = blob_path(descriptor.digest);
  if (has_blob(descriptor.digest)) return path;
  const FileDescriptor held = lock(descriptor.digest);
  if (has_blob(descriptor.digest)) return path;  // another process was faster
  make_folder("blobs/sha256");
  Ingest ingest(make_folder("ingest"), descriptor, subject);
  fetch(ingest);
  ingest.publish(path);
  return path;
}

void Cache::drop_blob(const Digest& digest) const {
  const fs::path path = blob_path(digest);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_cache("remove", path, errno);
}

}  // namespace kiln
