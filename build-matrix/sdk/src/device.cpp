// SPDX-License-Identifier: Apache-2.0
#include <kiln/sdk/device.hpp>

#include <kiln/sdk/glue.hpp>

#include "contexts.hpp"
#include "driver.hpp"
#include "text.hpp"

namespace kiln::sdk {

namespace {

// The current context if it belongs to `device`, else null.
int32_t current_context(const Driver& driver, CuDevice device, int ordinal, CuContext* context,
                        kiln_error* error) {
  CuContext current = nullptr;
  *context = nullptr;
  CuResult result = driver.context_get_current(&current);
  if (result != kCuSuccess) {
    return prepare_failure(driver, "cuCtxGetCurrent", result, ordinal, error);
  }
  if (current == nullptr) return KILN_OK;
  CuDevice current_device = -1;
  result = driver.context_get_device(&current_device);
  if (result != kCuSuccess) {
    return prepare_failure(driver, "cuCtxGetDevice", result, ordinal, error);
  }
  if (current_device == device) *context = current;
  return KILN_OK;
}

// The driver's handle of a device; initialises the driver if nobody has.
int32_t device_handle(const Driver& driver, int ordinal, CuDevice* device, kiln_error* error) {
  CuResult result = driver.device_get(device, ordinal);
  if (result == kCuNotInitialized) {
    result = driver.init(0);
    if (result != kCuSuccess) return prepare_failure(driver, "cuInit", result, ordinal, error);
    result = driver.device_get(device, ordinal);
  }
  if (result == kCuSuccess) return KILN_OK;
  return prepare_failure(driver, "cuDeviceGet", result, ordinal, error);
}

}  // namespace

OnDevice::~OnDevice() {
  if (!pushed_) return;
  CuContext popped = nullptr;
  const Driver* driver = load_driver(nullptr);  // loaded: enter() pushed with it
  if (driver != nullptr) driver->context_pop(&popped);
}

int32_t OnDevice::enter(DLDevice device, kiln_error* error) {
  if (device.device_type != kDLCUDA || device.device_id < 0) {
    return fail(error, KILN_INVALID_ARGUMENT,
                "prepare: device type %d, number %d; expected type %d (cuda), for which this "
                "variant is built",
                static_cast<int>(device.device_type), static_cast<int>(device.device_id),
                static_cast<int>(kDLCUDA));
  }
  if (loaded_ != nullptr || pushed_) {
    return fail(error, KILN_INVALID_ARGUMENT, "prepare: OnDevice::enter was called twice");
  }
  const int ordinal = device.device_id;
  const Driver* driver = load_driver(error);
  if (driver == nullptr) return KILN_DEVICE_ERROR;
  CuDevice handle = 0;
  CuContext context = nullptr;
  int32_t status = device_handle(*driver, ordinal, &handle, error);
  if (status == KILN_OK) status = current_context(*driver, handle, ordinal, &context, error);
  if (status != KILN_OK) return status;
  if (context == nullptr) {
    status = primary_context(*driver, handle, ordinal, &context, error);
    if (status != KILN_OK) return status;
    const CuResult result = driver->context_push(context);
    if (result != kCuSuccess) {
      return prepare_failure(*driver, "cuCtxPushCurrent", result, ordinal, error);
    }
    pushed_ = true;
  }
  return loaded_context(*driver, context, handle, ordinal, &loaded_, error);
}

const DeviceFacts& OnDevice::facts() const {
  static constexpr DeviceFacts kNotEntered = {};
  return loaded_ != nullptr ? loaded_->facts : kNotEntered;
}

bool OnDevice::has(int kernel) const {
  return loaded_ != nullptr && kernel >= 0 && kernel < kernel_list().count &&
         loaded_->functions[kernel] != nullptr;
}

int32_t OnDevice::launch(int kernel, Grid grid, uint32_t threads, void* stream, void** arguments,
                         kiln_error* error) const {
  const KernelList list = kernel_list();
  if (kernel < 0 || kernel >= list.count) {
    return fail(error, KILN_UNSUPPORTED, "launch: there is no kernel number %d", kernel);
  }
  const KernelSpec& spec = list.kernels[kernel];
  if (!has(kernel)) {
    return fail(error, KILN_UNSUPPORTED,
                "launch: kernel %s of image %s is not in this variant, or needs more shared memory "
                "than this GPU has (%d of %d bytes)",
                spec.function, spec.image, static_cast<int>(spec.shared_bytes),
                facts().shared_bytes_per_block);
  }
  const Driver* driver = load_driver(error);
  if (driver == nullptr) return KILN_DEVICE_ERROR;
  const CuResult result =
      driver->launch_kernel(loaded_->functions[kernel], grid.x, grid.y, grid.z, threads, 1, 1,
                            spec.shared_bytes, stream, arguments, nullptr);
  if (result == kCuSuccess) return KILN_OK;
  Text what;
  what.add("launch of %s with grid %u x %u x %u, %u threads, %u bytes of shared memory",
           spec.function, grid.x, grid.y, grid.z, threads, spec.shared_bytes);
  return driver_failure(*driver, "cuLaunchKernel", result, what.c_str(), error);
}

int32_t prepare(DLDevice device, kiln_error* error) {
  OnDevice gpu;
  return gpu.enter(device, error);
}

}  // namespace kiln::sdk
