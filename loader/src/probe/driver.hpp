// SPDX-License-Identifier: Apache-2.0
//
// Driver: the few functions of libcuda.so.1 and libnvidia-ml.so.1 that the loader calls, found at
// run time. Kiln links no CUDA, so that one libkiln serves machines with and without a GPU. Used by
// probe and by OwnedWorkspace. Safe from several threads at once.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "kiln/host.hpp"

namespace kiln {

/// What a driver library says of the machine.
struct DriverFacts {
  std::optional<Version> driver;  ///< the newest CUDA version that the driver supports
  std::vector<Gpu> gpus;          ///< visible ones, in CUDA's order
  /// A driver is there, but which GPUs there are cannot be told: CUDA's error and what to do.
  std::string problem;
};

/// Asks NVML: no cuInit. Nothing if there is no NVML, or if its answer cannot be put into CUDA's
/// order and libcuda has to be asked.
std::optional<DriverFacts> ask_nvml();

/// Asks libcuda if this process has initialised it, as one that computes on a GPU has. Nothing
/// otherwise, a child of fork included: what its parent initialised does not count there.
std::optional<DriverFacts> ask_running_libcuda();

/// Asks libcuda, which initialises CUDA in this process. Empty facts if there is none.
DriverFacts ask_libcuda();

/// Initialises CUDA, as the first call of a kernel on a GPU does. Empty where that works; else why
/// not, and what to do: NVML may show the GPUs of a machine on which CUDA does not start.
std::string start_cuda();

/// Device memory, and what keeps it.
struct DeviceMemory {
  void* data = nullptr;
  void* context = nullptr;        ///< the CUcontext that it is in
  bool retained_primary = false;  ///< that is the device's primary one, held for this memory
};

/// In the context that calls on `ordinal` use: the current one if it belongs to that device, else
/// the device's primary context. Throws kDevice.
DeviceMemory device_allocate(int ordinal, std::size_t bytes);

/// Waits for the memory's own context, whichever is current, then frees, and lets go of the primary
/// context. Never throws: at process exit the driver may be gone.
void device_free(int ordinal, const DeviceMemory& memory) noexcept;

}  // namespace kiln
