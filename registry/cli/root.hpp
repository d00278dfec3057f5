// SPDX-License-Identifier: Apache-2.0
//
// What init, rotate and sign share of a root: who still has to sign it is said.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kiln::registry {

/// `changes`: what it says, where that is asked.
void print_root(const std::filesystem::path& path, const std::string& bytes,
                const std::vector<std::string>& changes = {});

}  // namespace kiln::registry
