// SPDX-License-Identifier: Apache-2.0
//
// Process: run another program and wait for it. No shell. Throws Error(kBuild) if it cannot be
// started; how it ended is the caller's to judge.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace kiln::build {

struct Finished {
  int status = 0;          ///< exit status; 128 + the signal's number if one ended it
  std::string output;      ///< what it wrote to stdout and stderr, in order
  double cpu_seconds = 0;  ///< user and system
};

/// The program is looked up on PATH unless it has a '/'. It gets this process's environment, or
/// "NAME=value" of `environment` and nothing else.
Finished run_captured(const std::vector<std::string>& command,
                      std::optional<std::vector<std::string>> environment = std::nullopt);

}  // namespace kiln::build
