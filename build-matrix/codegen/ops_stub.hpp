// SPDX-License-Identifier: Apache-2.0
//
// Ops stub: a package's ops for type checkers of Python programs, made of package.json:
// python/<package>_ops.pyi of the dev layer. kiln.get_kernel finds ops at run time; the stub says
// what they take. Before it: schema. After it: the dev layer. Pure.
#pragma once

#include <filesystem>
#include <string>

#include "build-matrix/schema/schema.hpp"

namespace kiln::build {

/// "python/geglu_mlp_ops.pyi": where it is in the dev layer.
std::filesystem::path ops_stub_path(const Package& package);

std::string generate_ops_stub(const Package& package);

}  // namespace kiln::build
