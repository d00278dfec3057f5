// SPDX-License-Identifier: Apache-2.0
//
// Hardware: what this machine's processor and driver call themselves, for records of tests. A part
// of probe; decides nothing by itself. Safe from several threads.
#pragma once

#include <string>

#include "kiln/device.hpp"
#include "kiln/host.hpp"

namespace kiln {

/// "AMD EPYC 9454 48-Core Processor", as an x86-64 CPU says it; empty on others.
std::string cpu_model();

/// "580.159.04": the NVIDIA kernel module's; empty where there is none to be seen.
std::string driver_release();

/// What a record of a test on this device names: the GPU, or the CPU's model, or else its level.
std::string hardware_name(const Host& host, Device device);

}  // namespace kiln
