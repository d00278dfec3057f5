// SPDX-License-Identifier: Apache-2.0
//
// Cache: what was fetched, on disk, by digest. After copy, before unpack. A path under blobs/ or
// unpacked/ exists if and only if its content is complete and durable: it was written elsewhere,
// synced and renamed. Reading never writes, so a read-only cache works. Usable from several threads
// and processes at once; a per-digest file lock makes concurrent installs download once, and
// correctness does not depend on it (the last step is an atomic rename of equal bytes).
//
// What is in it, each with a row in store/places.cpp:
//
//   CACHEDIR.TAG                                 the mark: Kiln made this; backup tools skip it
//   store.lock                                   shared by installs, exclusive for gc
//   blobs/sha256/<hex>                           documents and layers, mode 0444
//   refs/<registry>/<package>/<version>.json     which index a registry gave for a version
//   attested/<hex of the index>.json             what was signed about that index
//   roots/<hex of its path>.json                 a lock file whose kernels gc must keep
//   tuf/<hex of the registry>/<role>.json        the last signed metadata of a trusted registry
//   ingest/<hex>.part                            a download under way, or cut short
//   unpacked/<hex of the config>/                the files of one variant
//   locks/<hex>.lock                             one download, or one unpacking, at a time
//   locks/<hex of the config>.use                shared by each process that loaded the variant
//
// Blobs and files are not trusted: documents are hashed when read, libraries when loaded, and below
// the root a symbolic link is refused. A ref is: it says which index a version is, so that whoever
// writes to refs/ chooses what runs, unless a lock file holds the version. So who may write counts
// (store/inside.hpp): the root and what is in it must belong to this user or to root, not everyone
// may write there, and nobody else may exchange a folder on the way. A root that its group may
// write to is shared by that group, which is then trusted as the owner is: what Kiln makes in it
// the group may write as well. The root may be reached through a symbolic link that this user or
// root made.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_lock.hpp"
#include "base/posix.hpp"
#include "documents/descriptor.hpp"
#include "kiln/error.hpp"
#include "kiln/event.hpp"
#include "store/content.hpp"
#include "store/inside.hpp"
#include "verify/verify.hpp"

namespace kiln {

/// Which index a registry gave for a version of a package.
struct Ref {
  std::string registry;  ///< canonical
  std::string name;
  int version = 0;
  Descriptor index;
  std::optional<Digest> signers = {};  ///< who signed that (install/vouch.hpp), if anybody
};

class Cache final : public Storage {
 public:
  /// $KILN_CACHE, else $XDG_CACHE_HOME/kiln, else ~/.cache/kiln; kCache if none of them is set.
  static std::filesystem::path default_root();

  /// An empty path is the default. Creates nothing. Throws kCache for a folder that another user
  /// but root could exchange or change, and for a relative path; kUsage for one that is not UTF-8.
  /// `stop` ends a wait for another process with kCancelled; `on_event` is told of one that lasts,
  /// as Stage::kWait.
  explicit Cache(const std::filesystem::path& requested = {}, std::stop_token stop = {},
                 const Observer& on_event = {});

  const std::filesystem::path& root() const { return root_; }

  std::filesystem::path blob_path(const Digest& digest) const;
  bool has_blob(const Digest& digest) const;
  /// How many bytes of a blob are still to be written: 0 if it is there, fewer than it has where a
  /// download of it was cut short.
  std::uint64_t missing_bytes(const Descriptor& descriptor) const;
  /// An invalid descriptor if it is not there; kIntegrity if something else stands in its place.
  FileDescriptor open_blob(const Digest& digest) const;

  /// Hashes a blob where it lies, and gives `sink` its bytes on the way. False if it is not there;
  /// kIntegrity, naming `what` and `next_step`, if it is not what its descriptor promises.
  bool verify_blob(const Descriptor& descriptor, std::string_view what,
                   std::string_view next_step = "", const Sink& sink = {}) const;

  /// A document of at most kMaxDocumentBytes, verified; nothing if it is not in the cache. Throws
  /// kIntegrity if the file is not what its name says.
  std::optional<std::string> read_document(const Descriptor& descriptor,
                                           std::string_view what) const;

  /// Puts verified bytes under their digest; does nothing if they are there.
  void write_document(const Descriptor& descriptor, std::string_view bytes) const;

  /// Does nothing if the blob is there. `fill` is called under this digest's lock.
  void write(const Descriptor& descriptor, const Subject& subject,
             const std::function<void(BlobSink&)>& fill) const override;

  bool exists(const Descriptor& descriptor) const override { return has_blob(descriptor.digest); }
  /// kNotFound if it is not there.
  void open(const Descriptor& descriptor, BlobSink& sink, const Asking& asking) const override;
  std::string origin(const Descriptor& descriptor) const override {
    return blob_path(descriptor.digest).string();
  }
  std::string advice() const override { return kFetchAgain; }

  /// What is under blobs/sha256, sorted.
  std::vector<Digest> blobs() const;
  /// What is wrong with a blob, hashed whole; empty if it is what its name says.
  std::string check_blob(const Digest& digest) const;

  /// Removes a blob that read or verified as damaged, so that it is fetched again.
  void drop_blob(const Digest& digest) const;

  std::optional<Ref> read_ref(const std::string& registry, std::string_view name,
                              int version) const;
  /// Writes the ref, unless one is there and `may_replace` refuses; a damaged one is
  /// replaced. No other process writes this version's ref meanwhile.
  void write_ref(const Ref& ref, const std::function<bool(const Ref& known)>& may_replace) const;
  std::filesystem::path ref_path(const std::string& registry, std::string_view name,
                                 int version) const;
  /// The digest whose lock() is held while a ref is read, changed and written.
  Digest ref_lock(const std::string& registry, std::string_view name, int version) const;

  /// All refs, sorted by registry, package and version. A ref file that does not parse goes to
  /// `damaged` with what is wrong with it. Throws kCache where it may not be read.
  using Damaged = std::function<void(const std::filesystem::path&, const Error&)>;
  std::vector<Ref> refs(const Damaged& damaged = {}) const;

  /// Where the files of a variant are, or go: unpacked/<hex of its config>; those of a dev layer:
  /// unpacked/<hex of the layer>.
  std::filesystem::path unpacked_path(const Digest& digest) const;

  /// Keeps gc away while it lives. Makes nothing; holds nothing if the cache does not exist yet or
  /// this user may not lock it.
  FileLock use() const;

  /// The same, and first makes the root, CACHEDIR.TAG and store.lock. Every writer holds it.
  /// Throws kCache for a folder that has other things in it and is not Kiln's.
  FileLock use_to_write() const;

  /// Waits until nobody uses the cache; `on_wait` is called if it has to wait. Holds nothing if
  /// there is no cache. Throws kCache where the file system has no locks, and for a folder that is
  /// not Kiln's.
  FileLock use_alone(const std::function<void()>& on_wait = {}) const;

  /// Holds the lock of one digest, across processes, while it lives. On a file system without locks
  /// it holds nothing. Its caller holds use_to_write().
  FileLock lock(const Digest& digest) const;

  /// Tells gc that this process uses a variant, as long as the lock lives. Its caller holds use().
  FileLock lease(const Digest& config) const;
  /// Whether some process does. Asked under use_alone().
  bool is_leased(const Digest& config) const;

  /// Registers a lock file: gc keeps what it names, for as long as the file is there. False, and
  /// nothing is changed, where this user may not write to the cache.
  bool keep_lock_file(const std::filesystem::path& lock_file) const;

  /// The lock files that registered, and the root entry of each. An entry that does not parse goes
  /// to `damaged`. Throws kCache where it may not be read, kUpgrade for a later Kiln's.
  struct KeptLockFile {
    std::filesystem::path entry;
    std::filesystem::path lock_file;
  };
  std::vector<KeptLockFile> kept_lock_files(const Damaged& damaged = {}) const;

  /// Makes the folder <root>/<relative> and those above it.
  std::filesystem::path make_folder(const std::filesystem::path& relative) const;

 private:
  /// Where a download is written; `suffix`: of one that cannot be shared.
  std::filesystem::path ingest_path(const Digest& digest, const std::string& suffix = "") const;
  std::filesystem::path root_;
  Waiting waiting_;
};

}  // namespace kiln
