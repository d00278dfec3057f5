// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace gated_mlp_test {
namespace {

class HostMemory final : public Memory {
 public:
  void* allocate(std::size_t bytes) override {
    void* address = std::aligned_alloc(256, (bytes / 256 + 1) * 256);
    if (address == nullptr) throw std::bad_alloc();
    return address;
  }
  void release(void* address) override { std::free(address); }
  void upload(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void fill(void* to, unsigned char byte, std::size_t bytes) override {
    if (bytes > 0) std::memset(to, byte, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void* make_stream() override { return nullptr; }
  void release_stream(void*) override {}
  void synchronize() override {}
  bool is_gpu() const override { return false; }
  Limits limits() const override { return {}; }
  float replay(void*, int times, const std::function<void()>& work) override {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) work();
    const std::chrono::duration<float, std::milli> passed =
        std::chrono::steady_clock::now() - start;
    return passed.count() / static_cast<float>(times);
  }
};

/// The CUDA runtime's functions, by name. Errors are cudaError_t; 0 is success.
class CudaMemory final : public Memory {
 public:
  explicit CudaMemory(int ordinal) {
    for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
      library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library_ != nullptr) break;
    }
    if (library_ == nullptr) {
      throw std::runtime_error(
          "no CUDA runtime: libcudart.so.13, .12 or .11.0 is not on the library path "
          "(set LD_LIBRARY_PATH)");
    }
    call("cudaSetDevice", ordinal);
    ordinal_ = ordinal;
  }

  void* allocate(std::size_t bytes) override {
    call("cudaSetDevice", ordinal_);
    void* address = nullptr;
    call("cudaMalloc", &address, bytes + 1);
    return address;
  }
  void release(void* address) override { call("cudaFree", address); }
  void upload(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    call("cudaMemcpy", to, from, bytes, kHostToDevice);
    // From pageable memory it returns before the bytes are there, which only the default stream
    // waits for.
    synchronize();
  }
  void fill(void* to, unsigned char byte, std::size_t bytes) override {
    if (bytes == 0) return;
    call("cudaMemset", to, static_cast<int>(byte), bytes);
    synchronize();
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) call("cudaMemcpy", to, from, bytes, kDeviceToHost);
  }
  void* make_stream() override {
    call("cudaSetDevice", ordinal_);
    void* stream = nullptr;
    call("cudaStreamCreateWithFlags", &stream, kNonBlocking);
    return stream;
  }
  void release_stream(void* stream) override { call("cudaStreamDestroy", stream); }
  void synchronize() override { call("cudaDeviceSynchronize"); }
  bool is_gpu() const override { return true; }
  Limits limits() const override {
    Limits limits;
    call("cudaDeviceGetAttribute", &limits.multiprocessors, kMultiprocessors, ordinal_);
    call("cudaDeviceGetAttribute", &limits.shared_bytes_per_block, kSharedBytesPerBlock, ordinal_);
    return limits;
  }

  float replay(void* stream, int times, const std::function<void()>& work) override {
    void* graph = nullptr;
    void* executable = nullptr;
    void* start = nullptr;
    void* stop = nullptr;
    call("cudaStreamBeginCapture", stream, kCaptureThreadLocal);
    work();
    call("cudaStreamEndCapture", stream, &graph);
    call("cudaGraphInstantiateWithFlags", &executable, graph, 0ULL);
    call("cudaEventCreate", &start);
    call("cudaEventCreate", &stop);
    call("cudaEventRecord", start, stream);
    for (int i = 0; i < times; ++i) call("cudaGraphLaunch", executable, stream);
    call("cudaEventRecord", stop, stream);
    call("cudaEventSynchronize", stop);
    float milliseconds = 0;
    call("cudaEventElapsedTime", &milliseconds, start, stop);
    call("cudaEventDestroy", start);
    call("cudaEventDestroy", stop);
    call("cudaGraphExecDestroy", executable);
    call("cudaGraphDestroy", graph);
    return milliseconds / static_cast<float>(times);
  }

 private:
  static constexpr int kHostToDevice = 1;
  static constexpr int kDeviceToHost = 2;
  static constexpr unsigned kNonBlocking = 1;
  static constexpr int kCaptureThreadLocal = 1;
  static constexpr int kMultiprocessors = 16;
  static constexpr int kSharedBytesPerBlock = 97;  // the most a kernel may opt in to

  template <class... Arguments>
  void call(const char* name, Arguments... arguments) const {
    auto* function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    if (function == nullptr) throw std::runtime_error(std::string("libcudart lacks ") + name);
    if (const int error = function(arguments...); error != 0) {
      const auto text =
          reinterpret_cast<const char* (*)(int)>(dlsym(library_, "cudaGetErrorString"));
      throw std::runtime_error(std::string(name) + ": " + text(error));
    }
  }

  void* library_ = nullptr;  // stays open: buffers may be freed at the very end
  int ordinal_ = 0;
};

}  // namespace

std::unique_ptr<Memory> open_memory(kiln::Device device) {
  if (device.kind == kiln::Device::Kind::kCuda) {
    return std::make_unique<CudaMemory>(device.ordinal);
  }
  return std::make_unique<HostMemory>();
}

}  // namespace gated_mlp_test
