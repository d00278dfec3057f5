// SPDX-License-Identifier: Apache-2.0
//
// Fleet: what each of several machines would get of the kernels in a lock file, before anything is
// shipped: the variant, whether it was tested and by whom, the bytes of its archive, whether the
// driver compiles at the first load, and what stands in the way. Each machine is a file of
// `kiln host --json`. Around install; fetches documents alone.
#pragma once

#include <filesystem>
#include <vector>

#include "documents/json.hpp"
#include "loader/cli/verbs/kernel_command.hpp"

namespace kiln::cli {

struct Fleet {
  Json machines;  ///< as docs/schemas/kiln.lock-1.json describes "hosts"
  int code = 0;   ///< of the first thing in some machine's way; 0: each gets every kernel
};

/// Prints a line for each machine, GPU and kernel. Machines that cannot be read are among them.
Fleet check_fleet(const std::vector<std::filesystem::path>& files,
                  const std::filesystem::path& lock, const Options& options);

}  // namespace kiln::cli
