// SPDX-License-Identifier: Apache-2.0
//
// Ptxas: what the assembler says of each kernel in the logs that lie beside an archive (ptxas.txt).
// After nvrtc, for report. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "documents/json_fwd.hpp"

namespace kiln::build {

struct KernelUse {
  std::string kernel;
  std::string target;  ///< "sm_90a"
  std::uint64_t registers = 0;
  std::uint64_t stack = 0;    ///< bytes a thread, as are the next two
  std::uint64_t spilled = 0;  ///< spill stores and loads together
  bool operator==(const KernelUse&) const = default;
};

/// In the log's order. Throws Error(kBuild) for a kernel of which the log does not say everything:
/// a spill must not go unseen because an assembler words it anew.
std::vector<KernelUse> read_ptxas(std::string_view log, std::string_view subject);

Json to_json(const std::vector<KernelUse>& kernels);

}  // namespace kiln::build
