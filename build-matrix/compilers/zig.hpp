// SPDX-License-Identifier: Apache-2.0
//
// Zig: the words with which one zig compiles and links the host code of packages for any CPU level
// and any glibc. Before it: toolchain, which finds the program. After it: steps. Pure.
#pragma once

#include <string>
#include <vector>

#include "documents/target.hpp"

namespace kiln::build {

std::vector<std::string> compile_flags(CpuLevel cpu, Version glibc);

std::vector<std::string> link_flags(CpuLevel cpu, Version glibc);

/// Those of a check that travels with a version (kiln/check.h).
std::vector<std::string> check_compile_flags(CpuLevel cpu, Version glibc);
std::vector<std::string> check_link_flags(CpuLevel cpu, Version glibc);

}  // namespace kiln::build
