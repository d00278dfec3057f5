// SPDX-License-Identifier: Apache-2.0
//
// Linkage: what a shared library asks of the machine that loads it: its architecture, the libraries
// and symbol versions that it links, how it wants to be mapped. Part of inspect (a library that was
// linked here) and of existing (one that was not). Pure.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "build-matrix/library/elf.hpp"
#include "documents/target.hpp"

namespace kiln::build {

/// What a library may ask for.
struct Allowance {
  CpuLevel cpu;
  Version glibc;                            ///< symbols of this one and older
  std::vector<std::string> libraries = {};  ///< that it may link, beside glibc's own
  /// What those provide. Left out where one of them is not at hand: then any symbol may be its.
  std::optional<std::set<std::string>> provided = std::set<std::string>();
  std::string_view remedy;  ///< behind "links libx.so; "
};

/// The newest glibc that is asked for, and a symbol that does; empty if none asks.
struct AskedGlibc {
  Version version;
  std::string symbol;
};

/// Appends what a library asks for and may not.
AskedGlibc check_linkage(const ElfLibrary& library, const Allowance& allowed,
                         std::vector<std::string>& violations);

}  // namespace kiln::build
