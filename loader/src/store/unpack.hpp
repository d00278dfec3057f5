// SPDX-License-Identifier: Apache-2.0
//
// Unpack: one verified layer into a folder of its own, all or nothing. After cache, before load.
// oci/layer_reader gives the files that the config lists, verified; this file writes them. Safe
// from several threads and processes at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/posix.hpp"
#include "documents/descriptor.hpp"

namespace kiln {

struct ArchiveFile;  // documents/variant.hpp
struct Config;

/// Writes the files under a temporary name next to `folder`, syncs them and renames. If `folder`
/// appears meanwhile, the other writer won and its files are kept. `subject` names the variant in
/// errors: kIntegrity for an archive that is not exactly what the config says, kCache for a folder
/// that cannot be written, kCancelled at the next piece once `stop` is requested.
void unpack_layer(const std::filesystem::path& layer, const Config& config,
                  std::uint64_t unpacked_size, const std::filesystem::path& folder,
                  std::string_view subject, const std::stop_token& stop = {});

/// Moves a variant's folder aside, in one step, and removes it. What was loaded is a copy.
void drop_unpacked(const std::filesystem::path& folder);

/// Hashes one of an unpacked archive's files where it lies, and gives `sink` its bytes on the way.
/// False if it is not there; kIntegrity, naming `what`, if it is not what the config promises.
bool verify_unpacked(const std::filesystem::path& folder, const ArchiveFile& promised,
                     std::string_view what, const Sink& sink = {});

/// Such a file, whole and verified. kIntegrity, too, where it is not there or has more bytes than
/// `most`, whatever the config promises.
std::string read_unpacked(const std::filesystem::path& folder, const ArchiveFile& promised,
                          std::string_view what, std::uint64_t most = kMaxDocumentBytes);

/// What under `folder` is not as the config says: a file that is missing or has other bytes, and
/// one that the config does not list. Empty if all is intact. Throws kCache where it may not be
/// read.
struct DamagedFile {
  std::filesystem::path file;
  std::string problem;  ///< "is missing", "sha256 is 3f…, the config says 9c…"
};
std::vector<DamagedFile> check_unpacked(const std::filesystem::path& folder, const Config& config);

}  // namespace kiln
