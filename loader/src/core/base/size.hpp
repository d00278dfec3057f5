// SPDX-License-Identifier: Apache-2.0
//
// Size: a number of bytes as people read it. Pure.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace kiln {

/// "1.5 MB".
inline std::string size_text(std::uint64_t bytes) {
  constexpr double kKilobyte = 1000;
  const auto value = static_cast<double>(bytes);
  char text[32];
  if (value < kKilobyte) {
    std::snprintf(text, sizeof text, "%.0f B", value);
  } else if (value < kKilobyte * kKilobyte) {
    std::snprintf(text, sizeof text, "%.1f kB", value / kKilobyte);
  } else {
    std::snprintf(text, sizeof text, "%.1f MB", value / (kKilobyte * kKilobyte));
  }
  return text;
}

}  // namespace kiln
