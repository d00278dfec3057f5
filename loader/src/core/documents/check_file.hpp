// SPDX-License-Identifier: Apache-2.0
//
// CheckFile: where a version's numeric check lies in its dev layer: a library for each architecture
// of its variants (kiln/check.h). `kiln build` puts it there, `kiln test` and `kiln diff` run it.
#pragma once

#include <string>

#include "kiln/host.hpp"

namespace kiln {

/// "check/x86_64.so"
inline std::string check_file(Arch arch) {
  return "check/" + std::string(to_string(arch)) + ".so";
}

}  // namespace kiln
