// SPDX-License-Identifier: Apache-2.0
//
// Signing commands: key, init, rotate, sign, yank of kiln-registry: who vouches for a registry's
// versions, and that they do.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace kiln::registry {

/// Adds the commands. What is returned runs the one that was parsed and gives its exit code; it
/// gives -1 where none was.
std::function<int()> add_signing_commands(CLI::App& app);

}  // namespace kiln::registry
