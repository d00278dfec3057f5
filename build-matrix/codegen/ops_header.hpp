// SPDX-License-Identifier: Apache-2.0
//
// Ops header: a package's ops for C++ users, made of package.json: kiln/ops/<package>.hpp. For each
// op a struct of its tensors and attributes, in the order of the op's table, with the signature
// that it was made of; kernel.op<…>() compares that with the loaded kernel's. Before it: schema.
// After it: the dev layer, and the package's own folder, where layers include it. Pure.
//
// What writes the ops for another language belongs beside this file: it starts from the same
// Package, and from signature_of.
#pragma once

#include <filesystem>
#include <string>

#include "build-matrix/schema/schema.hpp"

namespace kiln::build {

/// What a caller of the op is compiled for: signature_text of its entry.
std::string signature_of(const Package& package, const OpSchema& op);

/// "include/kiln/ops/geglu_mlp.hpp": where the header is, in the package's folder and in its dev
/// layer.
std::filesystem::path ops_header_path(const Package& package);

/// Below kiln::ops: "geglu-mlp" -> "geglu_mlp", "3d-conv" -> "_3d_conv", "std" -> "std_".
std::string ops_namespace(std::string_view package);

std::string generate_ops_header(const Package& package);

}  // namespace kiln::build
