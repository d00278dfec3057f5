// SPDX-License-Identifier: Apache-2.0
//
// Image steps: what makes the device images of a variant: NVRTC, or Triton, then the C++ that holds
// them; and the host code of launches, which needs what Triton said. A part of graph.
#pragma once

#include <filesystem>
#include <vector>

#include "build-matrix/steps/package_build.hpp"

namespace kiln::build {

/// kLaunches in the variant's folder: the host code of a package that has launches in place of it.
void add_launches(PackageBuild& build, const VariantPlan& plan);

/// images.gen.cpp in the variant's folder. Returns what the assembler says of each image. An image
/// depends on toolkit, source and what it is compiled to, not on the host's CPU: x86_64 and aarch64
/// share it.
std::vector<std::filesystem::path> add_images(PackageBuild& build, const VariantPlan& plan);

}  // namespace kiln::build
