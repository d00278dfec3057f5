// SPDX-License-Identifier: Apache-2.0
//
// Triton graph: the step that compiles one kernel of a Triton file, and what its result is made of.
// A part of graph.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "build-matrix/compilers/toolchain.hpp"
#include "build-matrix/plan/expand.hpp"
#include "build-matrix/steps/step.hpp"

namespace kiln::build {

/// What decides an image beside the package's own files.
struct TritonTool {
  const TritonCompiler& compiler;
  std::filesystem::path script;  ///< triton_step.py
  Version toolkit;               ///< whose drivers the image is for
};

/// The .py files that the source may import: all of its folder and of those in it, sorted; itself
/// too.
std::vector<std::filesystem::path> triton_sources(const std::filesystem::path& source);

/// What triton_step.py is told of an image; `name` is what messages call the source.
std::string triton_job(const ImagePlan& image, const TritonTool& tool,
                       const std::filesystem::path& source, const std::string& name);

/// Its outputs, in `folder`: STEM.cubin or STEM.ptx, STEM.ptxas.txt, STEM.json. Reads `job`, a file
/// with the text of triton_job.
Step triton_step(const ImagePlan& image, const TritonTool& tool,
                 const std::filesystem::path& source, const std::filesystem::path& job,
                 const std::filesystem::path& folder);

}  // namespace kiln::build
