// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kiln::test {

inline bool has(const std::string& html, const std::string& part) {
  return html.find(part) != std::string::npos;
}

}  // namespace kiln::test
