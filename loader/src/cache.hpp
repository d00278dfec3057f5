// SPDX-License-Identifier: Apache-2.0
//
// Cache: what was fetched, on disk, by digest. After fetch, before unpack. A path under blobs/ or
// unpacked/ exists if and only if its content is complete and durable: it was written elsewhere,
// synced and renamed. Reading never writes, so a read-only cache works. Usable from several threads
// and processes at once; a per-digest file lock makes concurrent installs download once, and
// correctness does not depend on it (the last step is an atomic rename of equal bytes).
//
//   CACHEDIR.TAG                                 backup tools skip this folder
//   blobs/sha256/<hex>                           documents and layers, mode 0444
//   refs/<registry>/<package>/<version>.json     which index a registry gave for a version
//   ingest/                                      downloads under way
//   unpacked/<hex of the config>/                the files of one variant
//   locks/<hex>.lock                             never removed
//
// Nothing here is trusted: documents are hashed when read, libraries when loaded.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fetch.hpp"
#include "kiln/error.hpp"
#include "manifest.hpp"
#include "posix.hpp"
#include "verify.hpp"

namespace kiln {

/// Which index a registry gave for a version of a package.
struct Ref {
  std::string registry;  ///< canonical
  std::string name;
  int version = 0;
  Descriptor index;
};

class Cache {
 public:
  /// $KILN_CACHE, else $XDG_CACHE_HOME/kiln, else ~/.cache/kiln; kCache if none of them is set.
  static std::filesystem::path default_root();

  /// An empty path is the default. Creates nothing. Throws kCache for a folder that another user
  /// owns (but root) or that everyone may write to, and for a relative path.
  explicit Cache(const std::filesystem::path& requested = {});

  const std::filesystem::path& root() const { return root_; }

  std::filesystem::path blob_path(const Digest& digest) const;
  bool has_blob(const Digest& digest) const;

  /// A document of at most kMaxDocumentBytes, verified; nothing if it is not in the cache. Throws
  /// kIntegrity if the file is not what its name says.
  std::optional<std::string> read_document(const Descriptor& descriptor,
                                           std::string_view what) const;

  /// Puts verified bytes under their digest; does nothing if they are there.
  void write_document(const Descriptor& descriptor, std::string_view bytes) const;

  /// Streams a blob into the cache, verified on the way; does nothing if it is there. `fetch` is
  /// called at most once, under this digest's lock, with the sink to fill.
  std::filesystem::path write_blob(const Descriptor& descriptor, const Subject& subject,
                                   const std::function<void(BlobSink&)>& fetch) const;

  /// Removes a blob that read or verified as damaged, so that it is fetched again.
  void drop_blob(const Digest& digest) const;

  std::optional<Ref> read_ref(const std::string& registry, std::string_view name,
                              int version) const;
  void write_ref(const Ref& ref) const;
  std::filesystem::path ref_path(const std::string& registry, std::string_view name,
                                 int version) const;

  /// All refs, sorted by registry, package and version. A ref file that does not parse goes to
  /// `damaged` with what is wrong with it.
  using DamagedRef = std::function<void(const std::filesystem::path&, const Error&)>;
  std::vector<Ref> refs(const DamagedRef& damaged = {}) const;

  /// Where the files of a variant are, or go: unpacked/<hex of its config>.
  std::filesystem::path unpacked_path(const Digest& config) const;

  /// Holds the lock of one digest, across processes, while it lives. A file system without locks
  /// (or a read-only one) gives an object that holds nothing.
  FileDescriptor lock(const Digest& digest) const;

  /// Makes the folder <root>/<relative> and those above it (mode 0755), and the CACHEDIR.TAG.
  std::filesystem::path make_folder(const std::filesystem::path& relative) const;

 private:
  std::filesystem::path root_;
};

}  // namespace kiln
