// SPDX-License-Identifier: Apache-2.0
//
// RunJobs: from chosen variants to their archives: what `kiln build` and `kiln pack` have in
// common. Before it: the verb, which reads package.json and chooses.
#pragma once

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "build-matrix/plan/matrix.hpp"
#include "build-matrix/steps/graph.hpp"
#include "build_paths.hpp"
#include "loader/cli/frame/command.hpp"

namespace kiln::build {

/// Where things are, and how to run: options of both verbs.
struct RunRequest {
  unsigned jobs = std::max(1U, std::thread::hardware_concurrency());
  std::filesystem::path toolchains;
  std::filesystem::path out = "build/kernels";
  std::filesystem::path sdk = paths::kSdk;
  std::filesystem::path abi = paths::kAbi;
  bool timings = false;
  bool try_out = false;
  bool no_check = false;
};

void declare_run(cli::Command& command, RunRequest& request);

/// The package in a folder, as the user named it, with all of its variants, none of which is
/// chosen. `verb` begins the text where there is none.
Job read_job(const std::filesystem::path& folder, const Matrix& matrix, const std::string& verb);

/// Runs what has to be run and says what came out. Returns the exit code.
int run_jobs(const std::vector<Job>& jobs, Version glibc, const RunRequest& request,
             const cli::Call& call);

}  // namespace kiln::build
