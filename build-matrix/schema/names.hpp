// SPDX-License-Identifier: Apache-2.0
//
// Names: which words of package.json may become C++ identifiers, file paths and sonames, and how
// they are respelt. Used by schema, which refuses the others, and by codegen. Pure.
#pragma once

#include <string>
#include <string_view>

namespace kiln::build {

/// Empty if the name is snake_case and no C++ keyword, else what is wrong: "is a C++ keyword".
std::string why_not_identifier(std::string_view name);

/// Empty if the name is [A-Z][A-Za-z0-9]*, at most 32 characters, and no macro of C's headers, else
/// what is wrong.
std::string why_not_symbol(std::string_view name);

/// [a-z0-9] words joined by single '-' or '_': a value of a string attribute.
bool is_value_word(std::string_view name);

/// "../gated-mlp/cpu/gemm.cpp" -> "gated-mlp", the folder beside the package that has the source;
/// empty for a source of the package's own.
std::string_view shared_folder_of(std::string_view path);

/// A relative path of plain components that ends in `suffix`: it stays inside the package, or
/// inside the one beside it that "../NAME/" at its beginning names.
bool is_source_path(std::string_view path, std::string_view suffix);

/// "csrc/sm90_gemm.cu" -> "sm90_gemm".
std::string stem_of(std::string_view path);

/// "libcublasLt.so.{cuda_major}" and 12 -> "libcublasLt.so.12". Nothing else in braces is replaced.
std::string soname_for(std::string_view pattern, int cuda_major);

/// "0.1.0": three numbers.
bool is_release(std::string_view text);

/// "head-dim" or "head_dim" -> "HeadDim".
std::string camel_case(std::string_view name);

}  // namespace kiln::build
