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

std::atomic<void*>& OnDevice::attachment() const {
  return loaded_->attachment;
}

int32_t OnDevice::launch(int kernel, Grid grid, uint32_t threads, void* stream, void** arguments,
                         kiln_error* error) const {
  return launch(kernel, Launch{.grid = grid, .threads = threads}, stream, arguments, error);
}

int32_t OnDevice::launch(int kernel, const Launch& launch, void* stream, void** arguments,
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
  const CuFunction function = loaded_->functions[kernel];
  const Grid& grid = launch.grid;
  const bool plain = launch.cluster == 1 && !launch.overlap;
  if (!plain && driver->launch_kernel_ex == nullptr) {
    return fail(error, KILN_DEVICE_ERROR,
                "launch of %s: libcuda.so.1 has no function cuLaunchKernelEx; expected the NVIDIA "
                "driver of CUDA 12.0 or newer",
                spec.function);
  }
  CuResult result = kCuSuccess;
  if (plain) {
    result = driver->launch_kernel(function, grid.x, grid.y, grid.z, launch.threads, 1, 1,
                                   spec.shared_bytes, stream, arguments, nullptr);
  } else {
    CuLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (launch.cluster != 1) {
      attributes[count].id = kCuLaunchClusterDimension;
      attributes[count].value.cluster[0] = launch.cluster;
      attributes[count].value.cluster[1] = 1;
      attributes[count++].value.cluster[2] = 1;
    }
    if (launch.overlap && driver->version >= kCuda123) {
      attributes[count].id = kCuLaunchProgrammaticStreamSerialization;
      attributes[count++].value.flag = 1;
    }
    const CuLaunchConfig config = {
        grid.x, grid.y, grid.z, launch.threads, 1, 1, spec.shared_bytes, stream, attributes, count};
    result = driver->launch_kernel_ex(&config, function, arguments, nullptr);
  }
  if (result == kCuSuccess) return KILN_OK;
  Text what;
  what.add("launch of %s with grid %u x %u x %u, %u threads, %u bytes of shared memory",
           spec.function, grid.x, grid.y, grid.z, launch.threads, spec.shared_bytes);
  if (launch.cluster != 1) what.add(", clusters of %u", launch.cluster);
  return driver_failure(*driver, plain ? "cuLaunchKernel" : "cuLaunchKernelEx", result,
                        what.c_str(), error);
}

int32_t OnDevice::map_matrix(const MatrixBox& box, const char* name, void* map,
                             kiln_error* error) const {
  const Driver* driver = load_driver(error);
  if (driver == nullptr) return KILN_DEVICE_ERROR;
  Text what;
  what.add("map of %s [%lld, %lld] in boxes of %u x %u", name, static_cast<long long>(box.rows),
           static_cast<long long>(box.columns), box.box_rows, box.box_columns);
  if (driver->tensor_map_encode_tiled == nullptr) {
    return fail(error, KILN_DEVICE_ERROR,
                "%s: libcuda.so.1 has no function cuTensorMapEncodeTiled; expected the NVIDIA "
                "driver of CUDA 12.0 or newer",
                what.c_str());
  }
  const uint32_t element_bytes = box.dtype == DType::kFloat32 ? 4 : 2;
  const int type = box.dtype == DType::kFloat32   ? kCuTensorMapFloat32
                   : box.dtype == DType::kFloat16 ? kCuTensorMapFloat16
                                                  : kCuTensorMapBFloat16;
  const unsigned long long extents[] = {static_cast<unsigned long long>(box.columns),
                                        static_cast<unsigned long long>(box.rows)};
  const unsigned long long strides[] = {extents[0] * element_bytes};  // of all but the innermost
  const unsigned boxes[] = {box.box_columns, box.box_rows};
  const unsigned steps[] = {1, 1};
  const uint32_t row_bytes = box.box_columns * element_bytes;
  const int swizzle = row_bytes == 32   ? kCuTensorMapSwizzle32
                      : row_bytes == 64 ? kCuTensorMapSwizzle64
                                        : kCuTensorMapSwizzle128;
  const CuResult result = driver->tensor_map_encode_tiled(
      map, type, 2, const_cast<void*>(box.data), extents, strides, boxes, steps, 0, swizzle,
      box.wide_fetch ? kCuTensorMapPromotion256 : kCuTensorMapPromotion128, 0);
  if (result == kCuSuccess) return KILN_OK;
  return driver_failure(*driver, "cuTensorMapEncodeTiled", result, what.c_str(), error);
}

int32_t prepare(DLDevice device, kiln_error* error) {
  OnDevice gpu;
  return gpu.enter(device, error);
}

}  // namespace kiln::sdk
