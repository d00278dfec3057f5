// SPDX-License-Identifier: Apache-2.0
//
// What init, rotate and sign share of a root: it is written, and who still has to sign it is said.
#pragma once

#include <filesystem>
#include <string>

namespace kiln::registry {

void write_root(const std::filesystem::path& path, const std::string& bytes);

}  // namespace kiln::registry
