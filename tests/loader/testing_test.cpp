// SPDX-License-Identifier: Apache-2.0
//
// Testing: what a package's check finds, and what it must not overlook.
#include "kiln/testing.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "published.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

using testing::Array;
using testing::Check;
using Values = std::vector<double>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Kernel sample() {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library("plain"))});
  return get_kernel("sample", {.version = 1,
                               .device = Device::cpu(),
                               .registry = published.root().string(),
                               .cache = scratch / "cache"});
}

TEST_CASE("testing: rows lie apart, and a write between them or around them is seen") {
  Array array(Device::cpu(), DType::kFloat32, {2, 3}, 2);
  array.set(Values{1, 2, 3, 4, 5, 6});
  CHECK(array.values() == Values{1, 2, 3, 4, 5, 6});
  CHECK(array.guards_hold());
  const Tensor tensor = array.tensor();
  CHECK(tensor.dl().strides[0] == 5);
  auto* data = static_cast<float*>(tensor.dl().data);
  CHECK(data[5] == 4);
  for (const int outside : {-1, 3, 4, 8}) {
    const float poison = data[outside];
    data[outside] = 0;
    CHECK_FALSE(array.guards_hold());
    data[outside] = poison;
    CHECK(array.guards_hold());
  }
  CHECK(Array(Device::cpu(), DType::kFloat32, {0, 3}, 2).guards_hold());
}

TEST_CASE("testing: an array of another number of values, or of 8-bit numbers, is refused") {
  Array array(Device::cpu(), DType::kFloat32, {2, 3}, 2);
  for (const std::size_t count : {0U, 5U, 7U, 8U}) {
    CAPTURE(count);
    const Error error = error_of([&] { array.set(Values(count, 1)); });
    CHECK(error.code() == ErrorCode::kUsage);
    CHECK_CONTAINS(error.what(), "6");
    CHECK_CONTAINS(error.what(), std::to_string(count));
  }
  for (const DType dtype : {DType::kFloat8E4M3FN, DType::kFloat8E5M2}) {
    CHECK(error_of([&] { Array(Device::cpu(), dtype, {2, 3}); }).code() == ErrorCode::kUsage);
  }
}

TEST_CASE("testing: an error is a part of the largest value, or of each element's terms") {
  const Kernel kernel = sample();
  Array found(Device::cpu(), DType::kFloat32, {3});
  found.set(Values{1000, 1, kNaN});
  const auto passes = [&](const Values& expected, double bound, const Values& terms = {}) {
    return Check(kernel).compare("float32", found, expected, bound, terms);
  };
  CHECK(passes({1000, 1.5, kNaN}, 1e-3));
  CHECK_FALSE(passes({1000, 3, kNaN}, 1e-3));
  CHECK_FALSE(passes({1000, 1.5, kNaN}, 1e-3, {1000, 1, 1}));
  CHECK(passes({1000, 1.5, kNaN}, 1e-3, {1000, 500, 1}));
  CHECK_FALSE(passes({1000, 1, 0}, 1));  // NaN is no number
  CHECK_FALSE(passes({1000, kNaN, kNaN}, 1));
  CHECK_FALSE(passes({1000, 1}, 1));
  CHECK_FALSE(passes({1000, 1, kNaN}, 1, {1000}));
}

TEST_CASE("testing: a refusal has its code and its words") {
  Check check(sample());
  const auto refuse = [] { throw Error(ErrorCode::kInvalidCall, "forward: y overlaps x"); };
  CHECK(check.refused("overlaps", refuse));
  CHECK(check.passed());
  CHECK_FALSE(check.refused("another", refuse));
  CHECK_FALSE(check.refused("overlaps", refuse, ErrorCode::kUsage));
  CHECK_FALSE(check.refused("overlaps", [] {}));
  CHECK_FALSE(check.passed());
}

}  // namespace
}  // namespace kiln::test
