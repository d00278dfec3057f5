// SPDX-License-Identifier: Apache-2.0
//
// TunedOps: a package's table with the choices of this machine in it (install/tuned.hpp). A tuned
// op is an entry of a copied C table whose `run` and `workspace_bytes` are functions of the loader:
// they add the choice to a call that gave none and has a shape of the table, and call the package.
// So every caller has them, in C++, C, Python and PyTorch; and where there is no table, nothing
// stands between a caller and the package. Between load and Kernel.
//
// A choice is a preference: a call that it cannot compute, for its tensors' alignment, say, is
// computed as it was given. Safe from several threads.
#pragma once

#include <string>

#include "kiln/abi.h"

namespace kiln {

struct TunedTable;  // install/tuned.hpp

/// `table` itself where the tuned one names no op of it with a choice. What is returned lives as
/// long as the process; the same for the same arguments. `file` names the tuned table in errors.
/// Throws kIntegrity where it names an op, a symbol, a tensor, an attribute or a value that the
/// package does not have; kUsage beyond 64 tuned ops in a process.
const kiln_package* tuned_package(const kiln_package& table, const TunedTable& tuned,
                                  const std::string& file);

}  // namespace kiln
