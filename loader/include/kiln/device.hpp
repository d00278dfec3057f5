// SPDX-License-Identifier: Apache-2.0
//
// Device: what to compute on. A word of requests, tensors and kernels alike. Pure value.
#pragma once

#include "kiln/compiler.hpp"

#include <string>

namespace kiln {

struct Device {
  enum class Kind { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;  ///< kAuto: GPU 0 where there is one, else the CPU
  int ordinal = 0;          ///< CUDA's, after CUDA_VISIBLE_DEVICES
  static Device automatic() { return {}; }
  static Device cpu() { return {Kind::kCpu, 0}; }
  static Device cuda(int ordinal) { return {Kind::kCuda, ordinal}; }
  bool operator==(const Device&) const = default;
};
std::string to_string(Device device);  ///< "auto", "cpu", "cuda:0"

}  // namespace kiln
