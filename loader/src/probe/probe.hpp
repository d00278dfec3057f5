// SPDX-License-Identifier: Apache-2.0
//
// Probe: the facts of this machine, as resolve wants them. The first stage; reads the CPU, glibc,
// the driver and the environment, and links no CUDA: NVML or libcuda is looked up at run time, and
// a machine with neither simply has no GPUs. Safe to call from several threads at once.
//
// Where this process uses CUDA already, libcuda answers, in microseconds. Else NVML is asked, which
// takes about 20 ms on a server with H200s, but needs no cuInit, which would spoil CUDA for a
// process that forks later. NVML counts GPUs in PCI order and CUDA, by default, fastest first. So
// where the visible GPUs differ and CUDA_DEVICE_ORDER is not PCI_BUS_ID, or CUDA_VISIBLE_DEVICES
// names what NVML cannot map, libcuda is asked, because ordinals must be CUDA's.
//
// GPUs and driver can be overridden, to try how a process would choose on a machine with others; a
// whole machine is described by a file of facts (documents/host.hpp):
//   KILN_OVERRIDE_CUDA   12.2 (what the driver supports), or empty for no driver
//   KILN_OVERRIDE_DRIVER 570.124.06 (its own version), or empty for one that is not known
//   KILN_OVERRIDE_SM     9.0,8.0 (a GPU each, in order), or empty for no GPU
#pragma once

#include <string>
#include <vector>

#include "kiln/host.hpp"

namespace kiln {

/// Everything but `libraries`; driver and GPUs only if they are asked for. Throws kUsage for an
/// override that does not parse.
Host probe_host(bool ask_gpus = true);

/// Sorts the sonames into host.libraries, which this machine has, and host.absent. A library of
/// NVIDIA's is asked for by dlopen. An index may name any other one: that is only looked for, so
/// that data alone runs no constructor.
void probe_libraries(Host& host, std::vector<std::string> sonames);

/// The libraries of CUDA and its neighbours that kernels look up: what `kiln host` asks for where
/// no package is named.
std::vector<std::string> usual_libraries();

}  // namespace kiln
