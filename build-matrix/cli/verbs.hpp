// SPDX-License-Identifier: Apache-2.0
//
// Verbs: what kiln-build does, a line for each. main.cpp's table has their words.
#pragma once

#include "loader/cli/frame/command.hpp"

namespace kiln::build {

void build_verb(cli::Command& command);     ///< without a word: from packages to archives
void new_verb(cli::Command& command);       ///< the folder of a package to start from
void pack_verb(cli::Command& command);      ///< binaries that exist, to archives
void nvrtc_step(cli::Command& command);     ///< of a build, which calls it: one device source
void launches_step(cli::Command& command);  ///< the host code of a variant's launches
void images_step(cli::Command& command);    ///< the images' source
void pack_step(cli::Command& command);      ///< one variant's library, inspected and packed

}  // namespace kiln::build
