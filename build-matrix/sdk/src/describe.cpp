// SPDX-License-Identifier: Apache-2.0
#include <kiln/sdk/launch.hpp>

#include "driver.hpp"
#include "text.hpp"

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

int32_t describe(const Described& described, const char* op, const char* kernel, void* map,
                 kiln_error* error) {
  const Matrix& matrix = described.matrix;
  const auto bytes = static_cast<int64_t>(dtype_bytes(matrix.dtype));
  const int64_t stride_bytes = matrix.stride * bytes;
  if (!describable(matrix)) {
    return fail(error, KILN_UNSUPPORTED,
                "%s: %s of kernel %s is [%lld, %lld] of %lld elements at %p with rows %lld bytes "
                "apart; a descriptor needs elements, no more than the tensor has, and an address "
                "and rows that are multiples of 16 bytes",
                op, described.name, kernel, static_cast<long long>(matrix.rows),
                static_cast<long long>(matrix.columns), static_cast<long long>(matrix.elements),
                matrix.data, static_cast<long long>(stride_bytes));
  }
  if (map == nullptr) return KILN_OK;
  const Driver* driver = load_driver(error);
  if (driver == nullptr) return KILN_DEVICE_ERROR;
  if (driver->tensor_map_encode_tiled == nullptr) {
    return fail(error, KILN_DEVICE_ERROR,
                "%s: %s of kernel %s: libcuda.so.1 has no function cuTensorMapEncodeTiled; "
                "expected the NVIDIA driver of CUDA 12.0 or newer",
                op, described.name, kernel);
  }
  const unsigned long long extents[] = {static_cast<unsigned long long>(matrix.columns),
                                        static_cast<unsigned long long>(matrix.rows)};
  const unsigned long long strides[] = {static_cast<unsigned long long>(stride_bytes)};
  const int64_t box_columns = min(described.columns, 128 / bytes);
  const unsigned boxes[] = {static_cast<unsigned>(box_columns),
                            static_cast<unsigned>(min(described.rows, 256))};
  const unsigned steps[] = {1, 1};
  const int64_t row_bytes = box_columns * bytes;
  const int swizzle = row_bytes == 32   ? kCuTensorMapSwizzle32
                      : row_bytes == 64 ? kCuTensorMapSwizzle64
                                        : kCuTensorMapSwizzle128;
  const CuResult result =
      driver->tensor_map_encode_tiled(map, map_type(matrix.dtype), 2, matrix.data, extents, strides,
                                      boxes, steps, 0, swizzle, kCuTensorMapPromotion128, 0);
  if (result == kCuSuccess) return KILN_OK;
  Text what;
  what.add("%s: %s of kernel %s", op, described.name, kernel);
  return driver_failure(*driver, "cuTensorMapEncodeTiled", result, what.c_str(), error);
}

}  // namespace kiln::sdk
