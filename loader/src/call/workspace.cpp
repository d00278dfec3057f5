// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "kiln/error.hpp"
#include "kiln/kernel.hpp"
#include "probe/driver.hpp"

namespace kiln {
namespace {

constexpr std::size_t kAlignment = 256;  // what the C ABI promises to packages

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

OwnedWorkspace::~OwnedWorkspace() {
  release();
}

OwnedWorkspace::OwnedWorkspace(OwnedWorkspace&& other) noexcept
    : device_(other.device_),
      held_(std::exchange(other.held_, {})),
      context_(std::exchange(other.context_, nullptr)),
      retained_primary_(std::exchange(other.retained_primary_, false)) {}

OwnedWorkspace& OwnedWorkspace::operator=(OwnedWorkspace&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(held_, other.held_);
  std::swap(context_, other.context_);
  std::swap(retained_primary_, other.retained_primary_);
  return *this;
}

void OwnedWorkspace::release() noexcept {
  if (held_.data == nullptr) return;
  if (device_.kind == Device::Kind::kCuda) {
    device_free(device_.ordinal, {held_.data, context_, retained_primary_});
  } else {
    std::free(held_.data);
  }
  held_ = {};
}

Workspace OwnedWorkspace::reserve(std::size_t bytes) {
  if (bytes <= held_.bytes) return held_;
  if (device_.kind == Device::Kind::kAuto) {
    throw Error(ErrorCode::kUsage,
                "reserve workspace: the device is automatic, expected Kernel::device()");
  }
  if (bytes > SIZE_MAX - kAlignment) {
    throw Error(ErrorCode::kUsage,
                "reserve workspace: " + std::to_string(bytes) + " bytes is no size");
  }
  // By half at least: a batch that grows row by row must not allocate, and synchronise, each time.
  const std::size_t grown = std::max(bytes, held_.bytes + held_.bytes / 2);
  const std::size_t rounded = (grown + kAlignment - 1) / kAlignment * kAlignment;
  // Freed first: two workspaces at once may be more than the device has.
  release();
  const DeviceMemory memory = allocate(device_, rounded);
  held_ = {memory.data, rounded};
  context_ = memory.context;
  retained_primary_ = memory.retained_primary;
  return held_;
}

}  // namespace kiln
