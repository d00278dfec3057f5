// SPDX-License-Identifier: Apache-2.0
#include "store/unpack.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <system_error>
#include <vector>

#include "base/posix.hpp"
#include "base/quote.hpp"
#include "kiln/error.hpp"
#include "store/read_ahead.hpp"
#include "verify/verify.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlockBytes = std::size_t{64} * 1024;
// Tar adds a header and padding to each file, at most two extended headers, and an end record.
constexpr std::uint64_t kTarBytesPerFile = std::uint64_t{8} * 1024;
constexpr std::uint64_t kTarBytesAtEnd = std::uint64_t{64} * 1024;

[[noreturn]] void fail(std::string_view subject, const std::string& found) {
  throw Error(ErrorCode::kIntegrity,
              "unpack " + std::string(subject) + ": " + found +
                  "; nothing was loaded. The package was built wrongly: tell its publisher");
}

struct ArchiveFree {
  void operator()(archive* handle) const { archive_read_free(handle); }
};
using Archive = std::unique_ptr<archive, ArchiveFree>;

Archive new_archive() {
  Archive handle(archive_read_new());
  if (!handle) throw Error(ErrorCode::kInternal, "unpack: libarchive gave no reader");
  return handle;
}

/// Quoted: libarchive's words may repeat the archive's. Throws bad_alloc where they tell of this
/// process's memory, which is no fault of the archive; there is no error number for it.
std::string reason(archive* handle) {
  const char* text = archive_error_string(handle);
  constexpr std::string_view kNoMemory = "Zstd decompression failed: Allocation error";
  if (text != nullptr && std::string_view(text).starts_with(kNoMemory)) throw std::bad_alloc();
  return text != nullptr ? quote(text) : "no reason given";
}

/// The layer, decompressed: one libarchive reader that knows zstd and no archive format, so that
/// the tar reader above it sees plain bytes and what follows the tar's end can be looked at.
class Decoded {
 public:
  Decoded(const fs::path& layer, std::uint64_t most_bytes, std::string_view subject)
      : handle_(new_archive()), most_bytes_(most_bytes), subject_(subject) {
    // Only zstd: support_filter_all would run external programs for some formats.
    archive_read_support_filter_zstd(handle_.get());
    archive_read_support_format_raw(handle_.get());
    archive_entry* entry = nullptr;
    if (archive_read_open_filename(handle_.get(), layer.c_str(), kBlockBytes) != ARCHIVE_OK ||
        archive_read_next_header(handle_.get(), &entry) != ARCHIVE_OK) {
      fail(subject_, "the layer cannot be read: " + reason(handle_.get()));
    }
    // libarchive peels zstd within zstd without a word; the last filter is always "none".
    const int filters = archive_filter_count(handle_.get()) - 1;
    if (filters != 1 || archive_filter_code(handle_.get(), 0) != ARCHIVE_FILTER_ZSTD) {
      fail(subject_,
           "the layer has " + std::to_string(filters) + " compression filters, expected zstd once");
    }
    if (most_bytes > PieceRing::kWorthAThread && fs::file_size(layer) < most_bytes / 5 * 4) {
      try {
        ahead_ = std::make_unique<ReadAhead>([this](std::span<char> to) { return decode(to); });
        return;
      } catch (const std::system_error&) {
        // No more threads to be had: it is decoded here.
      }
    }
    block_.resize(kBlockBytes);
  }

  /// One thread beside the one that writes is for what takes longest: to decode or, where zstd
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

  /// libarchive's callback. An exception must not cross its C frames: it waits in `failure`.
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
  std::string subject_;
  std::exception_ptr failure_;
  std::unique_ptr<ReadAhead> ahead_;  ///< last: its thread decodes
};

/// The one file that this entry is, or an error: everything but a plain, listed, new one is
/// refused.
const ArchiveFile& accept_entry(archive_entry* entry,
                                const std::map<std::string, const ArchiveFile*>& expected,
                                std::set<std::string>& seen, std::string_view subject) {
  const char* raw = archive_entry_pathname(entry);
  if (raw == nullptr) fail(subject, "an entry has no readable name");
  const std::string path = raw;
  const auto found = expected.find(path);
  if (found == expected.end())
    fail(subject, "holds " + quote(path) + ", which its config does not list");
  // A hardlink entry has no file type of its own, so the type alone does not show it.
  if (archive_entry_hardlink(entry) != nullptr) fail(subject, "'" + path + "' is a hard link");
  if (archive_entry_filetype(entry) != AE_IFREG) {
    fail(subject, "'" + path + "' is not a regular file");
  }
  if (archive_entry_sparse_count(entry) != 0) fail(subject, "'" + path + "' is a sparse file");
  const auto size = static_cast<std::uint64_t>(archive_entry_size(entry));
  if (archive_entry_size_is_set(entry) == 0 || size != found->second->size) {
    fail(subject, "'" + path + "' has " + std::to_string(size) + " bytes, its config says " +
                      std::to_string(found->second->size));
  }
  if (!seen.insert(path).second) fail(subject, "holds '" + path + "' twice");
  return *found->second;
}

/// Opens the folder that `path` stands in, making what is missing, without following links.
FileDescriptor open_parent(int root, const fs::path& path, const fs::path& draft) {
  FileDescriptor folder(::fcntl(root, F_DUPFD_CLOEXEC, 0));
  if (!folder.valid()) fail_cache("open", draft, errno);
  for (const fs::path& part : path.parent_path()) {
    if (::mkdirat(folder.get(), part.c_str(), 0755) != 0 && errno != EEXIST) {
      fail_cache("make folder", draft / path.parent_path(), errno);
    }
    FileDescriptor next(
        ::openat(folder.get(), part.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next.valid()) fail_cache("open", draft / path.parent_path(), errno);
    folder = std::move(next);
  }
  return folder;
}

void write_entry(archive* handle, const Decoded& decoded, const ArchiveFile& file, int root,
                 const fs::path& draft, std::string_view subject) {
  const fs::path path = draft / file.path;
  const FileDescriptor parent = open_parent(root, file.path, draft);
  const FileDescriptor out(::openat(parent.get(), fs::path(file.path).filename().c_str(),
                                    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!out.valid()) fail_cache("create", path, errno);
  StreamVerifier verifier({"", file.digest, file.size},
                          {"'" + file.path + "' in " + std::string(subject), "its layer", ""},
                          decoded.hashing());
  WriteBehind behind;
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
      write_all(out.get(), piece, path);
      behind.wrote(out.get(), piece.size());
    }
  }
  if (status != ARCHIVE_EOF) {
    decoded.rethrow();
    fail(subject, "'" + file.path + "' does not decode: " + reason(handle));
  }
  verifier.finish();
  if (::fchmod(out.get(), 0444) != 0) fail_cache("set mode of", path, errno);
  sync_file(out.get(), path);
}

/// Each folder of the tree, once: a file is durable when every name on the way to it is.
void sync_folders(const Config& config, const fs::path& draft) {
  std::set<fs::path> folders{draft};
  for (const ArchiveFile& file : config.files) {
    fs::path folder = draft;
    for (const fs::path& part : fs::path(file.path).parent_path()) folders.insert(folder /= part);
  }
  for (const fs::path& folder : folders) sync_folder(folder);
}

/// Reads the whole layer into the folder `draft`, which exists and is empty.
void extract(const fs::path& layer, const Config& config, std::uint64_t unpacked_size,
             const fs::path& draft, std::string_view subject) {
  std::map<std::string, const ArchiveFile*> expected;
  std::uint64_t total = 0;
  for (const ArchiveFile& file : config.files) {
    // parse_config refuses these; a path that leaves the folder is worth asking twice.
    if (const fs::path path = file.path;
        path.is_absolute() || path.lexically_normal() != path || *path.begin() == "..") {
      fail(subject, "its config lists '" + file.path + "', which leaves the folder");
    }
    expected.emplace(file.path, &file);
    total += file.size;
  }
  if (total != unpacked_size) {
    fail(subject, "its manifest says " + std::to_string(unpacked_size) +
                      " bytes unpacked, the files in its config are " + std::to_string(total));
  }
  const FileDescriptor root = try_open(draft, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!root.valid()) fail_cache("open", draft, errno);

  Decoded decoded(layer, total + kTarBytesPerFile * expected.size() + kTarBytesAtEnd, subject);
  const Archive handle = new_archive();
  archive_read_support_format_tar(handle.get());
  std::set<std::string> seen;
  int status = archive_read_open(handle.get(), &decoded, nullptr, &Decoded::read, nullptr);
  while (status == ARCHIVE_OK) {
    archive_entry* entry = nullptr;
    status = archive_read_next_header(handle.get(), &entry);
    if (status != ARCHIVE_OK) break;
    const ArchiveFile& file = accept_entry(entry, expected, seen, subject);
    write_entry(handle.get(), decoded, file, root.get(), draft, subject);
  }
  if (status != ARCHIVE_EOF) {
    decoded.rethrow();
    fail(subject, "the layer is no sound tar archive: " + reason(handle.get()));
  }
  for (const ArchiveFile& file : config.files) {
    if (!seen.contains(file.path)) fail(subject, "'" + file.path + "' is missing in the layer");
  }
  // A tar ends with zero blocks and may be padded with more; libarchive stops at the first. What
  // follows would be bytes that nobody looked at: a second archive, say.
  const auto tar_end = static_cast<std::uint64_t>(archive_filter_bytes(handle.get(), 0));
  while (!decoded.next().empty()) {
  }
  if (decoded.content_end() > tar_end) fail(subject, "the layer goes on after the archive's end");
  sync_folders(config, draft);
}

}  // namespace

void unpack_layer(const fs::path& layer, const Config& config, std::uint64_t unpacked_size,
                  const fs::path& folder, std::string_view subject) {
  const fs::path draft = folder.parent_path() / (".tmp-" + unique_suffix());
  if (::mkdir(draft.c_str(), 0755) != 0) fail_cache("make folder", draft, errno);
  try {
    extract(layer, config, unpacked_size, draft, subject);
    if (::rename(draft.c_str(), folder.c_str()) != 0) {
      if (errno != EEXIST && errno != ENOTEMPTY) fail_cache("rename to", folder, errno);
      std::error_code ignored;  // another writer won; both wrote the same bytes
      fs::remove_all(draft, ignored);
    }
    sync_folder(folder.parent_path());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(draft, ignored);
    throw;
  }
}

void drop_unpacked(const fs::path& folder) {
  const fs::path aside = folder.parent_path() / (".tmp-" + unique_suffix());
  std::error_code error;
  fs::rename(folder, aside, error);
  if (!error) fs::remove_all(aside, error);
  if (error) fail_cache("remove", folder, error.value());
}

std::vector<DamagedFile> check_unpacked(const fs::path& folder, const Config& config) {
  std::vector<DamagedFile> damaged;
  for (const ArchiveFile& expected : config.files) {
    const fs::path path = folder / expected.path;
    try {
      const FileDescriptor file =
          open_inside(folder.parent_path(), folder.filename() / expected.path);
      if (!file.valid()) {
        damaged.push_back({path, "is missing"});
        continue;
      }
      Sha256 hash;
      std::uint64_t bytes = 0;
      read_pieces(file.get(), path, [&](std::string_view piece) {
        hash.update(piece);
        bytes += piece.size();
      });
      const Digest found = hash.finish();
      if (found != expected.digest || bytes != expected.size) {
        damaged.push_back(
            {path, "digest is " + found.str() + ", its config says " + expected.digest.str()});
      }
    } catch (const Error& error) {
      damaged.push_back({path, error.what()});
    }
  }
  return damaged;
}

}  // namespace kiln
