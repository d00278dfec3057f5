// SPDX-License-Identifier: Apache-2.0
//
// Signatures: whether each op of a linked library states the signature of its own schema. A program
// compares that integer and nothing else with the one it was compiled for. Part of inspect. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "build-matrix/library/elf.hpp"

namespace kiln::build {

/// Appends what is wrong: an op whose kiln_op.signature is not that of its schema.
void check_signatures(const ElfLibrary& library, std::string_view package,
                      std::vector<std::string>& violations);

}  // namespace kiln::build
