// SPDX-License-Identifier: Apache-2.0
//
// Dev: the dev layer of a version, which is for compilers and the same for every machine. In place
// of choose it takes the first variant that this Kiln can read; the other steps are install's.
#include <algorithm>

#include "documents/names.hpp"
#include "install/install.hpp"
#include "kiln/error.hpp"
#include "store/unpack.hpp"
#include "verify/verify.hpp"

namespace kiln {

DevFiles Install::run_dev() {
  FileLock used = source_.cache.use();
  check_version();
  Choice choice{.registry = source_.registry,
                .version = find_index(source_.version, request_.refresh)};
  const Index& index = choice.version.index;
  const std::string of = label(index.name, index.version) + " dev";
  const auto readable = std::ranges::find_if(
      index.variants, [](const Variant& variant) { return variant.unread.empty(); });
  if (readable == index.variants.end()) {
    throw Error(ErrorCode::kUpgrade, "install " + of + ": every variant needs a newer Kiln than " +
                                         KILN_VERSION + ". Install that one");
  }
  choice.resolution.chosen = static_cast<std::size_t>(readable - index.variants.begin());
  choice.resolution.device = Device::cpu();
  if (!used.held() && !choice.version.fetched.empty()) used = source_.cache.use_to_write();
  const Package package = pull(choice);
  const VariantManifest& manifest = package.manifest;
  if (!manifest.has_dev()) {
    throw Error(ErrorCode::kNotFound, "install " + of +
                                          ": the package has no headers; call its ops by name. "
                                          "'kiln info " +
                                          label(index.name, index.version) + "' lists them");
  }
  const Part part{of,
                  manifest.dev,
                  manifest.dev_unpacked_size,
                  package.config.dev_part(),
                  manifest.config.digest,
                  source_.cache.unpacked_path(manifest.dev.digest),
                  true};
  if (!unpack(part)) {
    const std::vector<DamagedFile> damaged = check_unpacked(part.folder, part.config);
    if (!damaged.empty()) {
      throw Error(ErrorCode::kIntegrity, "verify " + of + ": " + damaged.front().file.string() +
                                             " " + damaged.front().problem + ". " + kFetchAgain);
    }
  }
  remember(choice.version);
  return {index.name, index.version, part.folder, part.folder / "include", part.config.files};
}

std::string read_dev_file(const DevFiles& dev, const std::string& path, std::uint64_t most) {
  const std::string of = label(dev.name, dev.version);
  const auto file = std::ranges::find(dev.files, path, &ArchiveFile::path);
  if (file == dev.files.end()) {
    throw Error(ErrorCode::kNotFound, "read " + path + " of " + of + ": the version brings none");
  }
  return read_unpacked(dev.folder, *file, path + " of " + of, most);
}

}  // namespace kiln
