// SPDX-License-Identifier: Apache-2.0
//
// Calls: the C++ that calls a tvm-ffi library for each op, or launches the kernels of an image, in
// the place of a package's own sources, and that holds the files. Before it: existing. After it:
// the host compiler. Pure.
#pragma once

#include <string>
#include <vector>

#include "build-matrix/schema/schema.hpp"

namespace kiln::build {

/// The section that a carried file lies in, by its position.
std::string carried_section(std::size_t position);
/// What a carried file is called beside calls.gen.cpp.
std::string carried_name(std::size_t position);

/// calls.gen.cpp. `sonames`: of each carried file; the library itself is the last. `ptx`: the image
/// is text, which the driver wants with a NUL at its end.
std::string generate_calls(const Package& package, const Binary& binary,
                           const std::vector<std::string>& sonames, bool ptx);

}  // namespace kiln::build
