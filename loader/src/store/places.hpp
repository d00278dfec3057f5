// SPDX-License-Identifier: Apache-2.0
//
// Places: everything that a cache is made of, in one table, which verify, repair and gc walk. What
// Kiln writes to a cache has a row here, so that none of the three is blind to it. Below cache,
// next to inside. Writes nothing; any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kiln {

/// What bears a name that Kiln gives and is something else.
struct Misplaced {
  std::filesystem::path path;
  std::string problem;  ///< "is not a folder"
};

struct Survey {
  std::vector<Misplaced> folders;  ///< on the way to a place
  std::vector<Misplaced> files;    ///< in a place: another kind, no JSON, or too large for it
  std::vector<std::filesystem::path> drafts;
};

/// Everything below the root of a cache whose name is that of a place. Names of another shape are
/// not Kiln's and are passed over. Throws kCache for what may not be read.
Survey survey(const std::filesystem::path& root);

/// "<readable tail>-<brief digest>", of refs/.
bool is_registry_key(std::string_view name);
/// "<version>.json", of any version.
bool is_ref_name(std::string_view name);

}  // namespace kiln
