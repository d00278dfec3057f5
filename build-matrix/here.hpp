// SPDX-License-Identifier: Apache-2.0
//
// Here: which variants of a package one machine would take. Before it: expand, and the loader's
// probe. The answer is the loader's own resolve, so that what `kiln build --here` builds is what
// get_kernel chooses. Pure.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "expand.hpp"
#include "kiln/host.hpp"

namespace kiln::build {

/// The ids that `host` takes for its CPU and for each of its GPUs; none if nothing fits. Of a host
/// whose libraries were not looked at, no variant is taken that looks one up.
std::set<std::string> taken_here(const Host& host, const Package& package,
                                 const std::vector<VariantPlan>& variants, Version glibc);

/// The sonames that the answer depends on.
std::vector<std::string> libraries_of(const std::vector<VariantPlan>& variants);

}  // namespace kiln::build
