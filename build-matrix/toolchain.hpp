// SPDX-License-Identifier: Apache-2.0
//
// Toolchain: where the compilers of one build are, and which they are exactly. Filled from a prefix
// that ci/toolchains made. Only what the chosen variants need is looked for. Throws Error(kBuild)
// with what to run.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "documents/target.hpp"

namespace kiln::build {

struct DeviceCompiler {
  std::filesystem::path library;  ///< libnvrtc.so.12
  std::filesystem::path include;  ///< cuda_fp16.h and what it includes
  std::string version;            ///< "12.9.86"
};

struct Toolchain {
  std::map<Version, DeviceCompiler> device;  ///< by toolkit: 12.9
  std::filesystem::path zig;
  std::string zig_version;
  std::filesystem::path cuobjdump;  ///< empty where no variant has device code
};

Toolchain find_toolchain(const std::filesystem::path& prefix, const std::set<Version>& toolkits);

}  // namespace kiln::build
