// SPDX-License-Identifier: Apache-2.0
#include <kiln/sdk/launch.hpp>

#include "driver.hpp"

namespace kiln::sdk {
namespace {

// CUtensorMapDataType. The copy engine moves bytes: dtypes of one byte are one.
int map_type(DType dtype) {
  switch (dtype) {
    case DType::kInt16:
      return 1;
    case DType::kInt32:
      return 3;
    case DType::kInt64:
      return 5;
    case DType::kFloat16:
      return kCuTensorMapFloat16;
    case DType::kFloat32:
      return kCuTensorMapFloat32;
    case DType::kFloat64:
      return 8;
    case DType::kBFloat16:
      return kCuTensorMapBFloat16;
    default:
      return 0;
  }
}

}  // namespace

int32_t describe(const Tensor& matrix, int64_t rows, int64_t columns, const char* name,
                 const char* kernel, void* map, kiln_error* error) {
  const auto bytes = static_cast<int64_t>(dtype_bytes(matrix.dtype));
  if (!describable(matrix)) {
    return fail(error, KILN_UNSUPPORTED,
                "%s of kernel %s is [%lld, %lld] at %p with rows %lld bytes apart; a descriptor "
                "needs elements, and an address and rows that are multiples of 16 bytes",
                name, kernel, static_cast<long long>(matrix.shape[0]),
                static_cast<long long>(matrix.shape[1]), matrix.data,
                static_cast<long long>(matrix.stride[0] * bytes));
  }
  const Driver* driver = load_driver(error);
  if (driver == nullptr) return KILN_DEVICE_ERROR;
  if (driver->tensor_map_encode_tiled == nullptr) {
    return fail(error, KILN_DEVICE_ERROR,
                "%s of kernel %s: libcuda.so.1 has no function cuTensorMapEncodeTiled; expected "
                "the NVIDIA driver of CUDA 12.0 or newer",
                name, kernel);
  }
  const unsigned long long extents[] = {static_cast<unsigned long long>(matrix.shape[1]),
                                        static_cast<unsigned long long>(matrix.shape[0])};
  const unsigned long long strides[] = {static_cast<unsigned long long>(matrix.stride[0] * bytes)};
  const int64_t box_columns = min(columns, 128 / bytes);
  const unsigned boxes[] = {static_cast<unsigned>(box_columns),
                            static_cast<unsigned>(min(rows, 256))};
  const unsigned steps[] = {1, 1};
  const int64_t row_bytes = box_columns * bytes;
  const int swizzle = row_bytes == 32   ? kCuTensorMapSwizzle32
                      : row_bytes == 64 ? kCuTensorMapSwizzle64
                                        : kCuTensorMapSwizzle128;
  const CuResult result =
      driver->tensor_map_encode_tiled(map, map_type(matrix.dtype), 2, matrix.data, extents, strides,
                                      boxes, steps, 0, swizzle, kCuTensorMapPromotion128, 0);
  if (result == kCuSuccess) return KILN_OK;
  return driver_failure(*driver, "cuTensorMapEncodeTiled", result, name, error);
}

}  // namespace kiln::sdk
