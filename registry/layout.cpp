// SPDX-License-Identifier: Apache-2.0
#include "layout.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <regex>
#include <system_error>
#include <utility>

#include "base/draft.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, std::string_view what, const std::string& found) {
  throw Error(ErrorCode::kIntegrity, "verify " + std::string(what) + ": " + path.string() + " " +
                                         found +
                                         ". Restore this file from a mirror, or build and publish "
                                         "the same variant again");
}

void check_size(const fs::path& path, const Descriptor& descriptor, std::string_view what) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) fail(path, what, "is missing (" + descriptor.digest.str() + ")");
  if (size != descriptor.size) {
    fail(path, what,
         "has " + std::to_string(size) + " bytes, expected " + std::to_string(descriptor.size) +
             " of " + descriptor.digest.str());
  }
}

void check_digest(const fs::path& path, const Digest& found, const Descriptor& descriptor,
                  std::string_view what) {
  if (found != descriptor.digest) {
    fail(path, what, "has digest " + found.str() + ", expected " + descriptor.digest.str());
  }
}

}  // namespace

bool Layout::exists() const {
  return fs::exists(index_path());
}

std::vector<Tag> Layout::read() const {
  if (!exists()) return {};
  const fs::path marker = folder_ / "oci-layout";
  check_layout_marker(read_document(marker, kMaxDocumentBytes), marker.string());
  return parse_layout_index(read_document(index_path(), kMaxDocumentBytes), index_path().string(),
                            Untagged::kKept);
}

std::string Layout::read_blob(const Descriptor& descriptor, std::string_view what) const {
  const fs::path path = blob_path(descriptor.digest);
  check_size(path, descriptor, what);
  std::string bytes = read_document(path, kMaxDocumentBytes);
  check_digest(path, Digest::of(bytes), descriptor, what);
  return bytes;
}

void Layout::check_blob(const Descriptor& descriptor, std::string_view what) const {
  const fs::path path = blob_path(descriptor.digest);
  check_size(path, descriptor, what);
  check_digest(path, digest_of_file(path), descriptor, what);
}

bool Layout::has_blob(const Descriptor& descriptor) const {
  const fs::path path = blob_path(descriptor.digest);
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return !error && size == descriptor.size && digest_of_file(path) == descriptor.digest;
}

FileLock Layout::lock() const {
  make_folders(folder_);
  const fs::path path = folder_ / ".lock";
  FileDescriptor file = try_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0644);
  if (!file.valid()) fail_file("create", path, errno);
  FileLock held = FileLock::wait(std::move(file), LockMode::kExclusive, {}, path);
  // Unlike a cache, a publish must not go on without the lock: it would lose another's variants.
  if (!held.held()) fail_file("lock", path, errno);
  make_folders(blobs_path());
  make_folders(ingest_path());
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
  Draft draft(ingest_path(), descriptor.digest.hex());
  Sha256 hash;
  stream_file(from, [&](std::string_view piece) {
    hash.update(piece);
    draft.write(piece);
  });
  // The input was verified before, but it is another program's file and may have changed since.
  check_digest(from, hash.finish(), descriptor, "input");
  draft.publish(blob_path(descriptor.digest), 0444);
}

void Layout::write(const std::vector<Tag>& tags) const {
  const fs::path marker = folder_ / "oci-layout";
  if (!fs::exists(marker)) publish_bytes(ingest_path(), marker, serialize_layout_marker(), 0644);
  publish_bytes(ingest_path(), index_path(), serialize_layout_index(tags), 0644);
}

void check_is_path(const fs::path& folder, std::string_view operation) {
  const std::string text = folder.string();
  static const std::regex kUrl("[A-Za-z]{2,}:/.*");  // fs::path may make one of two slashes
  if (!std::regex_match(text, kUrl)) return;
  throw Error(
      ErrorCode::kUsage,
      std::string(operation) + " " + text +
          ": this is a URL, expected a folder; nothing was written. 'kiln registry publish' "
          "and 'kiln registry push --to' take a URL");
}

std::vector<std::string> packages_of(const fs::path& registry) {
  check_is_path(registry, "open registry");
  if (!fs::is_directory(registry)) {
    throw Error(ErrorCode::kNotFound, "open registry " + registry.string() +
                                          ": there is no such folder. Publish into it first, or "
                                          "check the path");
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
