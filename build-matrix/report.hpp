// SPDX-License-Identifier: Apache-2.0
//
// Report: what would be built and what was, as a table or as JSON. What was built is read back from
// the folders, not remembered.
#pragma once

#include <filesystem>
#include <iosfwd>

#include "graph.hpp"

namespace kiln::build {

void list_variants(const Job& job, bool json, std::ostream& out);

/// One line, or one object of an array, for each variant of the job under `folder`.
void report_built(const Job& job, const std::filesystem::path& folder, bool json,
                  std::ostream& out);

}  // namespace kiln::build
