// SPDX-License-Identifier: Apache-2.0
//
// Existing: a shared library that was not linked here, compared with what package.json states of
// it. What is promised in a manifest is what was read in the file. Before it: binaries. After it:
// graph, which makes a variant of it, and pack, which reads it once more inside of that.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "build-matrix/library/inspect.hpp"
#include "build-matrix/schema/binaries.hpp"
#include "build-matrix/schema/schema.hpp"

namespace kiln::build {

struct Existing {
  Facts facts;                       ///< glibc: the newest that it or what it carries asks for
  std::string build_id;              ///< of Kiln's ABI: what its table says
  std::vector<std::string> sonames;  ///< of each file: by which others link it
};

/// `files`: where `binary.carries` are, in that order, and then the library itself. cuobjdump is
/// asked where it has device code. Throws Error(kBuild) "pack add-one lib/libadd_one.so: <first
/// violation>; <second>; …".
Existing check_existing(const Package& package, const Binary& binary,
                        const std::vector<std::filesystem::path>& files,
                        const std::filesystem::path& cuobjdump);

/// The finished library of a variant: what was said of the file holds for what is in there.
Facts inspect_existing(const Package& package, const Binary& binary,
                       const std::filesystem::path& library, const Recipe& recipe,
                       const std::filesystem::path& cuobjdump,
                       const std::filesystem::path& scratch);

}  // namespace kiln::build
