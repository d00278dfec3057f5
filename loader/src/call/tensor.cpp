// SPDX-License-Identifier: Apache-2.0
#include "kiln/tensor.hpp"

#include <algorithm>
#include <iterator>
#include <string>

#include "call/table.hpp"
#include "kiln/abi.h"
#include "kiln/error.hpp"

namespace kiln {
namespace {

struct NamedType {
  std::string_view name;
  DLDataType type;
};
constexpr NamedType kDTypes[] = {  // as DType has them
    {"float32", {kDLFloat, 32, 1}},
    {"float16", {kDLFloat, 16, 1}},
    {"bfloat16", {kDLBfloat, 16, 1}},
    {"float64", {kDLFloat, 64, 1}},
    {"float8_e4m3fn", {KILN_DL_FLOAT8_E4M3FN, 8, 1}},
    {"float8_e5m2", {KILN_DL_FLOAT8_E5M2, 8, 1}},
    {"int8", {kDLInt, 8, 1}},
    {"int16", {kDLInt, 16, 1}},
    {"int32", {kDLInt, 32, 1}},
    {"int64", {kDLInt, 64, 1}},
    {"uint8", {kDLUInt, 8, 1}},
    {"bool", {KILN_DL_BOOL, 8, 1}}};
static_assert(std::size(kDTypes) == static_cast<std::size_t>(DType::kBool) + 1);

DLDataType dl_dtype(DType dtype) {
  const auto at = static_cast<std::size_t>(dtype);
  if (at < std::size(kDTypes)) return kDTypes[at].type;
  throw Error(ErrorCode::kUsage, "make tensor: the dtype is not one of kiln::DType");
}

[[noreturn]] void fail(const std::string& found) {
  throw Error(ErrorCode::kUsage, "make tensor: " + found);
}

/// As DLPack has it, without strides: row-major and compact.
DLTensor compact(void* data, DType dtype, std::span<const std::int64_t> shape, Device device) {
  if (device.kind == Device::Kind::kAuto) {
    fail("the device is automatic, expected the one that holds the memory: cpu() or cuda(n)");
  }
  const auto negative = std::find_if(shape.begin(), shape.end(), [](auto n) { return n < 0; });
  if (negative != shape.end()) fail("extent " + std::to_string(*negative) + " is negative");
  DLTensor tensor{};
  tensor.data = data;
  tensor.device = dl_device(device);
  tensor.ndim = static_cast<std::int32_t>(shape.size());
  tensor.dtype = dl_dtype(dtype);
  tensor.shape = const_cast<std::int64_t*>(shape.data());  // DLPack has no const
  return tensor;
}

}  // namespace

std::optional<DLDataType> find_dtype(std::string_view name) {
  const auto found = std::ranges::find(kDTypes, name, &NamedType::name);
  if (found == std::end(kDTypes)) return std::nullopt;
  return found->type;
}

std::size_t size_of(DType dtype) {
  return dl_dtype(dtype).bits / std::size_t{8};
}

Tensor::Tensor(void* data, DType dtype, std::span<const std::int64_t> shape, Device device)
    : Tensor(compact(data, dtype, shape, device)) {}

Tensor::Tensor(const DLTensor& tensor) : defined_(true), tensor_(tensor) {
  if (tensor.ndim < 0) fail("ndim is " + std::to_string(tensor.ndim) + ", expected 0 or more");
  if (tensor.ndim > kMaxDimensions) {
    fail(std::to_string(tensor.ndim) + " dimensions, expected at most " +
         std::to_string(kMaxDimensions));
  }
  const auto dimensions = static_cast<std::size_t>(tensor.ndim);
  if (dimensions > 0 && tensor.shape == nullptr) {
    fail("the DLTensor's shape is NULL, expected " + std::to_string(dimensions) + " extents");
  }
  std::copy_n(tensor.shape, dimensions, shape_.begin());
  if (tensor.strides != nullptr) {
    std::copy_n(tensor.strides, dimensions, strides_.begin());
    return;
  }
  std::int64_t stride = 1;  // DLPack: no strides means row-major and compact
  for (std::size_t i = dimensions; i-- > 0;) {
    strides_[i] = stride;
    if (__builtin_mul_overflow(stride, std::max<std::int64_t>(shape_[i], 1), &stride)) {
      fail("the extents multiply to more than 2^63 elements");
    }
  }
}

Tensor Tensor::columns(std::int64_t begin, std::int64_t count) const {
  if (!defined_ || tensor_.ndim != 2) {
    fail("columns of a tensor of " + std::to_string(tensor_.ndim) + " dimensions, expected 2");
  }
  if (begin < 0 || count < 0 || begin > shape_[1] || count > shape_[1] - begin) {
    fail("columns " + std::to_string(begin) + " to " + std::to_string(begin) + " + " +
         std::to_string(count) + " of a tensor that has " + std::to_string(shape_[1]));
  }
  Tensor slice = *this;
  slice.shape_[1] = count;
  slice.tensor_.byte_offset += static_cast<std::uint64_t>(begin * strides_[1]) *
                               tensor_.dtype.bits * tensor_.dtype.lanes / 8;
  return slice;
}

DLTensor Tensor::dl() const& {
  DLTensor tensor = tensor_;
  // DLPack has no const; a package does not write to shapes.
  tensor.shape = const_cast<std::int64_t*>(shape_.data());
  tensor.strides = const_cast<std::int64_t*>(strides_.data());
  return tensor;
}

}  // namespace kiln
