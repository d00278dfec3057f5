// SPDX-License-Identifier: Apache-2.0
#include "store/unpack.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <system_error>
#include <vector>

#include "base/posix.hpp"
#include "kiln/error.hpp"
#include "oci/layer_reader.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

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

void write_file(const ArchiveFile& file, const LayerContent& content, int root,
                const fs::path& draft) {
  const fs::path path = draft / file.path;
  const FileDescriptor parent = open_parent(root, file.path, draft);
  const FileDescriptor out(::openat(parent.get(), fs::path(file.path).filename().c_str(),
                                    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!out.valid()) fail_cache("create", path, errno);
  WriteBehind behind;
  content([&](std::string_view piece) {
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
             const fs::path& draft, std::string_view subject) {
  const FileDescriptor root = try_open(draft, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!root.valid()) fail_cache("open", draft, errno);
  read_layer(layer, config, unpacked_size,
             {"unpack", std::string(subject),
              "nothing was loaded. The package was built wrongly: tell its publisher"},
             [&](const ArchiveFile& file, const LayerContent& content) {
               write_file(file, content, root.get(), draft);
             });
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
