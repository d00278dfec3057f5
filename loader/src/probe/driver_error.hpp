// SPDX-License-Identifier: Apache-2.0
//
// Driver error: what an error of the CUDA driver means for a machine, and what to do about it, as a
// table by code (CUDA Driver API, "CUresult"). Part of probe. Pure.
#pragma once

#include <string>
#include <string_view>

namespace kiln {

/// "cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): … Restart …". `who` is what was called.
std::string describe_driver_error(std::string_view who, std::string_view name, int code);

}  // namespace kiln
