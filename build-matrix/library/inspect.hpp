// SPDX-License-Identifier: Apache-2.0
//
// Inspect: read the linked library and say what it really is: which CPU architecture, which glibc,
// which GPUs its embedded images are for, and whether its list of kernels (kernel_list() of the
// SDK) is what the images have: the linker sees the names of neither. What is promised in a
// manifest is what was read here, and a library that is not what its recipe asked for is refused.
// Before it: the linker. After it: pack.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "build-matrix/plan/recipe.hpp"
#include "documents/json_fwd.hpp"
#include "documents/target.hpp"

namespace kiln::build {

/// One piece of device code inside the library.
struct Image {
  std::string stem;
  DeviceCode code;
  std::uint64_t size = 0;
  std::vector<std::string> kernels;  ///< the names of its functions for the host, sorted
};

struct Facts {
  Arch arch = Arch::kX86_64;
  Version glibc;             ///< highest GLIBC_x.y that a symbol asks for
  std::string glibc_symbol;  ///< that symbol; empty if none asks
  std::vector<std::string> exported;
  std::vector<std::string> needed;
  std::vector<Image> images;
};

/// Reads a library's bytes and checks them. `ops` are the package's. What a cubin is compiled for
/// cuobjdump says, of a copy in `scratch`. Throws Error(kBuild) "inspect <subject>: <first
/// violation>; <second>; …".
Facts inspect(std::string_view library, const Recipe& recipe, const std::vector<OpSchema>& ops,
              const std::filesystem::path& cuobjdump, const std::filesystem::path& scratch);

Json to_json(const Facts& facts);

}  // namespace kiln::build
