// SPDX-License-Identifier: Apache-2.0
//
// Result: what a program printed on stdout has to arrive. For each program of Kiln that has a
// command line, before it ends well.
#pragma once

namespace kiln::cli {

/// Throws kCache where stdout took less than was printed: a full disk, say. A result that nobody
/// could read is no success.
void flush_result();

}  // namespace kiln::cli
