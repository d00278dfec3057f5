// SPDX-License-Identifier: Apache-2.0
//
// DeviceCode: which GPUs the code in a file is for: a cubin, PTX, a fatbin, or a library that has
// fatbins. NVIDIA's cuobjdump reads them. After it: existing. Throws Error(kBuild).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "documents/target.hpp"

namespace kiln::build {

/// One piece of device code.
struct EmbeddedCode {
  DeviceCode code;
  std::optional<Version> ptx;  ///< of PTX: the version of its language
  bool operator==(const EmbeddedCode&) const = default;
};

/// What cuobjdump lists of a file; none if it has no device code.
std::vector<EmbeddedCode> list_device_code(const std::filesystem::path& file,
                                           const std::filesystem::path& cuobjdump);

/// The first CUDA whose driver compiles PTX of this version.
Version driver_of_ptx(Version ptx);

}  // namespace kiln::build
