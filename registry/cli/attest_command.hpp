// SPDX-License-Identifier: Apache-2.0
//
// kiln-registry attest: the command of attest.hpp.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace kiln::registry {

/// Adds it. The result runs it if the user named it, and is then its exit code; -1: was not named.
std::function<int()> add_attest_command(CLI::App& app);

}  // namespace kiln::registry
