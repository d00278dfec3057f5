// SPDX-License-Identifier: Apache-2.0
#include "layer.hpp"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kiln/error.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlockBytes = std::size_t{64} * 1024;
/// tar pads to blocks of 10 KiB; more than this after its end is no padding.
constexpr std::uint64_t kMaxPaddingBytes = std::uint64_t{64} * 1024;

struct ArchiveFree {
  void operator()(archive* handle) const { archive_read_free(handle); }
};
using Archive = std::unique_ptr<archive, ArchiveFree>;

class LayerCheck {
 public:
  LayerCheck(const fs::path& layer, const Config& config, std::string_view subject)
      : layer_(layer), subject_(subject) {
    for (const ArchiveFile& file : config.files) missing_[file.path] = &file;
  }

  void run() {
    check_padding(check_files());
    if (!missing_.empty()) {
      fail("lacks '" + missing_.begin()->first + "', which its config lists");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& found) const {
    throw Error(ErrorCode::kIntegrity, "check layer of " + subject_ + ": " + layer_.string() + " " +
                                           found + ". Build the variant again");
  }

  [[noreturn]] void fail_decode(archive* handle) const {
    const char* text = archive_error_string(handle);
    fail(std::string("does not decode as tar in zstd: ") + (text != nullptr ? text : "no reason"));
  }

  Archive open(bool as_tar) const {
    Archive handle(archive_read_new());
    if (!handle) throw Error(ErrorCode::kInternal, "check layer: libarchive gave no reader");
    // Only these: support_filter_all would run external programs for some formats.
    archive_read_support_filter_zstd(handle.get());
    if (as_tar) {
      archive_read_support_format_tar(handle.get());
    } else {
      archive_read_support_format_raw(handle.get());
    }
    if (archive_read_open_filename(handle.get(), layer_.c_str(), kBlockBytes) != ARCHIVE_OK) {
      fail_decode(handle.get());
    }
    // libarchive peels zstd within zstd without a word; the last filter is always "none".
    if (archive_filter_count(handle.get()) != 2 ||
        archive_filter_code(handle.get(), 0) != ARCHIVE_FILTER_ZSTD) {
      fail("has " + std::to_string(archive_filter_count(handle.get()) - 1) +
           " compression filters, expected zstd once");
    }
    return handle;
  }

  /// Returns the number of decompressed bytes up to the end of the archive.
  std::uint64_t check_files() {
    const Archive handle = open(true);
    for (;;) {
      archive_entry* entry = nullptr;
      const int result = archive_read_next_header(handle.get(), &entry);
      if (result == ARCHIVE_EOF) break;
      if (result != ARCHIVE_OK) fail_decode(handle.get());
      const ArchiveFile& file = accept_entry(entry);
      check_content(handle.get(), file);
      missing_.erase(file.path);
    }
    return static_cast<std::uint64_t>(archive_filter_bytes(handle.get(), 0));
  }

  const ArchiveFile& accept_entry(archive_entry* entry) const {
    const char* raw = archive_entry_pathname(entry);
    if (raw == nullptr) fail("has an entry without a readable name");
    const std::string path = raw;
    const auto found = missing_.find(path);
    if (found == missing_.end()) fail("holds '" + path + "' twice, or the config does not list it");
    // A hard link has no file type of its own, so the type alone does not show it.
    if (archive_entry_hardlink(entry) != nullptr || archive_entry_filetype(entry) != AE_IFREG) {
      fail("holds '" + path + "', which is not a regular file");
    }
    if (archive_entry_sparse_count(entry) != 0) fail("holds '" + path + "' as a sparse file");
    const auto size = static_cast<std::uint64_t>(archive_entry_size(entry));
    if (archive_entry_size_is_set(entry) == 0 || size != found->second->size) {
      fail("holds '" + path + "' with " + std::to_string(size) + " bytes, the config says " +
           std::to_string(found->second->size));
    }
    return *found->second;
  }

  void check_content(archive* handle, const ArchiveFile& file) const {
    std::vector<char> buffer(kBlockBytes);
    Sha256 hash;
    std::uint64_t size = 0;
    for (;;) {
      const la_ssize_t count = archive_read_data(handle, buffer.data(), buffer.size());
      if (count < 0) fail_decode(handle);
      if (count == 0) break;
      size += static_cast<std::uint64_t>(count);
      hash.update({buffer.data(), static_cast<std::size_t>(count)});
    }
    const Digest found = hash.finish();
    if (size != file.size || found != file.digest) {
      fail("holds '" + file.path + "' with digest " + found.str() + ", the config says " +
           file.digest.str());
    }
  }

  /// A second pass over the decompressed bytes alone: the tar reader stops at the end mark, and
  /// what stands behind it (a second archive, garbage) would go unseen.
  void check_padding(std::uint64_t end) const {
    const Archive handle = open(false);
    archive_entry* entry = nullptr;
    if (archive_read_next_header(handle.get(), &entry) != ARCHIVE_OK) fail_decode(handle.get());
    std::vector<char> buffer(kBlockBytes);
    std::uint64_t position = 0;
    for (;;) {
      const la_ssize_t count = archive_read_data(handle.get(), buffer.data(), buffer.size());
      if (count < 0) fail_decode(handle.get());
      if (count == 0) return;
      const auto bytes = static_cast<std::uint64_t>(count);
      const std::uint64_t skip = end > position ? std::min(end - position, bytes) : 0;
      position += bytes;
      const bool zeros = std::all_of(buffer.begin() + static_cast<std::ptrdiff_t>(skip),
                                     buffer.begin() + static_cast<std::ptrdiff_t>(count),
                                     [](char byte) { return byte == 0; });
      if (!zeros || position > end + kMaxPaddingBytes) fail("holds bytes after the archive's end");
    }
  }

  const fs::path& layer_;
  std::string subject_;
  std::map<std::string, const ArchiveFile*> missing_;
};

}  // namespace

void check_layer(const fs::path& layer, const Config& config, std::string_view subject) {
  LayerCheck(layer, config, subject).run();
}

}  // namespace kiln::registry
