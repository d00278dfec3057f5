// SPDX-License-Identifier: Apache-2.0
//
// Matrix: the axes along which every package is built, and the combinations that are left out, each
// with its reason. One file (matrix.json) for all packages. Before it: nothing. After it: expand.
// Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "documents/target.hpp"

namespace kiln::build {

struct Toolkit {
  Version version;
  Version min_driver;  ///< lowest driver that runs its machine code, as a CUDA version
  std::string risk;    ///< what is known to be wrong with its compiler; empty: nothing
};

/// Leaves out what matches all of these; an empty list matches everything.
struct Exclusion {
  std::string compiler;  ///< of whose images alone: "nvrtc", "triton"; empty: of any
  std::vector<Version> toolkits;
  std::vector<DeviceCode> targets;
  std::vector<Arch> hosts;
  std::optional<bool> headers;  ///< only of packages with headers of the toolchain, or without
  std::string reason;
};

struct Matrix {
  Version glibc;  ///< host code runs on this glibc and newer
  std::vector<Toolkit> toolkits;
  std::vector<DeviceCode> targets;
  std::vector<Arch> hosts;           ///< of GPU variants
  std::vector<std::string> headers;  ///< that ci/toolchains has, and a package may ask for
  std::vector<CpuLevel> cpu_levels;
  std::vector<Exclusion> exclusions;
};

/// Throws Error(kBuild); `subject` ("build-matrix/matrix.json") begins the text. An unknown key, an
/// exclusion without a reason or one that names something outside of the axes is refused.
Matrix parse_matrix(std::string_view text, std::string_view subject);

}  // namespace kiln::build
