// SPDX-License-Identifier: Apache-2.0
//
// Includes: which of our own files a source reads, found by following its #include lines. For the
// build id, which must cover everything a library is made of, and for rebuilds of device code,
// whose compiler does not say what it read. Conditions are not evaluated: a file too many costs a
// rebuild, one too few would be a wrong build.
#pragma once

#include <filesystem>
#include <set>
#include <vector>

namespace kiln::build {

/// The sources and every file that they include, directly or not, as absolute paths. A quoted
/// name is looked for beside the including file, then in `folders`; one in angle brackets in
/// `folders` alone. What is found nowhere belongs to a compiler and is left out. Throws
/// Error(kBuild) for a file that cannot be read.
std::set<std::filesystem::path> include_closure(const std::vector<std::filesystem::path>& sources,
                                                const std::vector<std::filesystem::path>& folders);

}  // namespace kiln::build
