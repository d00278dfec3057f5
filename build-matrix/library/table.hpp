// SPDX-License-Identifier: Apache-2.0
//
// Table: the kiln_package of a library, found in its data without running it, compared with
// package.json. Part of existing. Pure.
#pragma once

#include <string>
#include <vector>

#include "build-matrix/library/elf.hpp"
#include "build-matrix/schema/schema.hpp"

namespace kiln::build {

/// Appends what differs; returns the build id that the table says.
std::string check_table(const ElfLibrary& library, const Package& package, const Binary& binary,
                        std::vector<std::string>& violations);

}  // namespace kiln::build
