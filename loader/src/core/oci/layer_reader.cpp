// SPDX-License-Identifier: Apache-2.0
#include "oci/layer_reader.hpp"

#include <cerrno>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <vector>

#include "base/quote.hpp"
#include "base/read_ahead.hpp"
#include "documents/variant.hpp"
#include "kiln/error.hpp"
#include "oci/archive.hpp"
#include "verify/verify.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlockBytes = std::size_t{64} * 1024;
// Tar adds a header and padding to each file, at most two extended headers, and an end record.
constexpr std::uint64_t kTarBytesPerFile = std::uint64_t{8} * 1024;
constexpr std::uint64_t kTarBytesAtEnd = std::uint64_t{64} * 1024;

[[noreturn]] void fail(const LayerSubject& subject, const std::string& found) {
  throw Error(ErrorCode::kIntegrity,
              subject.operation + " " + subject.name + ": " + found + "; " + subject.next);
}

/// Quoted: libarchive's words may repeat the archive's. Throws bad_alloc where they tell of this
/// process's memory, which is not the archive's fault.
std::string reason(archive* handle) {
  check_memory(handle);
  const char* text = archive_error_string(handle);
  return text != nullptr ? quote(text) : "no reason given";
}

/// The layer, decompressed: one libarchive reader that knows zstd and no archive format, so that
/// the tar reader above it sees plain bytes and what follows the tar's end can be looked at.
class Decoded {
 public:
  Decoded(const fs::path& layer, std::uint64_t most_bytes, const LayerSubject& subject)
      : handle_(checked(archive_read_new())), most_bytes_(most_bytes), subject_(subject) {
    // Only zstd: support_filter_all would run external programs for some formats.
    check_set_up(archive_read_support_filter_zstd(handle_.get()));
    check_set_up(archive_read_support_format_raw(handle_.get()));
    const ArchiveEntry entry = new_entry();
    errno = 0;
    if (archive_read_open_filename(handle_.get(), layer.c_str(), kBlockBytes) != ARCHIVE_OK ||
        archive_read_next_header2(handle_.get(), entry.get()) != ARCHIVE_OK) {
      fail(subject_, "the layer cannot be read: " + reason(handle_.get()));
    }
    // libarchive peels zstd within zstd without a word; the last filter is always "none".
    const int filters = archive_filter_count(handle_.get()) - 1;
    if (filters != 1 || archive_filter_code(handle_.get(), 0) != ARCHIVE_FILTER_ZSTD) {
      fail(subject_,
           "the layer has " + std::to_string(filters) + " compression filters, expected zstd once");
    }
    std::error_code unknown;  // then it is not that small
    if (most_bytes > kWorthAThread && fs::file_size(layer, unknown) < most_bytes / 5 * 4) {
      ahead_ = std::make_unique<ReadAhead>([this](std::span<char> to) { return decode(to); });
    } else {
      block_.resize(kBlockBytes);
    }
  }

  /// One thread besides the one that writes is for what takes longest: to decode or, where zstd
  /// found nothing to make smaller and decoding is copying, to hash.
  Hashing hashing() const { return ahead_ ? Hashing::kHere : Hashing::kBeside; }

  std::string_view next() {
    const std::string_view piece =
        ahead_ ? ahead_->next() : std::string_view(block_.data(), decode(block_));
    if (piece.size() > most_bytes_ - bytes_) {
      fail(subject_, "the layer decompresses to more than the " + std::to_string(most_bytes_) +
                         " bytes that its manifest allows");
    }
    const std::size_t last = piece.find_last_not_of('\0');
    if (last != std::string_view::npos) content_end_ = bytes_ + last + 1;
    bytes_ += piece.size();
    return piece;
  }

  /// Where the last byte that is not zero ends. Complete once next() gave an empty piece.
  std::uint64_t content_end() const { return content_end_; }

  /// libarchive's callback. An exception must not cross its C frames: it waits in `failure_`.
  static la_ssize_t read(archive* reader, void* self, const void** block) {
    Decoded& decoded = *static_cast<Decoded*>(self);
    try {
      const std::string_view piece = decoded.next();
      *block = piece.data();
      return static_cast<la_ssize_t>(piece.size());
    } catch (...) {
      decoded.failure_ = std::current_exception();
      archive_set_error(reader, EINVAL, "the layer does not decompress");
      return ARCHIVE_FATAL;
    }
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::size_t decode(std::span<char> to) {
    const la_ssize_t count = archive_read_data(handle_.get(), to.data(), to.size());
    if (count < 0) fail(subject_, "the layer does not decompress: " + reason(handle_.get()));
    return static_cast<std::size_t>(count);
  }

  Archive handle_;
  std::vector<char> block_;  ///< where there is no ahead_
  std::uint64_t most_bytes_;
  std::uint64_t bytes_ = 0;
  std::uint64_t content_end_ = 0;
  const LayerSubject& subject_;
  std::exception_ptr failure_;
  std::unique_ptr<ReadAhead> ahead_;  ///< last: its thread decodes
};

/// The files that the config lists, and which of them were seen.
class Expected {
 public:
  Expected(const Config& config, std::uint64_t unpacked_size, const LayerSubject& subject)
      : subject_(subject) {
    for (const ArchiveFile& file : config.files) {
      // parse_config refuses these; a path that leaves the folder is worth asking twice.
      if (const fs::path path = file.path;
          path.is_absolute() || path.lexically_normal() != path || *path.begin() == "..") {
        fail(subject_, "its config lists '" + file.path + "', which leaves the folder");
      }
      files_.emplace(file.path, &file);
      bytes_ += file.size;
    }
    if (bytes_ != unpacked_size) {
      fail(subject_, "its manifest says " + std::to_string(unpacked_size) +
                         " bytes unpacked, the files in its config are " + std::to_string(bytes_));
    }
  }

  std::uint64_t most_tar_bytes() const {
    return bytes_ + kTarBytesPerFile * files_.size() + kTarBytesAtEnd;
  }

  /// The file that this entry is: everything but a plain, listed, new one is refused.
  const ArchiveFile& accept(archive_entry* entry) {
    errno = 0;
    const char* raw = archive_entry_pathname(entry);
    if (raw == nullptr && errno == ENOMEM) throw std::bad_alloc();
    if (raw == nullptr) fail(subject_, "an entry has no readable name");
    const std::string path = raw;
    const auto found = files_.find(path);
    if (found == files_.end()) {
      fail(subject_, "holds " + quote(path) + ", which its config does not list");
    }
    // A hardlink entry has no file type of its own, so the type alone does not show it.
    if (archive_entry_hardlink(entry) != nullptr) fail(subject_, "'" + path + "' is a hard link");
    if (archive_entry_filetype(entry) != AE_IFREG) {
      fail(subject_, "'" + path + "' is not a regular file");
    }
    if (archive_entry_sparse_count(entry) != 0) fail(subject_, "'" + path + "' is a sparse file");
    const auto size = static_cast<std::uint64_t>(archive_entry_size(entry));
    if (archive_entry_size_is_set(entry) == 0 || size != found->second->size) {
      fail(subject_, "'" + path + "' has " + std::to_string(size) + " bytes, its config says " +
                         std::to_string(found->second->size));
    }
    if (!seen_.insert(path).second) fail(subject_, "holds '" + path + "' twice");
    return *found->second;
  }

  void check_all_seen() const {
    for (const auto& [path, file] : files_) {
      if (!seen_.contains(path)) fail(subject_, "'" + path + "' is missing in the layer");
    }
  }

 private:
  const LayerSubject& subject_;
  std::map<std::string, const ArchiveFile*> files_;
  std::set<std::string> seen_;
  std::uint64_t bytes_ = 0;
};

void read_content(archive* handle, const Decoded& decoded, const ArchiveFile& file,
                  const LayerSubject& subject, const LayerSink& sink) {
  StreamVerifier verifier({"", file.digest, file.size},
                          {"'" + file.path + "' in " + subject.name, "its layer", ""},
                          decoded.hashing());
  const void* block = nullptr;
  std::size_t count = 0;
  la_int64_t offset = 0;  // the bytes follow one another: a sparse file was refused
  int status = ARCHIVE_OK;
  while ((status = archive_read_data_block(handle, &block, &count, &offset)) == ARCHIVE_OK) {
    std::string_view rest(static_cast<const char*>(block), count);
    while (!rest.empty()) {  // ext4 stalls now and then in writes of half a megabyte
      const std::string_view piece = rest.substr(0, kBlockBytes);
      rest.remove_prefix(piece.size());
      verifier.update(piece);
      sink(piece);
    }
  }
  if (status != ARCHIVE_EOF) {
    decoded.rethrow();
    fail(subject, "'" + file.path + "' does not decode: " + reason(handle));
  }
  verifier.finish();
}

}  // namespace

void read_layer(const fs::path& layer, const Config& config, std::uint64_t unpacked_size,
                const LayerSubject& subject, const TakeFile& take) {
  Expected expected(config, unpacked_size, subject);
  Decoded decoded(layer, expected.most_tar_bytes(), subject);
  const Archive handle = checked(archive_read_new());
  check_set_up(archive_read_support_format_tar(handle.get()));
  const ArchiveEntry entry = new_entry();
  // Step by step: archive_read_open() goes on where there was no memory for the first of them.
  check_set_up(archive_read_set_callback_data(handle.get(), &decoded));
  check_set_up(archive_read_set_read_callback(handle.get(), &Decoded::read));
  errno = 0;
  int status = archive_read_open1(handle.get());
  while (status == ARCHIVE_OK) {
    errno = 0;
    status = archive_read_next_header2(handle.get(), entry.get());
    if (status != ARCHIVE_OK) break;
    const ArchiveFile& file = expected.accept(entry.get());
    take(file,
         [&](const LayerSink& sink) { read_content(handle.get(), decoded, file, subject, sink); });
  }
  if (status != ARCHIVE_EOF) {
    decoded.rethrow();
    fail(subject, "the layer is not a sound tar archive: " + reason(handle.get()));
  }
  expected.check_all_seen();
  // A tar ends with zero blocks and may be padded with more; libarchive stops at the first. What
  // follows would be bytes that nobody looked at: a second archive, say.
  const auto tar_end = static_cast<std::uint64_t>(archive_filter_bytes(handle.get(), 0));
  while (!decoded.next().empty()) {
  }
  if (decoded.content_end() > tar_end) fail(subject, "the layer goes on after the archive's end");
}

}  // namespace kiln
