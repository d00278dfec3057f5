// SPDX-License-Identifier: Apache-2.0
//
// Launch code: the host code of a package that has launches in place of C++: its list of kernels,
// and each op's functions. Before it: triton, and the compiler's facts. After it: the host
// compiler. Pure; the same values give the same text.
#pragma once

#include <map>
#include <string>

#include "build-matrix/schema/schema.hpp"
#include "build-matrix/schema/triton.hpp"

namespace kiln::build {

/// By kernel. Throws Error(kBuild) if they are of other forms than the package's.
std::string generate_launches(const Package& package, const DeviceCode& target,
                              const std::map<std::string, TritonFacts>& facts);

/// The same for facts that are not known yet: it differs where the other would.
std::string launches_outline(const Package& package, const DeviceCode& target);

}  // namespace kiln::build
