// SPDX-License-Identifier: Apache-2.0
#include "driver.hpp"

#include <dlfcn.h>

#include <cstring>
#include <stdexcept>
#include <string>

namespace {

template <class... Arguments>
void call(const char* name, Arguments... arguments) {
  static void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  void* const found = driver == nullptr ? nullptr : ::dlsym(driver, name);
  if (found == nullptr) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
  const int result = reinterpret_cast<int (*)(Arguments...)>(found)(arguments...);
  if (result != 0)
    throw std::runtime_error(std::string(name) + " gives CUresult " + std::to_string(result));
}

unsigned long long address(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

}  // namespace

Memory::Memory(kiln::Device device, std::size_t bytes)
    : owned_(device),
      on_gpu_(device.kind == kiln::Device::Kind::kCuda),
      data_(static_cast<std::byte*>(owned_.reserve(bytes).data)) {
  if (!on_gpu_) return;
  constexpr int kContextAttribute =
      1;  // CU_POINTER_ATTRIBUTE_CONTEXT: this thread works in the context of Kiln's memory
  void* context = nullptr;
  call("cuPointerGetAttribute", static_cast<void*>(&context), kContextAttribute, address(data_));
  call("cuCtxSetCurrent", context);
}

void Memory::write(const void* from, std::size_t bytes, std::size_t at) {
  if (!on_gpu_) {
    std::memcpy(data_ + at, from, bytes);
  } else {
    call("cuMemcpyHtoD_v2", address(data_ + at), from, bytes);
  }
}

void Memory::read(void* to, std::size_t bytes) const {
  if (!on_gpu_) {
    std::memcpy(to, data_, bytes);
  } else {
    call("cuCtxSynchronize");
    call("cuMemcpyDtoH_v2", to, address(data_), bytes);
  }
}

Queue::Queue(kiln::Device device) : on_gpu_(device.kind == kiln::Device::Kind::kCuda) {
  if (on_gpu_)
    call("cuStreamCreate", static_cast<void*>(&stream_),
         0U);  // waits for the copies of the default stream
}

void Queue::run(const std::function<void(kiln::Stream)>& work) {
  if (!on_gpu_) return work({});
  if (graph_ == nullptr) {
    constexpr int kThreadLocal = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    void* captured = nullptr;
    work(stream());  // a first call may load code, which a capture does not allow
    call("cuStreamBeginCapture_v2", stream_, kThreadLocal);
    work(stream());
    call("cuStreamEndCapture", stream_, static_cast<void*>(&captured));
    call("cuGraphInstantiateWithFlags", static_cast<void*>(&graph_), captured, 0ULL);
  }
  call("cuGraphLaunch", graph_, stream_);
}

void Queue::wait() const {
  if (on_gpu_) call("cuStreamSynchronize", stream_);
}
