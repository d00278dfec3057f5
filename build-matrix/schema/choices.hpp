// SPDX-License-Identifier: Apache-2.0
//
// What `kiln tune` would refuse of a package's choices.json on a user's machine, and what it could
// not notice there. Pure.
#pragma once

#include <string>
#include <string_view>

namespace kiln::build {

struct Package;

/// `file` names the text in errors. Throws kBuild: it is no choices.json, names what the package
/// does not have (documents/choices.hpp), or launches run one kernel for two words.
void check_choices(std::string_view text, const Package& package, const std::string& file);

}  // namespace kiln::build
