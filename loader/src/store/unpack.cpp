// SPDX-License-Identifier: Apache-2.0
#include "store/unpack.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <set>
#include <system_error>
#include <vector>

#include "base/posix.hpp"
#include "documents/variant.hpp"
#include "http/retry.hpp"
#include "kiln/error.hpp"
#include "oci/layer_reader.hpp"
#include "store/inside.hpp"
#include "verify/verify.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

/// The cache of a variant's folder, <cache>/unpacked/<hex of its config>, or of its draft.
fs::path cache_of(const fs::path& folder) {
  return folder.parent_path().parent_path();
}

/// Makes a folder of that cache, and those above it, without following links.
FileDescriptor make_folder(const fs::path& folder, const fs::path& cache) {
  return make_folder_inside(cache, folder.lexically_relative(cache));
}

void write_file(const ArchiveFile& file, const LayerContent& content, const fs::path& draft,
                const std::stop_token& stop) {
  const fs::path path = draft / file.path;
  const FileDescriptor parent = make_folder(path.parent_path(), cache_of(draft));
  const FileDescriptor out(::openat(parent.get(), path.filename().c_str(),
                                    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!out.valid()) fail_cache("create", path, errno);
  WriteBehind behind;
  content([&](std::string_view piece) {
    if (stop.stop_requested()) fail_cancelled("unpack " + file.path);
    write_all(out.get(), piece, path);
    behind.wrote(out.get(), piece.size());
  });
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
             const fs::path& draft, std::string_view subject, const std::stop_token& stop) {
  read_layer(layer, config, unpacked_size,
             {"unpack", std::string(subject),
              "nothing was loaded. The package was built wrongly: tell its publisher"},
             [&](const ArchiveFile& file, const LayerContent& content) {
               write_file(file, content, draft, stop);
             });
  sync_folders(config, draft);
}

/// What is wrong with a file; empty if it is what the config says.
std::string check_file(const fs::path& folder, const ArchiveFile& expected) {
  const fs::path root = cache_of(folder);
  const fs::path path = folder / expected.path;
  const FileDescriptor file = open_inside(root, path.lexically_relative(root));
  if (!file.valid()) return "is missing";
  Sha256 hash;
  std::uint64_t bytes = 0;
  read_pieces(file.get(), path, [&](std::string_view piece) {
    hash.update(piece);
    bytes += piece.size();
  });
  const Digest found = hash.finish();
  if (found == expected.digest && bytes == expected.size) return {};
  return "digest is " + found.str() + ", its config says " + expected.digest.str();
}

/// What is in `<folder>/<relative>` and neither a file that the config lists nor on the way to one.
void add_unlisted(const fs::path& folder, const fs::path& relative, const Config& config,
                  std::vector<DamagedFile>& damaged) {
  const fs::path root = cache_of(folder);
  const fs::path here = relative.empty() ? folder : folder / relative;
  std::vector<std::string> names;
  try {
    names = list_inside(root, here.lexically_relative(root));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIntegrity) throw;
    return;  // no folder: the files that should be in it say so
  }
  for (const std::string& name : names) {
    const fs::path path = relative / name;
    bool listed = false;
    bool leads_to_one = false;
    for (const ArchiveFile& file : config.files) {
      listed |= file.path == path.string();
      leads_to_one |= file.path.starts_with(path.string() + "/");
    }
    if (leads_to_one) {
      add_unlisted(folder, path, config, damaged);
    } else if (!listed) {
      damaged.push_back({folder / path, "is not in its config: somebody else put it there"});
    }
  }
}

}  // namespace

void unpack_layer(const fs::path& layer, const Config& config, std::uint64_t unpacked_size,
                  const fs::path& folder, std::string_view subject, const std::stop_token& stop) {
  const fs::path draft = folder.parent_path() / draft_name();
  make_folder(draft, cache_of(folder));
  try {
    extract(layer, config, unpacked_size, draft, subject, stop);
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
  const fs::path aside = folder.parent_path() / draft_name();
  std::error_code error;
  fs::rename(folder, aside, error);
  // In an image's layer, below the one that is written to, overlayfs renames no folder. Whatever a
  // kill then leaves of it, verify finds.
  const bool in_place = error == std::errc::cross_device_link;
  if (error && !in_place) fail_cache("remove", folder, error.value());
  remove_whole(in_place ? folder : aside);
}

bool verify_unpacked(const fs::path& folder, const ArchiveFile& promised, std::string_view what,
                     const Sink& sink) {
  const fs::path root = cache_of(folder);
  const fs::path path = folder / promised.path;
  const FileDescriptor file = open_inside(root, path.lexically_relative(root));
  if (!file.valid()) return false;
  StreamVerifier verifier({"", promised.digest, promised.size},
                          {std::string(what), path.string(), kFetchAgain});
  read_pieces(file.get(), path, [&](std::string_view piece) {
    verifier.update(piece);
    if (sink) sink(piece);
  });
  verifier.finish();
  return true;
}

std::string read_unpacked(const fs::path& folder, const ArchiveFile& promised,
                          std::string_view what, std::uint64_t most) {
  const std::string read = "read " + std::string(what) + ": " + (folder / promised.path).string();
  if (promised.size > most) {
    throw Error(ErrorCode::kIntegrity, read + " has " + std::to_string(promised.size) +
                                           " bytes, expected at most " + std::to_string(most));
  }
  std::string bytes;
  const auto keep = [&](std::string_view piece) { bytes += piece; };
  if (!verify_unpacked(folder, promised, what, keep)) {
    throw Error(ErrorCode::kIntegrity, read + " is missing. " + kFetchAgain);
  }
  return bytes;
}

std::vector<DamagedFile> check_unpacked(const fs::path& folder, const Config& config) {
  std::vector<DamagedFile> damaged;
  for (const ArchiveFile& expected : config.files) {
    const fs::path path = folder / expected.path;
    try {
      const std::string problem = check_file(folder, expected);
      if (!problem.empty()) damaged.push_back({path, problem});
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCache) throw;  // not to be read: nothing is known of it
      damaged.push_back({path, error.what()});
    }
  }
  add_unlisted(folder, "", config, damaged);
  return damaged;
}

}  // namespace kiln
