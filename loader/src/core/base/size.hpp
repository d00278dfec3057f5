// SPDX-License-Identifier: Apache-2.0
//
// Size: a number of bytes as people read it. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "base/ascii.hpp"

namespace kiln {

/// "1.5 MB".
inline std::string size_text(std::uint64_t bytes) {
  constexpr double kKilobyte = 1000;
  const auto value = static_cast<double>(bytes);
  if (value < kKilobyte) return std::to_string(bytes) + " B";
  if (value < kKilobyte * kKilobyte) return fixed_text(value / kKilobyte, 1) + " kB";
  return fixed_text(value / (kKilobyte * kKilobyte), 1) + " MB";
}

}  // namespace kiln
