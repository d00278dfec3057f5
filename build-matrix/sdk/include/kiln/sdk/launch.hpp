// SPDX-License-Identifier: Apache-2.0
//
// Launch: what the host code that is made of package.json's launches is written with: the functions
// of its expressions, the parts of a workspace, and one kernel's arguments. Nothing else includes
// it.
#pragma once

#include <kiln/sdk/device.hpp>

namespace kiln::sdk {

// Integers of extents and attributes; what is divided by 0 gives 0.
constexpr int64_t divided(int64_t a, int64_t b) {
  if (b == 0) return 0;
  const int64_t whole = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? whole - 1 : whole;
}
constexpr int64_t remainder(int64_t a, int64_t b) {
  return a - divided(a, b) * b;
}
constexpr int64_t cdiv(int64_t a, int64_t b) {
  return -divided(-a, b);
}
constexpr int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}
constexpr int64_t max(int64_t a, int64_t b) {
  return a < b ? b : a;
}
constexpr int64_t next_pow2(int64_t a) {
  int64_t power = 1;
  while (power < a && power < (int64_t{1} << 62)) power *= 2;
  return power;
}

// Where `dtype` stands among those of the schema; the first, where it is of a tensor left out.
template <int kCount>
constexpr int place_of(DType dtype, const DType (&dtypes)[kCount]) {
  for (int i = 0; i < kCount; ++i) {
    if (dtypes[i] == dtype) return i;
  }
  return 0;
}

template <int kCount>
constexpr bool is_one_of(DType dtype, const DType (&dtypes)[kCount]) {
  return dtypes[place_of(dtype, dtypes)] == dtype;
}

// The parts of a workspace, one after another.
class WorkspaceLayout {
 public:
  // The part's offset in bytes.
  size_t add(int64_t count, size_t element_bytes) {
    const size_t offset = bytes_;
    const size_t part = count > 0 ? static_cast<size_t>(count) * element_bytes : 0;
    bytes_ += (part + 255) / 256 * 256;
    return offset;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

// One kernel's arguments, in its order, and which of its forms is launched. What does not fit is
// kept until launch().
class KernelCall {
 public:
  KernelCall(const char* op, const char* kernel) : op_(op), kernel_(kernel) {}

  void pointer(const void* data, bool counts = false) {
    add(reinterpret_cast<uintptr_t>(data), counts);
  }
  void int32(const char* name, int64_t value, bool counts = false) {
    if (value != static_cast<int32_t>(value) && wrong_ == nullptr) {
      wrong_ = name;
      wrong_value_ = value;
    }
    add(static_cast<uint64_t>(value), counts);
  }
  void int64(int64_t value, bool counts = false) { add(static_cast<uint64_t>(value), counts); }
  void float32(double value) {
    const auto rounded = static_cast<float>(value);
    uint32_t bits = 0;
    __builtin_memcpy(&bits, &rounded, sizeof(bits));
    add(bits, false);
  }
  void float64(double value) {
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(bits));
    add(bits, false);
  }

  // Whether all that count so far are multiples of 16.
  bool aligned() const { return aligned_; }
  void choose(int place, int count) { form_ = form_ * count + place; }
  int form() const { return form_; }

  int32_t launch(const OnDevice& device, int kernel, uint32_t threads, int64_t x, int64_t y,
                 int64_t z, void* stream, kiln_error* error) {
    if (x <= 0 || y <= 0 || z <= 0) return KILN_OK;
    if (wrong_ != nullptr) {
      return fail(error, KILN_UNSUPPORTED, "%s: %s of kernel %s is %lld, which is no int32", op_,
                  wrong_, kernel_, static_cast<long long>(wrong_value_));
    }
    if (x > 2147483647 || y > 65535 || z > 65535) {
      return fail(error, KILN_UNSUPPORTED,
                  "%s: the grid of kernel %s is %lld x %lld x %lld; at most 2147483647 x 65535 x "
                  "65535 is launched",
                  op_, kernel_, static_cast<long long>(x), static_cast<long long>(y),
                  static_cast<long long>(z));
    }
    void* arguments[kMaxArguments];
    for (int i = 0; i < count_; ++i) arguments[i] = &values_[i];
    const Grid grid = {static_cast<uint32_t>(x), static_cast<uint32_t>(y),
                       static_cast<uint32_t>(z)};
    return device.launch(kernel, grid, threads, stream, arguments, error);
  }

 private:
  static constexpr int kMaxArguments = 64;

  void add(uint64_t bits, bool counts) {
    if (counts && bits % 16 != 0) aligned_ = false;
    values_[count_++] = bits;
  }

  const char* op_;
  const char* kernel_;
  uint64_t values_[kMaxArguments];  // little-endian: a shorter value begins at the same byte
  int count_ = 0;
  int form_ = 0;
  bool aligned_ = true;
  const char* wrong_ = nullptr;
  int64_t wrong_value_ = 0;
};

}  // namespace kiln::sdk
