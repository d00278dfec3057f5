// SPDX-License-Identifier: Apache-2.0
//
// Report: what would be built and what was, as a table or as JSON. What was built is read back from
// the folders, not remembered: what each library has, and what the assembler said of its kernels.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "build-matrix/steps/graph.hpp"

namespace kiln::build {

struct KernelUse {
  std::string kernel;
  std::string target;  ///< "sm_90a"
  std::uint64_t registers = 0;
  std::uint64_t stack = 0;    ///< bytes a thread, as is the next
  std::uint64_t spilled = 0;  ///< spill stores and loads together
  bool operator==(const KernelUse&) const = default;
};

/// In the log's order. Throws Error(kBuild) for a kernel that the log does not describe in full:
/// a new wording of the assembler must not hide a spill.
std::vector<KernelUse> read_ptxas(const std::string& log, std::string_view subject);

void list_variants(const Job& job, bool json, std::ostream& out);

/// One line, or one object of an array, for each variant of the job under `folder`.
void report_built(const Job& job, const std::filesystem::path& folder, bool json,
                  std::ostream& out);

}  // namespace kiln::build
