// SPDX-License-Identifier: Apache-2.0
//
// ImageLaunch: how an op launches the kernels of a cubin, of PTX or of a fatbin that exists, as
// package.json has it, and the C++ that does. A part of binaries; expressions and arguments are
// those of launch. After it: calls. Pure.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "build-matrix/schema/launch.hpp"

namespace kiln::build {

/// One kernel that an op launches where its conditions hold.
struct ImageLaunch {
  std::string op;
  std::string kernel;  ///< its name in the image
  std::string when;    ///< empty: always
  /// By tensor: those of its dtypes that the kernel is for; of others not named: all.
  std::map<std::string, std::vector<std::string>> dtypes;
  std::vector<std::string> grid;
  std::uint32_t threads = 0;  ///< of a block
  std::uint32_t shared = 0;   ///< bytes of dynamic shared memory
  std::vector<KernelArgument> arguments;
};

/// The value of "launches"; each op has some. Throws what JsonView throws.
std::vector<ImageLaunch> parse_image_launches(const JsonView& value,
                                              const std::vector<OpSchema>& ops);

/// Bytes of each argument, as the kernel has to have them.
std::vector<std::uint64_t> argument_bytes(const ImageLaunch& launch);

/// The launches as the list of kernels has them, by their places: how much dynamic shared memory a
/// kernel may have is set for each in turn, so that the most of one is set last.
std::vector<std::size_t> kernel_order(const std::vector<ImageLaunch>& launches);

/// The functions of one op; `launches` are of all ops, and the list of kernels has one for each.
void write_image_op(std::ostream& out, const OpSchema& op,
                    const std::vector<ImageLaunch>& launches);

}  // namespace kiln::build
