// SPDX-License-Identifier: Apache-2.0
//
// Device memory: buffers, copies and waiting, on the CPU or through the CUDA driver found at run
// time. A real program has its own (cudaMalloc, a framework's allocator); this one lets the example
// build and run where no CUDA is installed.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <kiln/kiln.hpp>
#include <stdexcept>
#include <string>
#include <vector>

class DeviceMemory {
 public:
  explicit DeviceMemory(kiln::Device device) : on_gpu_(device.kind == kiln::Device::Kind::kCuda) {
    if (!on_gpu_) return;
    library_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (library_ == nullptr) throw std::runtime_error(dlerror());
    int handle = 0;
    void* context = nullptr;
    call<unsigned>("cuInit", 0U);
    call<int*, int>("cuDeviceGet", &handle, device.ordinal);
    call<void**, int>("cuDevicePrimaryCtxRetain", &context, handle);
    call<void*>("cuCtxSetCurrent", context);
  }
  ~DeviceMemory() {
    for (void* buffer : buffers_) {
      if (on_gpu_) {
        call<std::uintptr_t>("cuMemFree_v2", reinterpret_cast<std::uintptr_t>(buffer));
      } else {
        std::free(buffer);
      }
    }
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* allocate(std::size_t bytes) {
    void* buffer = nullptr;
    if (on_gpu_) {
      call<void**, std::size_t>("cuMemAlloc_v2", &buffer, bytes);
    } else {
      buffer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
      if (buffer == nullptr) throw std::bad_alloc();
    }
    buffers_.push_back(buffer);
    return buffer;
  }

  void* upload(const std::vector<std::uint16_t>& host) {
    const std::size_t bytes = host.size() * sizeof(host[0]);
    void* buffer = allocate(bytes);
    if (on_gpu_) {
      call<std::uintptr_t, const void*, std::size_t>(
          "cuMemcpyHtoD_v2", reinterpret_cast<std::uintptr_t>(buffer), host.data(), bytes);
    } else {
      std::memcpy(buffer, host.data(), bytes);
    }
    return buffer;
  }

  std::vector<std::uint16_t> download(const void* buffer, std::size_t count) {
    std::vector<std::uint16_t> host(count);
    const std::size_t bytes = count * sizeof(host[0]);
    if (on_gpu_) {
      call<void*, std::uintptr_t, std::size_t>("cuMemcpyDtoH_v2", host.data(),
                                               reinterpret_cast<std::uintptr_t>(buffer), bytes);
    } else {
      std::memcpy(host.data(), buffer, bytes);
    }
    return host;
  }

  void synchronize() {
    if (on_gpu_) call<>("cuCtxSynchronize");
  }

 private:
  template <class... Arguments>
  void call(const char* name, Arguments... arguments) const {
    auto* function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    if (function == nullptr) throw std::runtime_error(std::string(name) + " is not in the driver");
    const int result = function(arguments...);
    if (result != 0) {
      throw std::runtime_error(std::string(name) + " failed with CUDA error " +
                               std::to_string(result));
    }
  }

  bool on_gpu_;
  void* library_ = nullptr;
  std::vector<void*> buffers_;
};
