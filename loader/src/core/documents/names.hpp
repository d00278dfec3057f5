// SPDX-License-Identifier: Apache-2.0
//
// Names: which words may name a package, a variant or a library. What passes is safe as a path
// component, as an argument of dlopen and on a terminal. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kiln {

inline constexpr std::size_t kMaxPackageName = 64;
inline constexpr std::size_t kMaxVariantId = 100;

/// Whether all characters are letters of ASCII, digits, or among `others`.
bool is_word(std::string_view text, std::string_view others);

/// Package names: [a-z0-9] words joined by single '-', at most 64 characters.
bool is_package_name(std::string_view name);

/// A package's name, or the beginning of names with a '*' behind it: "acme-*".
bool is_package_pattern(std::string_view text);

/// How a person names one version of a package: "geglu-mlp@1".
std::string label(std::string_view name, int version);

/// Letters, digits, '.', '_' and '-', from a letter or digit, at most 100: part of a tag and a
/// path.
bool is_variant_id(std::string_view text);

/// A shared library's file name: "libcublasLt.so.12". Never a path.
bool is_soname(std::string_view text);

/// Whether a shell pattern (*, ?, [...]) matches; several patterns are separated by commas.
bool matches(std::string_view name, std::string_view patterns);

}  // namespace kiln
