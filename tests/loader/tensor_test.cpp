// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "kiln/tensor.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

std::vector<std::int64_t> shape_of(const Tensor& tensor) {
  const DLTensor dl = tensor.dl();
  return {dl.shape, dl.shape + dl.ndim};
}
std::vector<std::int64_t> strides_of(const Tensor& tensor) {
  const DLTensor dl = tensor.dl();
  return {dl.strides, dl.strides + dl.ndim};
}
using Extents = std::vector<std::int64_t>;

TEST_CASE("tensor: row-major and compact, in DLPack's words") {
  std::array<float, 24> data{};
  const Tensor tensor(data.data(), DType::kBFloat16, {2, 3, 4}, Device::cuda(3));
  CHECK(shape_of(tensor) == Extents{2, 3, 4});
  CHECK(strides_of(tensor) == Extents{12, 4, 1});
  CHECK(tensor.dl().data == data.data());
  CHECK(tensor.dl().byte_offset == 0);
  CHECK(tensor.dl().device.device_type == kDLCUDA);
  CHECK(tensor.dl().device.device_id == 3);
  CHECK(tensor.dl().dtype.code == kDLBfloat);
  CHECK(tensor.dl().dtype.bits == 16);
  CHECK(tensor.dimensions() == 3);
  CHECK(tensor.extent(2) == 4);
  CHECK_FALSE(tensor.empty());
  CHECK(Tensor().empty());
  CHECK(Tensor(nullptr, DType::kFloat32, {0, 4}, Device::cpu()).extent(0) == 0);
  CHECK(size_of(DType::kFloat32) == 4);
  CHECK(size_of(DType::kFloat16) == 2);
}

TEST_CASE("tensor: each dtype has DLPack's code and bits") {
  struct Case {
    DType dtype;
    std::uint8_t code;
    std::uint8_t bits;
  };
  const std::vector<Case> table = {
      {DType::kFloat64, kDLFloat, 64}, {DType::kFloat32, kDLFloat, 32},
      {DType::kFloat16, kDLFloat, 16}, {DType::kBFloat16, kDLBfloat, 16},
      {DType::kFloat8E4M3FN, 10, 8},   {DType::kFloat8E5M2, 12, 8},
      {DType::kInt64, kDLInt, 64},     {DType::kInt32, kDLInt, 32},
      {DType::kInt16, kDLInt, 16},     {DType::kInt8, kDLInt, 8},
      {DType::kUInt8, kDLUInt, 8},     {DType::kBool, 6, 8},
  };
  for (const Case& each : table) {
    const Tensor tensor(nullptr, each.dtype, {2, 2}, Device::cpu());
    const DLDataType dtype = tensor.dl().dtype;
    CHECK(dtype.code == each.code);
    CHECK(dtype.bits == each.bits);
    CHECK(dtype.lanes == 1);
    CHECK(size_of(each.dtype) == std::size_t{each.bits} / 8);
  }
}

TEST_CASE("tensor: a copy points into itself") {
  std::array<float, 4> data{};
  const Tensor first(data.data(), DType::kFloat32, {2, 2}, Device::cpu());
  const Tensor copy = first;
  CHECK(copy.dl().shape != first.dl().shape);
}

TEST_CASE("tensor: from DLPack, with and without strides") {
  std::array<float, 12> data{};
  std::array<std::int64_t, 2> shape{3, 2};
  std::array<std::int64_t, 2> strides{4, 1};
  DLTensor dl{};
  dl.data = data.data();
  dl.device = {kDLCPU, 0};
  dl.ndim = 2;
  dl.dtype = {kDLFloat, 32, 1};
  dl.shape = shape.data();
  dl.byte_offset = 8;
  CHECK(strides_of(Tensor(dl)) == Extents{2, 1});
  dl.strides = strides.data();
  const Tensor tensor(dl);
  shape = {9, 9};  // copied, not kept
  CHECK(shape_of(tensor) == Extents{3, 2});
  CHECK(strides_of(tensor) == Extents{4, 1});
  CHECK(tensor.dl().byte_offset == 8);
}

TEST_CASE("tensor: columns keep the row stride and move the start") {
  std::array<std::uint16_t, 12> data{};
  const Tensor packed(data.data(), DType::kFloat16, {2, 6}, Device::cpu());
  const Tensor right = packed.columns(3, 3);
  CHECK(shape_of(right) == Extents{2, 3});
  CHECK(strides_of(right) == Extents{6, 1});
  CHECK(right.dl().byte_offset == 6);
  const Tensor last = right.columns(1, 2);
  CHECK(last.dl().byte_offset == 8);
  CHECK(packed.columns(6, 0).extent(1) == 0);
}

TEST_CASE("tensor: shapes that cannot be are refused") {
  const auto make = [](std::initializer_list<std::int64_t> shape, Device device) {
    return error_of([&] { Tensor(nullptr, DType::kFloat32, shape, device); }).code();
  };
  CHECK(make({1, 1, 1, 1, 1, 1, 1, 1, 1}, Device::cpu()) == ErrorCode::kUsage);
  CHECK(make({-1}, Device::cpu()) == ErrorCode::kUsage);
  CHECK(make({INT64_MAX, 3}, Device::cpu()) == ErrorCode::kUsage);
  CHECK(make({1}, Device::automatic()) == ErrorCode::kUsage);
  const Tensor packed(nullptr, DType::kFloat32, {2, 6}, Device::cpu());
  CHECK(error_of([&] { packed.columns(5, 2); }).code() == ErrorCode::kUsage);
  CHECK(error_of([&] { packed.columns(-1, 2); }).code() == ErrorCode::kUsage);
  CHECK(error_of([&] { packed.columns(1, INT64_MAX); }).code() == ErrorCode::kUsage);
  CHECK(error_of([&] { Tensor().columns(0, 0); }).code() == ErrorCode::kUsage);
  DLTensor dl{};
  dl.ndim = 9;
  CHECK(error_of([&] { Tensor{dl}; }).code() == ErrorCode::kUsage);
  dl.ndim = -1;
  CHECK(error_of([&] { Tensor{dl}; }).code() == ErrorCode::kUsage);
  dl.ndim = 2;  // without a shape
  CHECK(error_of([&] { Tensor{dl}; }).code() == ErrorCode::kUsage);
}

TEST_CASE("tensor: a NULL shape is that of a scalar alone") {
  DLTensor dl{};
  dl.dtype = {kDLFloat, 32, 1};
  CHECK(Tensor(dl).dimensions() == 0);
  dl.ndim = 2;
  const Error error = error_of([&] { Tensor{dl}; });
  CHECK(error.code() == ErrorCode::kUsage);
  CHECK_CONTAINS(error.what(), "the DLTensor's shape is NULL, expected 2 extents");
}

}  // namespace
}  // namespace kiln::test
