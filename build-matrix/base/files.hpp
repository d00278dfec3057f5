// SPDX-License-Identifier: Apache-2.0
//
// Files: the three ways in which the build reads and writes whole files. Every failure is an
// Error(kBuild) that names the path. Stateless.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kiln::build {

/// Of a regular file: a pipe might never end.
std::string read_file(const std::filesystem::path& path);

/// Writes beside the path and renames: a reader sees the old bytes or the new ones. Makes the
/// folder.
void write_file(const std::filesystem::path& path, std::string_view bytes);

/// The same, unless the file holds these bytes already. Returns whether it wrote.
bool write_if_changed(const std::filesystem::path& path, std::string_view bytes);

}  // namespace kiln::build
