// SPDX-License-Identifier: Apache-2.0
//
// Machine: where and when a measurement was taken, for the check's record.
#pragma once

#include <string>

namespace gated_mlp_test {

std::string cpu_name();  ///< as /proc/cpuinfo has it; "unknown CPU" without one
std::string today();     ///< UTC, "2026-11-21"

}  // namespace gated_mlp_test
