// SPDX-License-Identifier: Apache-2.0
#include "probe/driver.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdint>

#include "base/fork.hpp"
#include "kiln/error.hpp"
#include "probe/driver_error.hpp"
#include "probe/library.hpp"

namespace kiln {
namespace {

// The driver's C interface, as far as it is used. CUresult is an int; handles are opaque.
using Context = void*;
using DevicePointer = unsigned long long;
constexpr int kSuccess = 0;
constexpr int kNoDevice = 100;        // CUDA_ERROR_NO_DEVICE: a driver, and no GPU that it may show
constexpr int kCapabilityMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kCapabilityMinor = 76;

/// It stays open, as CUDA keeps threads and callbacks in it.
struct Cuda : Library {
  Cuda() : Library("libcuda.so.1") {}
  int (*init)(unsigned) = need("cuInit");
  int (*version)(int*) = need("cuDriverGetVersion");
  int (*count)(int*) = need("cuDeviceGetCount");
  int (*device)(int*, int) = need("cuDeviceGet");
  int (*attribute)(int*, int, int) = need("cuDeviceGetAttribute");
  int (*name)(char*, int, int) = need("cuDeviceGetName");
  int (*error_name)(int, const char**) = need("cuGetErrorName");
  int (*current)(Context*) = need("cuCtxGetCurrent");
  int (*current_device)(int*) = need("cuCtxGetDevice");
  int (*push)(Context) = need("cuCtxPushCurrent_v2");
  int (*pop)(Context*) = need("cuCtxPopCurrent_v2");
  int (*retain_primary)(Context*, int) = need("cuDevicePrimaryCtxRetain");
  int (*release_primary)(int) = need("cuDevicePrimaryCtxRelease_v2");
  int (*synchronize)() = need("cuCtxSynchronize");
  int (*allocate)(DevicePointer*, std::size_t) = need("cuMemAlloc_v2");
  int (*free)(DevicePointer) = need("cuMemFree_v2");
};

/// Looked up once, and never destroyed: device memory may be freed at exit.
const Cuda& found_cuda() {
  const NoFork whole;
  static const Cuda* const api = new Cuda;
  return *api;
}

/// Null if there is none that can be used.
const Cuda* cuda() {
  const Cuda& api = found_cuda();
  return api.complete() ? &api : nullptr;
}

std::string describe_error(const Cuda& api, const std::string& operation, int result) {
  const char* name = nullptr;
  if (api.error_name(result, &name) != kSuccess || name == nullptr) name = "an unknown error";
  return describe_driver_error(operation, name, result);
}

void check(const Cuda& api, int result, const std::string& operation) {
  if (result == kSuccess) return;
  throw Error(ErrorCode::kDevice,
              operation + ": " + describe_error(api, "the CUDA driver", result));
}

/// Of a libcuda that is there and cannot be used.
std::string describe_unusable(const std::string& found) {
  return "libcuda.so.1 cannot be used (" + found +
         "). Install the driver again, or take that file out of the way";
}

/// The context that calls on a device use.
struct Owner {
  Context context = nullptr;
  int device = -1;
  bool retained = false;  ///< it is the primary one, which must be released
};

/// The current context if it belongs to the device, else the primary one, retained.
Owner find_owner(const Cuda& api, int ordinal) {
  const std::string where = "use cuda:" + std::to_string(ordinal);
  Owner owner;
  check(api, api.init(0), where);
  check(api, api.device(&owner.device, ordinal), where);
  int current_device = -1;
  if (api.current(&owner.context) == kSuccess && owner.context != nullptr &&
      api.current_device(&current_device) == kSuccess && current_device == owner.device) {
    return owner;
  }
  check(api, api.retain_primary(&owner.context, owner.device), where);
  owner.retained = true;
  return owner;
}

/// Makes a context current while it lives. Throws kDevice.
class InContext {
 public:
  InContext(const Cuda& api, Context context) : api_(api) {
    check(api, api.push(context), "enter a CUDA context");
  }
  ~InContext() {
    Context popped = nullptr;
    api_.pop(&popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const Cuda& api_;
};

}  // namespace

std::optional<DriverFacts> ask_running_libcuda() {
  const NoFork whole;
  void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return std::nullopt;
  ::dlclose(library);
  const Cuda* const api = cuda();
  int count = 0;
  if (api == nullptr || api->count(&count) != kSuccess) return std::nullopt;  // not initialised
  return ask_libcuda();
}

DriverFacts ask_libcuda() {
  DriverFacts facts;
  const Cuda* const api = cuda();
  if (api == nullptr) {
    if (const std::string& found = found_cuda().problem(); !found.empty()) {
      facts.problem = describe_unusable(found);
    }
    return facts;
  }
  int version = 0;  // 1000 * major + 10 * minor
  const int versioned = api->version(&version);
  if (versioned == kSuccess && version == 0) return facts;  // its words for no driver
  if (versioned == kSuccess) facts.driver = Version{version / 1000, version % 1000 / 10};
  int count = 0;
  int result = api->init(0);
  if (result == kNoDevice) return facts;
  if (result != kSuccess) {
    facts.problem = describe_error(*api, "cuInit", result);
    return facts;
  }
  result = api->count(&count);
  if (result != kSuccess) facts.problem = describe_error(*api, "cuDeviceGetCount", result);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    int device = 0;
    Gpu gpu;
    gpu.ordinal = ordinal;
    std::array<char, 256> name{};
    result = api->device(&device, ordinal);
    if (result == kSuccess)
      result = api->attribute(&gpu.capability.major, kCapabilityMajor, device);
    if (result == kSuccess)
      result = api->attribute(&gpu.capability.minor, kCapabilityMinor, device);
    if (result == kSuccess) {
      result = api->name(name.data(), static_cast<int>(name.size()) - 1, device);
    }
    if (result != kSuccess) {
      facts.problem =
          describe_error(*api, "asked for GPU " + std::to_string(ordinal) + ", CUDA", result);
      continue;
    }
    gpu.name = name.data();
    facts.gpus.push_back(std::move(gpu));
  }
  return facts;
}

std::string start_cuda() {
  const NoFork whole;
  const Cuda* const api = cuda();
  if (api == nullptr) {
    const std::string& found = found_cuda().problem();
    if (!found.empty()) return describe_unusable(found);
    return "there is no libcuda.so.1, though NVML shows GPUs. Install the driver's CUDA part; in a "
           "container, NVIDIA_DRIVER_CAPABILITIES must have 'compute'";
  }
  const int result = api->init(0);
  return result == kSuccess ? std::string() : describe_error(*api, "cuInit", result);
}

DeviceMemory device_allocate(int ordinal, std::size_t bytes) {
  const std::string operation = "allocate " + std::to_string(bytes) +
                                " bytes of workspace on cuda:" + std::to_string(ordinal);
  const Cuda* const api = cuda();
  if (api == nullptr) {
    throw Error(ErrorCode::kDevice, operation + ": there is no libcuda.so.1. Install the driver");
  }
  const Owner owner = find_owner(*api, ordinal);
  try {
    const InContext inside(*api, owner.context);
    DevicePointer memory = 0;
    check(*api, api->allocate(&memory, bytes), operation);
    // The driver's addresses are integers; with unified addressing they are pointers as they stand.
    return {reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr)
                static_cast<std::uintptr_t>(memory)),
            owner.context, owner.retained};
  } catch (const Error&) {
    if (owner.retained) api->release_primary(owner.device);
    throw;
  }
}

void device_free(int ordinal, const DeviceMemory& memory) noexcept {
  const Cuda* const api = cuda();
  if (api == nullptr || memory.data == nullptr) return;
  try {
    const InContext inside(*api, memory.context);
    api->synchronize();
    api->free(static_cast<DevicePointer>(reinterpret_cast<std::uintptr_t>(memory.data)));
  } catch (const Error&) {  // the context is gone, or the driver is, and the memory with it
  }
  int device = -1;
  if (memory.retained_primary && api->device(&device, ordinal) == kSuccess) {
    api->release_primary(device);
  }
}

}  // namespace kiln
