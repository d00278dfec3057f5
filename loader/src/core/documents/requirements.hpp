// SPDX-License-Identifier: Apache-2.0
//
// Requirements: kiln.json, where a project states its kernels once. `kiln lock` reads it; the CMake
// function kiln_require writes one. Pure: text in, values out.
//
//   {"schema": "kiln.requirements/1", "kernels": {"geglu-mlp": {"version": 1}}}
//
// "registry" (a folder or URL) is optional, for all kernels. "note", beside it or in a kernel, is
// for people. Any other member is refused: a misspelt "registry" must not take the default one.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace kiln {

struct Requirements {
  std::string registry;                ///< as it is written; empty: none is named
  std::map<std::string, int> kernels;  ///< version by name
};

/// Throws kUsage for another document, kUpgrade for one of a newer Kiln.
Requirements parse_requirements(std::string_view text, std::string_view subject);

/// The same text with other kernels: those of `versions` have that version, and at version 0 go.
/// The order of members stays; white space becomes two columns a level. Throws as parse does.
std::string edit_requirements(std::string_view text, std::string_view subject,
                              const std::map<std::string, int>& versions);

}  // namespace kiln
