// SPDX-License-Identifier: Apache-2.0
//
// Usage: what is wrong with a command line that does not parse, in Kiln's words.
#pragma once

#include <CLI/CLI.hpp>

#include "kiln/error.hpp"

namespace kiln::cli {

/// kUsage: which word is not known, what it may have been meant to be, and which --help to read.
Error usage_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace kiln::cli
