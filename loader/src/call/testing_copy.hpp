// SPDX-License-Identifier: Apache-2.0
//
// Testing copy: bytes of a test to a device and back, on a GPU by the CUDA driver. Under
// testing::Array; a check that travels with a version asks its host for it (kiln/check.h).
#pragma once

#include <cstddef>

#include "kiln/device.hpp"

namespace kiln {

/// `upload`: `to` is the device's memory, else `from` is. Waits for all work of its context. Throws
/// kDevice.
void copy_for_test(Device device, void* to, const void* from, std::size_t bytes, bool upload);

}  // namespace kiln
