// SPDX-License-Identifier: Apache-2.0
//
// Execute: runs the steps of a build whose results are not there. Before it: graph. A result is
// there if its step's stamp says that it was made by the same command in the same environment, by
// the same tool, of the same bytes, and that these are the bytes of the outputs now. Times of files
// mean nothing: cp -p, tar and rsync set them as they like.
//
//   key of a step = digest of command, environment, tool, and of each file that it reads
//   stamp         = {"key": …, "outputs": {name: digest}}, written last, by rename
//
// A step writes into a folder of its own, out of which its outputs are renamed: a build that was
// killed, and what its compilers still write, spoil nothing. It is the step's folder for temporary
// files, too. One build in a work folder at a time.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "build-matrix/steps/sources.hpp"
#include "build-matrix/steps/step.hpp"

namespace kiln::build {

/// What a step that was run took.
struct Took {
  std::string kind;
  std::string what;
  double cpu_seconds = 0;  ///< of all CPUs, user and system
};

/// Runs what has to be run, at most `jobs` at a time, and tells `progress` of each: a line, and
/// what the program said. `scratch` is emptied, and gone at the end. `sources` knows the bytes that
/// the build id was made of. Throws Error(kBuild) for the first step that fails, once those that
/// run have ended; and where a file changed while it was read.
std::vector<Took> execute(const std::vector<Step>& steps, Sources& sources,
                          const std::filesystem::path& scratch, unsigned jobs,
                          std::ostream& progress);

/// For each kind of step: how many, and their seconds; then the slowest ones.
void print_timings(std::vector<Took> took, std::ostream& out);

}  // namespace kiln::build
