// SPDX-License-Identifier: Apache-2.0
//
// Spelling: values and words as C++ spells them, for what writes C++: codegen, ops_header. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kiln::build {

/// A string literal; long text is cut into one literal a line, each line after the first indented
/// by four.
std::string literal_of(std::string_view text);

/// The shortest spelling that reads back as the same double.
std::string float_literal(double value);

/// "0x00000000000000ff"
std::string hash_literal(std::uint64_t hash);

/// "half-up" -> "kHalfUp"
std::string enumerator(std::string_view value);

/// Text as lines of a comment, each of which begins with `begin` and has at most 100 columns unless
/// a word is longer.
std::string comment(std::string_view text, std::string_view begin);

}  // namespace kiln::build
