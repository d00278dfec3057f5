// SPDX-License-Identifier: Apache-2.0
#include "driver.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

#include <kiln/sdk/library.hpp>

namespace kiln::sdk {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

pthread_mutex_t load_mutex = PTHREAD_MUTEX_INITIALIZER;
constinit Driver table = {};
constinit std::atomic<const Driver*> loaded = nullptr;  // &table, once it is complete

// Names with _v2 are the ABI that the headers have meant by the plain name since CUDA 4.0.
const char* fill_table(void* library) {
  const char* missing = nullptr;
  find(library, "cuInit", &table.init, &missing);
  find(library, "cuGetErrorName", &table.get_error_name, &missing);
  find(library, "cuDeviceGet", &table.device_get, &missing);
  find(library, "cuDeviceGetAttribute", &table.device_get_attribute, &missing);
  find(library, "cuDevicePrimaryCtxRetain", &table.primary_context_retain, &missing);
  find(library, "cuCtxGetCurrent", &table.context_get_current, &missing);
  find(library, "cuCtxGetDevice", &table.context_get_device, &missing);
  find(library, "cuCtxPushCurrent_v2", &table.context_push, &missing);
  find(library, "cuCtxPopCurrent_v2", &table.context_pop, &missing);
  find(library, "cuModuleLoadData", &table.module_load_data, &missing);
  find(library, "cuModuleUnload", &table.module_unload, &missing);
  find(library, "cuModuleGetFunction", &table.module_get_function, &missing);
  find(library, "cuFuncSetAttribute", &table.function_set_attribute, &missing);
  find(library, "cuLaunchKernel", &table.launch_kernel, &missing);
  find(library, "cuCtxGetId", &table.context_get_id, nullptr);
  find(library, "cuFuncLoad", &table.function_load, nullptr);
  find(library, "cuLaunchKernelEx", &table.launch_kernel_ex, nullptr);
  find(library, "cuTensorMapEncodeTiled", &table.tensor_map_encode_tiled, nullptr);
  CuResult (*get_version)(int*) = nullptr;
  find(library, "cuDriverGetVersion", &get_version, nullptr);
  if (get_version == nullptr || get_version(&table.version) != kCuSuccess) table.version = 0;
  return missing;
}

const Driver* load_locked(kiln_error* error) {
  const Driver* ready = loaded.load(std::memory_order_acquire);
  if (ready != nullptr) return ready;  // another thread was first
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    fail(error, KILN_DEVICE_ERROR,
         "cannot load %s: %.200s; install the NVIDIA driver, or choose a CPU variant", kLibrary,
         why == nullptr ? "unknown reason" : why);
    return nullptr;
  }
  const char* missing = fill_table(library);
  if (missing != nullptr) {
    fail(error, KILN_DEVICE_ERROR,
         "%s has no function %s; expected the NVIDIA driver of CUDA 11.0 or newer", kLibrary,
         missing);
    dlclose(library);
    return nullptr;
  }
  loaded.store(&table, std::memory_order_release);
  return &table;
}

}  // namespace

const Driver* load_driver(kiln_error* error) {
  const Driver* ready = loaded.load(std::memory_order_acquire);
  if (ready != nullptr) return ready;
  pthread_mutex_lock(&load_mutex);
  ready = load_locked(error);
  pthread_mutex_unlock(&load_mutex);
  return ready;
}

int32_t driver_failure(const Driver& driver, const char* call, CuResult result, const char* what,
                       kiln_error* error) {
  const char* name = nullptr;
  if (driver.get_error_name(result, &name) != kCuSuccess || name == nullptr) name = "unknown error";
  return fail(error, KILN_DEVICE_ERROR, "%s: %s failed with %s (%d)", what, call, name, result);
}

}  // namespace kiln::sdk
