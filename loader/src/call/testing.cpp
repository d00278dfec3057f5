// SPDX-License-Identifier: Apache-2.0
#include "kiln/testing.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "kiln/error.hpp"
#include "kiln/float16.hpp"

namespace kiln::testing {
namespace {

constexpr std::size_t kGuard = 256;
constexpr std::byte kPoison{0xff};

/// Calls `visit` with a function from double to the dtype's bits, and one back.
template <class Visit>
void with_dtype(DType dtype, Visit visit) {
  const auto plain = [&]<class Value>(Value) {
    visit([](double value) { return static_cast<Value>(value); },
          [](Value value) { return static_cast<double>(value); });
  };
  switch (dtype) {
    case DType::kFloat64:
      return plain(double{});
    case DType::kFloat32:
      return plain(float{});
    case DType::kInt8:
      return plain(std::int8_t{});
    case DType::kInt16:
      return plain(std::int16_t{});
    case DType::kInt32:
      return plain(std::int32_t{});
    case DType::kInt64:
      return plain(std::int64_t{});
    case DType::kUInt8:
    case DType::kBool:
      return plain(std::uint8_t{});
    case DType::kFloat16:
      return visit([](double value) { return to_float16(static_cast<float>(value)); },
                   [](std::uint16_t bits) { return static_cast<double>(from_float16(bits)); });
    case DType::kBFloat16:
      return visit([](double value) { return to_bfloat16(static_cast<float>(value)); },
                   [](std::uint16_t bits) { return static_cast<double>(from_bfloat16(bits)); });
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
      break;
  }
  throw Error(ErrorCode::kUsage,
              "make a test's array: 8-bit floating-point types have no conversion here");
}

}  // namespace

Array::Array(Device device, DType dtype, std::vector<std::int64_t> shape, std::int64_t gap)
    : device_(device),
      dtype_(dtype),
      shape_(std::move(shape)),
      strides_(shape_.size(), 1),
      memory_(device) {
  with_dtype(dtype, [](auto, auto) {});
  for (const std::int64_t extent : shape_) size_ *= static_cast<std::size_t>(extent);
  if (!shape_.empty()) row_ = static_cast<std::size_t>(shape_.back());
  distance_ = row_ + static_cast<std::size_t>(gap);
  for (std::size_t d = shape_.size(); d-- > 1;) {
    strides_[d - 1] =
        d + 1 == shape_.size() ? static_cast<std::int64_t>(distance_) : strides_[d] * shape_[d];
  }
  const std::vector<std::byte> poison(bytes(), kPoison);
  data_ = static_cast<std::byte*>(memory_.reserve(poison.size()).data);
  copy(data_, poison.data(), poison.size(), true);
}

std::size_t Array::bytes() const {
  const std::size_t elements = size_ == 0 ? 0 : (size_ / row_ - 1) * distance_ + row_;
  return elements * size_of(dtype_) + 2 * kGuard;
}

std::vector<std::byte> Array::download() const {
  std::vector<std::byte> all(bytes());
  copy(all.data(), data_, all.size(), false);
  return all;
}

void Array::set(std::span<const double> values) {
  if (values.size() != size_) {
    throw Error(ErrorCode::kUsage, "fill a test's array: it has " + std::to_string(size_) +
                                       " elements, found " + std::to_string(values.size()) +
                                       " values");
  }
  std::vector<std::byte> all(bytes(), kPoison);
  with_dtype(dtype_, [&](auto to_bits, auto) {
    for (std::size_t i = 0; i < size_; ++i) {
      const auto bits = to_bits(values[i]);
      std::memcpy(&all[offset(i)], &bits, sizeof(bits));
    }
  });
  copy(data_, all.data(), all.size(), true);
}

std::vector<std::byte> Array::bits() const {
  const std::vector<std::byte> all = download();
  const std::size_t bytes = size_of(dtype_);
  std::vector<std::byte> bits(size_ * bytes);
  for (std::size_t i = 0; i < size_; ++i) std::memcpy(&bits[i * bytes], &all[offset(i)], bytes);
  return bits;
}

std::vector<double> Array::values() const {
  std::vector<double> values(size_);
  const std::vector<std::byte> all = download();
  with_dtype(dtype_, [&](auto to_bits, auto from_bits) {
    for (std::size_t i = 0; i < size_; ++i) {
      decltype(to_bits(0.0)) bits;
      std::memcpy(&bits, &all[offset(i)], sizeof(bits));
      values[i] = from_bits(bits);
    }
  });
  return values;
}

bool Array::guards_hold() const {
  std::vector<std::byte> all = download();
  for (std::size_t i = 0; i < size_; i += row_) {
    std::fill_n(all.begin() + static_cast<std::ptrdiff_t>(offset(i)), row_ * size_of(dtype_),
                kPoison);
  }
  return std::ranges::all_of(all, [](std::byte byte) { return byte == kPoison; });
}

std::size_t Array::offset(std::size_t element) const {
  return kGuard + (element / row_ * distance_ + element % row_) * size_of(dtype_);
}

Tensor Array::tensor() const {
  const Tensor compact(static_cast<void*>(data_ + kGuard), dtype_, std::span(shape_), device_);
  DLTensor dl = compact.dl();
  dl.strides = const_cast<std::int64_t*>(strides_.data());  // DLPack has no const
  return Tensor(dl);
}

bool Check::compare(std::string_view name, const Array& found, std::span<const double> expected,
                    double bound, std::span<const double> terms) {
  const std::vector<double> values = found.values();
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const double step = found.dtype() == DType::kFloat16 ? std::ldexp(1.0, -25) : 0;
  double largest = 0;
  for (const double value : expected) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  const bool alike =
      values.size() == expected.size() && (terms.empty() || terms.size() == expected.size());
  double error = alike ? 0 : kInfinite;
  for (std::size_t i = 0; alike && i < values.size(); ++i) {
    if (values[i] == expected[i] || (std::isnan(values[i]) && std::isnan(expected[i]))) continue;
    const double difference = std::max(std::abs(values[i] - expected[i]) - step, 0.0);
    const double whole = terms.empty() ? largest : terms[i];
    const double relative = difference == 0 ? 0 : whole > 0 ? difference / whole : kInfinite;
    error = std::max(error, std::isnan(relative) ? kInfinite : relative);
  }
  const bool whole = found.guards_hold();
  double& worst = worst_.try_emplace(std::string(name)).first->second;
  worst = std::max(worst, error);
  Case one{.name = name,
           .passed = whole && error <= bound,
           .error = error,
           .bound = bound,
           .found = &found,
           .expected = expected};
  if (!one.passed) {
    char text[96];
    std::snprintf(text, sizeof text, "error %.2e, at most %.2e is allowed", error, bound);
    one.text = text;
    if (!whole) one.text += "; it wrote outside of the array's rows";
  }
  return count(one);
}

bool Check::refused(std::string_view words, const std::function<void()>& call, ErrorCode code) {
  std::string found = "it was computed";
  bool passed = false;
  try {
    call();
  } catch (const Error& error) {
    found = error.what();
    passed = error.code() == code && found.find(words) != std::string::npos;
  }
  Case one{.name = "a refusal", .passed = passed};
  if (!passed) one.text = "expected \"" + std::string(words) + "\", found: " + found;
  return count(one);
}

bool Check::count(const Case& one) {
  ++cases_;
  failed_ += one.passed ? 0 : 1;
  if (told_) {
    told_(one);
  } else if (!one.passed) {
    std::printf("FAILED %.*s: %s\n", static_cast<int>(one.name.size()), one.name.data(),
                one.text.c_str());
  }
  return one.passed;
}

}  // namespace kiln::testing
