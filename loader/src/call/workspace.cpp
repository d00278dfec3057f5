// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/signals.hpp"
#include "kiln/error.hpp"
#include "kiln/kernel.hpp"
#include "probe/driver.hpp"

namespace kiln {
namespace {

constexpr std::size_t kAlignment = 256;  // what the C ABI promises to packages

std::size_t rounded(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Host memory has no context.
DeviceMemory allocate(Device device, std::size_t bytes) {
  if (device.kind == Device::Kind::kCuda) return device_allocate(device.ordinal, bytes);
  void* const memory = std::aligned_alloc(kAlignment, bytes);
  if (memory == nullptr) {
    throw Error(ErrorCode::kDevice, "allocate " + std::to_string(bytes) +
                                        " bytes of workspace on the CPU: out of memory");
  }
  return {.data = memory};
}

}  // namespace

void OwnedWorkspace::Free::operator()(void* memory) const noexcept {
  if (device.kind == Device::Kind::kCuda) {
    device_free(device.ordinal, {memory, context, retained_primary});
  } else {
    std::free(memory);
  }
}

Workspace OwnedWorkspace::reserve(std::size_t bytes) {
  const std::size_t held = memory_ ? bytes_ : 0;
  if (bytes <= held) return {memory_.get(), held};
  if (device_.kind == Device::Kind::kAuto) {
    throw Error(ErrorCode::kUsage,
                "reserve workspace: the device is automatic, expected Kernel::device()");
  }
  if (bytes > SIZE_MAX - kAlignment) {
    throw Error(ErrorCode::kUsage,
                "reserve workspace: " + std::to_string(bytes) + " bytes is not a size");
  }
  const NoCancel whole;  // the driver waits, and nothing may unwind through it
  // Freed first: two workspaces at once may be more than the device has.
  memory_.reset();
  const std::size_t needed = rounded(bytes);
  // By half at least: a batch that grows row by row must not allocate, and synchronise, each time.
  const std::size_t grown = std::max(needed, rounded(held + held / 2));
  DeviceMemory memory;
  try {
    memory = allocate(device_, grown);
    bytes_ = grown;
  } catch (const Error&) {
    if (grown == needed) throw;
    memory = allocate(device_, needed);  // without the room to grow
    bytes_ = needed;
  }
  memory_ = {memory.data, Free{device_, memory.context, memory.retained_primary}};
  return {memory.data, bytes_};
}

}  // namespace kiln
