// SPDX-License-Identifier: Apache-2.0
//
// Usage: what is wrong with a command line that CLI11 does not parse, in Kiln's words. For each
// program of Kiln that has a command line.
#pragma once

#include <optional>

namespace CLI {
class App;
}

namespace kiln::cli {

/// The exit code where --help or --version was asked for, and is printed; nothing where a command
/// is to run. Throws kUsage: which word is not known, what it may have been meant to be, and which
/// --help to read.
std::optional<int> parse(CLI::App& app, int argc, char** argv);

}  // namespace kiln::cli
