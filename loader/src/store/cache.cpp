// SPDX-License-Identifier: Apache-2.0
#include "store/cache.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/quote.hpp"
#include "kiln/error.hpp"
#include "settings/environment.hpp"
#include "settings/settings.hpp"
#include "store/ingest.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStoreLock = "store.lock";

Waiting waiting_for(std::stop_token stop, const Observer& on_event) {
  Waiting waiting{std::move(stop)};
  if (on_event) {
    waiting.tell = [on_event](const std::string& note) {
      on_event({Event::Stage::kWait, "cache", 0, 0, note});
    };
  }
  return waiting;
}

}  // namespace

fs::path Cache::default_root() {
  if (fs::path folder = default_cache(); !folder.empty()) return folder;
  const std::string why =
      is_secure_execution()
          ? "this program has more rights than its caller, whose environment does "
            "not count. Name in the request"
          : "none of KILN_CACHE, XDG_CACHE_HOME and HOME is set. Set KILN_CACHE to";
  throw Error(ErrorCode::kCache, "find cache: " + why + " a folder of your own");
}

Cache::Cache(const fs::path& requested, std::stop_token stop, const Observer& on_event)
    : root_(requested.empty() ? default_root() : requested),
      waiting_(waiting_for(std::move(stop), on_event)) {
  if (!is_utf8(root_.string())) {
    throw Error(ErrorCode::kUsage,
                "open cache " + quote(root_.string()) +
                    ": its path is not UTF-8, as the documents are that name it. "
                    "Name another folder in KILN_CACHE");
  }
  if (!root_.is_absolute()) {
    throw Error(ErrorCode::kCache, "open cache " + root_.string() +
                                       ": the path is relative, expected an absolute one. Give the "
                                       "full path in KILN_CACHE");
  }
  root_ = root_.lexically_normal();
  check_root(root_);
}

fs::path Cache::blob_path(const Digest& digest) const {
  return root_ / "blobs" / "sha256" / digest.hex();
}

FileDescriptor Cache::open_blob(const Digest& digest) const {
  return open_inside(root_, fs::path("blobs") / "sha256" / digest.hex());
}

bool Cache::has_blob(const Digest& digest) const {
  return stands(blob_path(digest), &fail_cache);
}

fs::path Cache::ingest_path(const Digest& digest, const std::string& suffix) const {
  return root_ / "ingest" / (digest.hex() + suffix + ".part");
}

std::uint64_t Cache::missing_bytes(const Descriptor& descriptor) const {
  if (has_blob(descriptor.digest)) return 0;
  std::error_code error;
  const std::uintmax_t has = fs::file_size(ingest_path(descriptor.digest), error);
  return error || has > descriptor.size ? descriptor.size : descriptor.size - has;
}

fs::path Cache::unpacked_path(const Digest& digest) const {
  return root_ / "unpacked" / digest.hex();
}

FileLock Cache::use() const {
  const fs::path path = root_ / kStoreLock;
  FileDescriptor file = try_open_file(path, O_RDONLY | O_NOFOLLOW);
  // A cache that was copied without it gets one, if this user may write.
  if (!file.valid() && errno == ENOENT && is_marked(root_))
    file = open_lock_file(path, LockMode::kShared);
  if (!file.valid()) return {};
  return FileLock::wait(std::move(file), LockMode::kShared, waiting_, path);
}

FileLock Cache::use_to_write() const {
  make_root(root_);
  return use();
}

FileLock Cache::use_alone(const std::function<void()>& on_wait) const {
  if (!is_marked(root_)) return {};
  const fs::path path = root_ / kStoreLock;
  FileDescriptor file = open_lock_file(path, LockMode::kExclusive);
  if (!file.valid()) fail_cache("open", path, errno);
  if (FileLock held = FileLock::attempt(std::move(file), LockMode::kExclusive); held.held()) {
    return held;
  }
  if (on_wait) on_wait();
  FileLock held = FileLock::wait(open_lock_file(path, LockMode::kExclusive), LockMode::kExclusive,
                                 waiting_, path);
  if (held.held()) return held;
  throw Error(ErrorCode::kCache, "lock " + path.string() +
                                     ": this file system has no locks, so nobody can know what is "
                                     "in use. Remove the cache as a whole while nothing runs, or "
                                     "move it to a local disk");
}

fs::path Cache::make_folder(const fs::path& relative) const {
  make_folder_inside(root_, relative);
  return root_ / relative;
}

FileLock Cache::lock(const Digest& digest) const {
  const fs::path path = make_folder("locks") / (digest.hex() + ".lock");
  FileDescriptor file = open_lock_file(path, LockMode::kExclusive);
  if (!file.valid()) fail_cache("open lock", path, errno);
  // Without locks (some network file systems) two processes may both download: wasteful, not
  // wrong, since each writes its own file and renames it to the same name.
  return FileLock::wait(std::move(file), LockMode::kExclusive, waiting_, path);
}

FileLock Cache::lease(const Digest& config) const {
  const fs::path path = root_ / "locks" / (config.hex() + ".use");
  FileDescriptor file = open_lock_file(path, LockMode::kShared);
  if (!file.valid()) return {};  // read-only and never leased: nobody can collect garbage there
  return FileLock::wait(std::move(file), LockMode::kShared, waiting_, path);
}

bool Cache::is_leased(const Digest& config) const {
  const fs::path path = root_ / "locks" / (config.hex() + ".use");
  if (!stands(path, &fail_cache)) return false;
  return !FileLock::attempt(open_lock_file(path, LockMode::kExclusive), LockMode::kExclusive)
              .held();
}

bool Cache::verify_blob(const Descriptor& descriptor, std::string_view what,
                        std::string_view next_step, const Sink& sink) const {
  const fs::path path = blob_path(descriptor.digest);
  const FileDescriptor file = open_blob(descriptor.digest);
  if (!file.valid()) return false;
  StreamVerifier verifier(descriptor, {std::string(what), path.string(), std::string(next_step)});
  read_pieces(file.get(), path, [&](std::string_view piece) {
    verifier.update(piece);
    if (sink) sink(piece);
  });
  verifier.finish();
  return true;
}

std::optional<std::string> Cache::read_document(const Descriptor& descriptor,
                                                std::string_view what) const {
  if (descriptor.size > kMaxDocumentBytes) {
    throw Error(ErrorCode::kIntegrity, "read " + std::string(what) + ": " +
                                           std::to_string(descriptor.size) +
                                           " bytes, expected at most " +
                                           std::to_string(kMaxDocumentBytes) + " for a document");
  }
  std::string bytes;
  const auto keep = [&](std::string_view piece) { bytes += piece; };
  if (!verify_blob(descriptor, what, kFetchAgain, keep)) return std::nullopt;
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
  make_folder("ingest");
  Ingest ingest(ingest_path(descriptor.digest, held.held() ? "" : "." + unique_suffix()),
                held.held(), descriptor, subject);
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
  for (const std::string& name : list_inside(root_, "blobs/sha256")) {
    if (const std::optional<Digest> digest = Digest::from_hex(name)) found.push_back(*digest);
  }
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
  remove_whole(blob_path(digest));
}

}  // namespace kiln
