// SPDX-License-Identifier: Apache-2.0
#include "contexts.hpp"

#include <pthread.h>

#include <cstring>

#include <kiln/sdk/images.hpp>

#include "text.hpp"

namespace kiln::sdk {
namespace {

constexpr int kMaxContexts = 64;
constexpr int kMaxDevices = 64;
constexpr int kMaxImages = 32;
constexpr uint32_t kSharedBytesWithoutOptin = 48 * 1024;  // every GPU's limit until it is raised

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // for writing to the two tables
constinit LoadedContext contexts[kMaxContexts];
constinit std::atomic<CuContext>
    primaries[kMaxDevices];  // retained once each, for the life of the process

class Lock {
 public:
  Lock() { pthread_mutex_lock(&mutex); }
  ~Lock() { pthread_mutex_unlock(&mutex); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

LoadedContext* find_loaded(CuContext context, unsigned long long id) {
  for (LoadedContext& slot : contexts) {
    const CuContext held = slot.context.load(std::memory_order_acquire);
    if (held == nullptr) return nullptr;  // slots fill from the front and are never emptied
    if (held == context && slot.id.load(std::memory_order_acquire) == id) return &slot;
  }
  return nullptr;
}

int32_t read_facts(const Driver& driver, CuDevice device, int ordinal, DeviceFacts* facts,
                   kiln_error* error) {
  const struct {
    int attribute;
    int* value;
  } wanted[] = {{kCuCapabilityMajor, &facts->capability_major},
                {kCuCapabilityMinor, &facts->capability_minor},
                {kCuMultiprocessors, &facts->multiprocessors},
                {kCuSharedBytesPerBlockOptin, &facts->shared_bytes_per_block}};
  for (const auto& fact : wanted) {
    const CuResult result = driver.device_get_attribute(fact.value, fact.attribute, device);
    if (result != kCuSuccess) {
      return prepare_failure(driver, "cuDeviceGetAttribute", result, ordinal, error);
    }
  }
  return KILN_OK;
}

// Gets one function ready to launch, so that nothing is left to do inside a graph capture.
int32_t load_function(const Driver& driver, CuModule module, const KernelSpec& kernel,
                      CuFunction* function, kiln_error* error) {
  Text what;
  what.add("prepare: kernel %s of image %s", kernel.function, kernel.image);
  CuResult result = driver.module_get_function(function, module, kernel.function);
  if (result != kCuSuccess) {
    return driver_failure(driver, "cuModuleGetFunction", result, what.c_str(), error);
  }
  if (kernel.shared_bytes > kSharedBytesWithoutOptin) {
    result = driver.function_set_attribute(*function, kCuFunctionMaxDynamicSharedBytes,
                                           static_cast<int>(kernel.shared_bytes));
    if (result != kCuSuccess) {
      return driver_failure(driver, "cuFuncSetAttribute", result, what.c_str(), error);
    }
  }
  // With lazy loading the driver may put off the code's upload to the first launch.
  if (driver.function_load != nullptr) {
    result = driver.function_load(*function);
    if (result != kCuSuccess) {
      return driver_failure(driver, "cuFuncLoad", result, what.c_str(), error);
    }
  }
  return KILN_OK;
}

int32_t load_functions(const Driver& driver, const CuModule* modules, LoadedContext* slot,
                       kiln_error* error) {
  const KernelList list = kernel_list();
  for (int k = 0; k < list.count; ++k) {
    const KernelSpec& kernel = list.kernels[k];
    slot->functions[k] = nullptr;
    // One list serves all GPUs: a tile that needs more shared memory than this one has is absent.
    if (kernel.shared_bytes > static_cast<uint32_t>(slot->facts.shared_bytes_per_block)) continue;
    for (int i = 0; i < kImageCount; ++i) {
      if (strcmp(kImages[i].stem, kernel.image) != 0) continue;
      const int32_t status = load_function(driver, modules[i], kernel, &slot->functions[k], error);
      if (status != KILN_OK) return status;
    }
  }
  return KILN_OK;
}

// Loads every image into the current context. All or nothing: after an error none stays.
int32_t load_images(const Driver& driver, int ordinal, LoadedContext* slot, kiln_error* error) {
  CuModule modules[kMaxImages] = {};
  int32_t status = KILN_OK;
  int count = 0;
  while (count < kImageCount && status == KILN_OK) {
    const CuResult result = driver.module_load_data(&modules[count], kImages[count].bytes);
    if (result == kCuSuccess) {
      ++count;
    } else {
      Text what;
      what.add("prepare: image %s on cuda:%d, of compute capability %d.%d", kImages[count].stem,
               ordinal, slot->facts.capability_major, slot->facts.capability_minor);
      status = driver_failure(driver, "cuModuleLoadData", result, what.c_str(), error);
    }
  }
  if (status == KILN_OK) status = load_functions(driver, modules, slot, error);
  if (status != KILN_OK) {
    while (count > 0) driver.module_unload(modules[--count]);
  }
  return status;
}

// A slot to fill: a free one, or that of a context that was destroyed (same address, another id).
LoadedContext* free_slot(CuContext context) {
  for (LoadedContext& slot : contexts) {
    const CuContext held = slot.context.load(std::memory_order_relaxed);
    if (held == nullptr || held == context) return &slot;
  }
  return nullptr;
}

}  // namespace

int32_t prepare_failure(const Driver& driver, const char* call, CuResult result, int ordinal,
                        kiln_error* error) {
  Text what;
  what.add("prepare on cuda:%d", ordinal);
  return driver_failure(driver, call, result, what.c_str(), error);
}

int32_t primary_context(const Driver& driver, CuDevice device, int ordinal, CuContext* context,
                        kiln_error* error) {
  if (ordinal >= kMaxDevices) {
    return fail(error, KILN_UNSUPPORTED, "prepare on cuda:%d: at most %d devices are supported",
                ordinal, kMaxDevices);
  }
  std::atomic<CuContext>& slot = primaries[ordinal];
  *context = slot.load(std::memory_order_acquire);
  if (*context != nullptr) return KILN_OK;
  const Lock lock;
  *context = slot.load(std::memory_order_acquire);
  if (*context != nullptr) return KILN_OK;
  const CuResult result = driver.primary_context_retain(context, device);
  if (result != kCuSuccess) {
    return prepare_failure(driver, "cuDevicePrimaryCtxRetain", result, ordinal, error);
  }
  slot.store(*context, std::memory_order_release);
  return KILN_OK;
}

int32_t loaded_context(const Driver& driver, CuContext context, CuDevice device, int ordinal,
                       LoadedContext** loaded, kiln_error* error) {
  unsigned long long id = 0;
  if (driver.context_get_id != nullptr) {
    const CuResult result = driver.context_get_id(context, &id);
    if (result != kCuSuccess) {
      return prepare_failure(driver, "cuCtxGetId", result, ordinal, error);
    }
  }
  *loaded = find_loaded(context, id);
  if (*loaded != nullptr) return KILN_OK;
  const Lock lock;
  *loaded = find_loaded(context, id);
  if (*loaded != nullptr) return KILN_OK;
  LoadedContext* slot = free_slot(context);
  if (slot == nullptr || kImageCount > kMaxImages || kernel_list().count > kMaxKernels) {
    return fail(error, KILN_UNSUPPORTED,
                "prepare on cuda:%d: more than %d contexts, %d images or %d kernels", ordinal,
                kMaxContexts, kMaxImages, kMaxKernels);
  }
  int32_t status = read_facts(driver, device, ordinal, &slot->facts, error);
  if (status == KILN_OK) status = load_images(driver, ordinal, slot, error);
  if (status != KILN_OK) return status;
  slot->attachment.store(nullptr, std::memory_order_relaxed);
  slot->id.store(id, std::memory_order_release);
  slot->context.store(context, std::memory_order_release);
  *loaded = slot;
  return KILN_OK;
}

}  // namespace kiln::sdk
