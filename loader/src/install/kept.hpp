// SPDX-License-Identifier: Apache-2.0
//
// Kept: what this user's own commands found out on this machine, in folders beside trust.json:
// records of tests, tables of tuned choices. They decide: such a file, and the folders on its way,
// must be this user's or root's and nobody else's to write. Its checksum shows damage and changes
// by hand; it is not a signature. Safe from several processes: a file is replaced as a whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "documents/json_fwd.hpp"

namespace kiln {

/// Of these: what errors call one, and the command that makes it anew.
struct Kept {
  std::string_view folder;   ///< "tested"
  std::string_view what;     ///< "record"
  std::string_view command;  ///< "kiln test"
};

/// Empty if the environment names no folder for settings.
std::filesystem::path folder_of(const Kept& kept);

/// The part of a file's name that tells machines apart, of what they call themselves.
std::string place_word(std::string_view hardware);

/// Where a file of this name is kept; its folder is there. Throws kUsage where there can be none,
/// or where another user could change it.
std::filesystem::path place_of(const Kept& kept, const std::string& name);

/// The same once a file beside it could be made: for who would lose hours of work. Throws kCache
/// too, for what the disk refuses.
void check_writable(const Kept& kept, const std::string& name);

/// Writes `document` with the digest of all else in it, and removes what killed writers of this
/// name left. Throws what place_of does, kUsage for more than is read, kCache for what the disk
/// refuses.
std::filesystem::path keep(const Kept& kept, const std::string& name, Json document);

/// The document without its checksum; nothing if there is no file. Throws kUsage for a file that
/// another user may write to or that is larger than 1 MiB, kIntegrity for one that is not as it was
/// written.
std::optional<Json> read_kept(const Kept& kept, const std::filesystem::path& file);

/// "read record <found>. Remove it, and run 'kiln test' again", kIntegrity.
[[noreturn]] void fail_kept(const Kept& kept, const std::string& found);

}  // namespace kiln
