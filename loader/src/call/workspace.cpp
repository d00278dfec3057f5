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

void* allocate(Device device, std::size_t bytes) {
  if (device.kind == Device::Kind::kCuda) return device_allocate(device.ordinal, bytes);
  void* const memory = std::aligned_alloc(kAlignment, bytes);
  if (memory == nullptr) {
    throw Error(ErrorCode::kDevice, "allocate " + std::to_string(bytes) +
                                        " bytes of workspace on the CPU: out of memory");
  }
  return memory;
}

void release(Device device, Workspace& held) noexcept {
  if (held.data == nullptr) return;
  if (device.kind == Device::Kind::kCuda) {
    device_free(device.ordinal, held.data);
  } else {
    std::free(held.data);
  }
  held = {};
}

}  // namespace

OwnedWorkspace::~OwnedWorkspace() {
  release(device_, held_);
}

OwnedWorkspace::OwnedWorkspace(OwnedWorkspace&& other) noexcept
    : device_(other.device_), held_(std::exchange(other.held_, {})) {}

OwnedWorkspace& OwnedWorkspace::operator=(OwnedWorkspace&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(held_, other.held_);
  return *this;
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
  release(device_, held_);
  held_ = {allocate(device_, rounded), rounded};
  return held_;
}

}  // namespace kiln
