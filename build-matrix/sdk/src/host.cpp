// SPDX-License-Identifier: Apache-2.0
//
// Host: the counterpart of device.cpp in CPU packages.
#include <kiln/sdk/glue.hpp>

namespace kiln::sdk {

int32_t prepare(DLDevice device, kiln_error* error) {
  if (device.device_type == kDLCPU) return KILN_OK;
  return fail(error, KILN_INVALID_ARGUMENT,
              "prepare: device type is %d; expected %d (cpu), for which this variant is built",
              static_cast<int>(device.device_type), static_cast<int>(kDLCPU));
}

}  // namespace kiln::sdk
