// SPDX-License-Identifier: Apache-2.0
//
// Describe: what a statement says, in a line for people. Above statement; for `kiln info` and the
// registry's site. Pure. A statement is a claim until its signature has been checked.
#pragma once

#include <string>

#include "attest/statement.hpp"

namespace kiln::attest {

/// The word of its kind; for a kind that Kiln does not know its URI.
std::string word_of(const Statement& statement);

/// "built by https://ci.example.org of git+https://… with zig"; empty for a plain signature. For a
/// statement of another shape the text says that.
std::string describe(const Statement& statement);

}  // namespace kiln::attest
