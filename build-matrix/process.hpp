// SPDX-License-Identifier: Apache-2.0
//
// Process: run another program and wait for it. No shell. Throws Error(kBuild) if it cannot be
// started; how it ended is the caller's to judge.
#pragma once

#include <string>
#include <vector>

namespace kiln::build {

struct Finished {
  int status = 0;      ///< exit status; 128 + the signal's number if one ended it
  std::string output;  ///< what it wrote to stdout and stderr, in order; empty if not captured
};

using Environment = std::vector<std::string>;  ///< "NAME=value", added to this process's own

/// The program is looked up on PATH unless it has a '/'.
Finished run_captured(const std::vector<std::string>& command, const Environment& extra = {});

/// Its output goes where ours goes, or, with `to_stderr`, all of it to our stderr.
int run_visible(const std::vector<std::string>& command, const Environment& extra, bool to_stderr);

}  // namespace kiln::build
