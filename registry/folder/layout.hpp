// SPDX-License-Identifier: Apache-2.0
//
// Layout: one OCI image layout on disk, which holds one package. Under publish, export, list and
// check. Readers need no lock: blobs never change, and index.json is replaced as a whole, after
// everything that it names is durable. Writers take lock() around read, change and write.
//
//   oci-layout, index.json      index.json: one descriptor a tag; without a tag: an index that a
//                               later publish of the same version replaced, kept because lock files
//                               may pin its digest
//   blobs/sha256/<hex>          mode 0444, complete and durable if it is there
//   .lock, .ingest/             of Kiln; other OCI tools ignore them
//
// All of it is read by open(), which follows no link: what a link leads to is not the registry's to
// serve, to push or to export.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_lock.hpp"
#include "base/posix.hpp"
#include "documents/descriptor.hpp"
#include "oci/layout.hpp"

namespace kiln::registry {

class Layout {
 public:
  explicit Layout(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path index_path() const { return folder_ / "index.json"; }
  std::filesystem::path blobs_path() const { return folder_ / "blobs" / "sha256"; }
  std::filesystem::path blob_path(const Digest& digest) const {
    return blobs_path() / digest.hex();
  }

  /// Whether anything was ever committed here. A link in the place of index.json counts: read()
  /// refuses it.
  bool exists() const;

  /// Opens <folder>/<relative>. The folder itself and each step below it must be a folder, the end
  /// a regular file: kIntegrity for a link, a pipe or a device in its place. An invalid descriptor
  /// if nothing is there.
  FileDescriptor open(const std::filesystem::path& relative) const;
  FileDescriptor open_blob(const Digest& digest) const;

  /// What index.json names, in its order; nothing if it does not exist. kIntegrity if it or
  /// oci-layout is not what the specification says.
  std::vector<Tag> read() const;

  /// A document's bytes, compared with its descriptor: kIntegrity names the file and both digests.
  std::string read_blob(const Descriptor& descriptor, std::string_view what) const;

  /// Hashes a blob of any size and compares it; the same errors.
  void check_blob(const Descriptor& descriptor, std::string_view what) const;

  /// Whether the blob is there, whole and undamaged (its content is hashed).
  bool has_blob(const Descriptor& descriptor) const;

  /// Makes the folders and takes the lock; leftovers of a publish that was killed are removed.
  FileLock lock() const;

  /// Both do nothing if has_blob(), and replace a damaged file. Lock held.
  void write_blob(const Descriptor& descriptor, std::string_view bytes) const;
  void copy_blob(const Descriptor& descriptor, const std::filesystem::path& from) const;

  /// The commit: everything that `tags` name is there already. Lock held.
  void write(const std::vector<Tag>& tags) const;

 private:
  std::filesystem::path ingest_path() const { return folder_ / ".ingest"; }
  std::string read_file(const std::filesystem::path& relative) const;
  std::filesystem::path folder_;
};

/// Throws kUsage for a URL, which as a path would be a folder "https:" in the current one.
/// `operation` begins the message: "publish into".
void check_is_path(const std::filesystem::path& folder, std::string_view operation);

/// Throws kUsage where `out` is the registry or below it: a tree written there would be one of its
/// packages, or a part of one.
void check_is_outside(const std::filesystem::path& out, const std::filesystem::path& registry,
                      std::string_view operation);

/// The package folders of a registry, sorted. kUsage for a URL, kNotFound if there is no folder.
std::vector<std::string> packages_of(const std::filesystem::path& registry);

/// The one with this name, or null.
const Tag* find_tag(const std::vector<Tag>& tags, std::string_view name);

}  // namespace kiln::registry
