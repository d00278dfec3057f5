// SPDX-License-Identifier: Apache-2.0
#include "gpu.hpp"

#include <array>
#include <type_traits>

namespace gated_mlp_bench {
namespace {

// CUdevice_attribute
constexpr int kMultiprocessors = 16;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING
constexpr int kCaptureThreadLocal = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

}  // namespace

template <class... Arguments>
void Gpu::call(const char* name, Arguments... arguments) const {
  check(name, driver_.function<int(Arguments...)>(name)(arguments...));
}

void Gpu::check(const char* name, int status) const {
  if (status == 0) return;
  const char* text = nullptr;
  driver_.function<int(int, const char**)>("cuGetErrorName")(status, &text);
  throw std::runtime_error(std::string(name) + ": " +
                           (text != nullptr ? text : std::to_string(status)));
}

Gpu::Gpu(int ordinal) : driver_({"libcuda.so.1"}) {
  if (!driver_.loaded()) {
    throw std::runtime_error(
        "no GPU: libcuda.so.1, which comes with NVIDIA's driver, does not load");
  }
  call("cuInit", 0U);
  call("cuDriverGetVersion", &driver_version_);
  int device = 0;
  call("cuDeviceGet", &device, ordinal);
  std::array<char, 128> name{};
  call("cuDeviceGetName", name.data(), static_cast<int>(name.size()), device);
  name_ = name.data();
  call("cuDeviceGetPCIBusId", name.data(), static_cast<int>(name.size()), device);
  bus_id_ = name.data();
  call("cuDeviceGetAttribute", &multiprocessors_, kMultiprocessors, device);
  call("cuDeviceGetAttribute", &capability_.first, kCapabilityMajor, device);
  call("cuDeviceGetAttribute", &capability_.second, kCapabilityMinor, device);
  void* context = nullptr;
  call("cuDevicePrimaryCtxRetain", &context, device);
  call("cuCtxSetCurrent", context);
  call("cuStreamCreate", &stream_, kNonBlocking);
  launch_kernel_ =
      driver_.function<std::remove_pointer_t<decltype(launch_kernel_)>>("cuLaunchKernel");
}

void Gpu::synchronize() const {
  call("cuStreamSynchronize", stream_);
}

Gpu::Buffer::Buffer(const Gpu& gpu, std::size_t bytes) : gpu_(&gpu), bytes_(bytes) {
  gpu.call("cuMemAlloc_v2", &address_, bytes + 1);
}

Gpu::Buffer::Buffer(Buffer&& other) noexcept
    : gpu_(other.gpu_), address_(std::exchange(other.address_, 0)), bytes_(other.bytes_) {}

Gpu::Buffer& Gpu::Buffer::operator=(Buffer&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Gpu::Buffer::~Buffer() {
  if (address_ != 0) gpu_->driver_.function<int(std::uint64_t)>("cuMemFree_v2")(address_);
}

void Gpu::Buffer::upload(const void* from, std::size_t bytes) {
  gpu_->call("cuMemcpyHtoD_v2", address_, from, bytes);
}

void Gpu::Buffer::download(void* to, std::size_t bytes) const {
  gpu_->synchronize();
  gpu_->call("cuMemcpyDtoH_v2", to, address_, bytes);
}

void Gpu::Buffer::fill(unsigned char byte) {
  gpu_->call("cuMemsetD8Async", address_, byte, bytes_, gpu_->stream_);
}

Gpu::Graph::Graph(const Gpu& gpu, const std::function<void()>& work) : gpu_(&gpu) {
  gpu.synchronize();
  gpu.call("cuStreamBeginCapture_v2", gpu.stream_, kCaptureThreadLocal);
  work();
  gpu.call("cuStreamEndCapture", gpu.stream_, &graph_);
  gpu.call("cuGraphInstantiateWithFlags", &executable_, graph_, 0ULL);
}

Gpu::Graph::Graph(Graph&& other) noexcept
    : gpu_(other.gpu_),
      graph_(std::exchange(other.graph_, nullptr)),
      executable_(std::exchange(other.executable_, nullptr)) {}

Gpu::Graph::~Graph() {
  if (executable_ != nullptr) {
    gpu_->driver_.function<int(void*)>("cuGraphExecDestroy")(executable_);
  }
  if (graph_ != nullptr) gpu_->driver_.function<int(void*)>("cuGraphDestroy")(graph_);
}

double Gpu::Graph::milliseconds(int times) const {
  void* begin = nullptr;
  void* end = nullptr;
  gpu_->call("cuEventCreate", &begin, 0U);
  gpu_->call("cuEventCreate", &end, 0U);
  gpu_->call("cuEventRecord", begin, gpu_->stream_);
  for (int i = 0; i < times; ++i) gpu_->call("cuGraphLaunch", executable_, gpu_->stream_);
  gpu_->call("cuEventRecord", end, gpu_->stream_);
  gpu_->call("cuEventSynchronize", end);
  float passed = 0;
  gpu_->call("cuEventElapsedTime", &passed, begin, end);
  gpu_->call("cuEventDestroy_v2", begin);
  gpu_->call("cuEventDestroy_v2", end);
  return static_cast<double>(passed) / times;
}

void* Gpu::load(const std::string& image, const char* kernel) const {
  void* module = nullptr;
  call("cuModuleLoadData", &module, static_cast<const void*>(image.data()));
  void* function = nullptr;
  call("cuModuleGetFunction", &function, module, kernel);
  return function;
}

void Gpu::launch(void* kernel, unsigned blocks, unsigned threads, void** arguments) const {
  check("cuLaunchKernel",
        launch_kernel_(kernel, blocks, 1, 1, threads, 1, 1, 0, stream_, arguments, nullptr));
}

}  // namespace gated_mlp_bench
