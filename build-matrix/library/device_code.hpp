// SPDX-License-Identifier: Apache-2.0
//
// DeviceCode: what is in a file with code for GPUs: a cubin, PTX, a fatbin, or a library that has
// fatbins. NVIDIA's cuobjdump reads all but PTX. After it: inspect, existing. Throws Error(kBuild).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "documents/target.hpp"

namespace kiln::build {

struct DeviceKernel {
  std::string name;
  std::vector<std::uint64_t> parameters = {};  ///< bytes of each
  std::vector<std::uint64_t> block = {};       ///< threads in x, y, z that it is compiled for
  bool exactly = false;                        ///< for no fewer, either
  bool operator==(const DeviceKernel&) const = default;
};

/// Code for one GPU, or for all from one on.
struct EmbeddedCode {
  DeviceCode code;
  std::optional<Version> ptx;         ///< of PTX: the version of its language
  std::optional<Version> toolkit;     ///< of machine code, where it says which one made it
  std::vector<DeviceKernel> kernels;  ///< as they stand there
};

/// In the file's order; none if it has no device code.
std::vector<EmbeddedCode> read_device_code(const std::filesystem::path& file,
                                           const std::filesystem::path& cuobjdump);

/// Of those, machine code alone, and only what it is for.
std::vector<EmbeddedCode> list_cubins(const std::filesystem::path& file,
                                      const std::filesystem::path& cuobjdump);

/// Whether the bytes of a file are PTX: no cubin and no fatbin.
bool is_ptx(std::string_view bytes);

/// One module of PTX, or several one behind another, as cuobjdump prints them. Pure.
std::vector<EmbeddedCode> read_ptx(std::string_view text);

/// The first CUDA whose driver compiles PTX of this version.
Version driver_of_ptx(Version ptx);

}  // namespace kiln::build
