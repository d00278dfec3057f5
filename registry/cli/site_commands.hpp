// SPDX-License-Identifier: Apache-2.0
//
// Site commands: describe, site and serve of kiln-registry: what people see of a registry.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace kiln::registry {

/// Runs the command that was named, and gives its exit status; below 0: none of these was.
std::function<int()> add_site_commands(CLI::App& app);

}  // namespace kiln::registry
