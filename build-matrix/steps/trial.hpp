// SPDX-License-Identifier: Apache-2.0
//
// Trial: a registry and a cache for whoever writes a package, of the last build and of no other. A
// published version never changes, so a cache that has one asks no more, and a kernel that was
// edited and published again would go on as it was. Here both begin anew with each change. After
// execute.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <vector>

#include "build-matrix/steps/graph.hpp"

namespace kiln::build {

/// Publishes what is in the folders of the jobs' packages to OUT/.try/registry, if anything of it
/// changed since the last time, and removes OUT/.try/cache then. Tells the environment for
/// programs. Throws Error(kBuild) if the kiln-registry beside this program refuses.
void offer_for_trial(const std::vector<Job>& jobs, const std::filesystem::path& out,
                     std::ostream& progress);

}  // namespace kiln::build
