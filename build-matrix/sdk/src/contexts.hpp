// SPDX-License-Identifier: Apache-2.0
//
// Contexts: which CUDA contexts hold this package's device code. The first call in a context loads
// every image and gets every kernel ready to launch, so that later calls, also those inside a graph
// capture, only look up. Reading takes no lock; loading takes one. Nothing is allocated here, and
// nothing is unloaded before the process ends or the context is destroyed.
#pragma once

#include <kiln/sdk/device.hpp>

#include <atomic>

#include "driver.hpp"

namespace kiln::sdk {

inline constexpr int kMaxKernels = 256;

// One CUDA context into which this package's images are loaded. `context` is stored last and read
// first: who sees it sees the rest. A context may be destroyed and another made at its address; the
// driver's id tells them apart (0 where the driver has no ids, before CUDA 12.0).
struct LoadedContext {
  std::atomic<CuContext> context = nullptr;
  std::atomic<unsigned long long> id = 0;
  std::atomic<void*> attachment = nullptr;
  DeviceFacts facts;
  CuFunction functions[kMaxKernels] = {};  // null: not in this variant, or too large for the device
};

// The device's primary context, retained at the first call and kept.
int32_t primary_context(const Driver& driver, CuDevice device, int ordinal, CuContext* context,
                        kiln_error* error);

// The images in `context`, which is current and belongs to `device`.
int32_t loaded_context(const Driver& driver, CuContext context, CuDevice device, int ordinal,
                       LoadedContext** loaded, kiln_error* error);

// "prepare on cuda:0: <call> failed with …", as KILN_DEVICE_ERROR.
int32_t prepare_failure(const Driver& driver, const char* call, CuResult result, int ordinal,
                        kiln_error* error);

}  // namespace kiln::sdk
