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

constexpr bool is_aligned(int64_t value) {
  return value % 16 == 0;
}
inline bool is_aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// Whether a descriptor can be made of a matrix: it has elements, and its address and its rows are
// multiples of 16 bytes.
inline bool describable(const Tensor& matrix) {
  const int64_t row_bytes = matrix.stride[0] * static_cast<int64_t>(dtype_bytes(matrix.dtype));
  return matrix.present && matrix.shape[0] > 0 && matrix.shape[1] > 0 && is_aligned(matrix.data) &&
         row_bytes > 0 && is_aligned(row_bytes);
}

// A compact tensor as a matrix; one that has fewer elements gives one that is not describable.
inline Tensor matrix_of(const Tensor& tensor, int dimensions, int64_t rows, int64_t columns) {
  int64_t count = 1;
  for (int i = 0; i < dimensions; ++i) count *= tensor.shape[i];
  Tensor matrix = tensor;
  const bool fits = rows > 0 && columns > 0 && rows <= count / columns;
  matrix.shape[0] = fits ? rows : 0;
  matrix.shape[1] = columns;
  matrix.stride[0] = columns;
  matrix.stride[1] = 1;
  return matrix;
}

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
    const Grid grid = {static_cast<uint32_t>(x), static_cast<uint32_t>(y),
                       static_cast<uint32_t>(z)};
    return device.launch(kernel, grid, threads, stream, arguments_, error);
  }

 protected:
  static constexpr int kMaxArguments = 64;

  void add(uint64_t bits, bool counts) {
    if (counts && bits % 16 != 0) aligned_ = false;
    values_[count_] = bits;
    arguments_[count_] = &values_[count_];
    ++count_;
  }

  const char* op_;
  const char* kernel_;
  int count_ = 0;

 private:
  uint64_t values_[kMaxArguments];  // little-endian: a shorter value begins at the same byte
  void* arguments_[kMaxArguments];

 protected:
  // In the place of what was added last.
  void point_to(void* argument) { arguments_[count_ - 1] = argument; }

 private:
  int form_ = 0;
  bool aligned_ = true;
  const char* wrong_ = nullptr;
  int64_t wrong_value_ = 0;
};

// Writes a CUtensorMap of `matrix` to `map`, for blocks of rows x columns as Triton cuts them: at
// most 256 rows of 128 bytes at once. `name` and `kernel` are for the error.
int32_t describe(const Tensor& matrix, int64_t rows, int64_t columns, const char* name,
                 const char* kernel, void* map, kiln_error* error);

// A call some of whose arguments are descriptors of matrices, in the parameters that Triton makes
// of one.
class DescribedCall : public KernelCall {
 public:
  using KernelCall::KernelCall;

  // Of a GPU that has a copy engine for them.
  void map(const char* name, const Tensor& matrix, int64_t rows, int64_t columns) {
    add(0, false);
    point_to(maps_[map_count_].bytes);
    described_[map_count_++] = {name, matrix, rows, columns};
    extents_and_strides(name, matrix);
  }
  // Of another: the kernel computes addresses.
  void described(const char* name, const Tensor& matrix) {
    pointer(matrix.data);
    for (int i = 0; i < 2; ++i) int64(matrix.shape[i]);
    for (int i = 0; i < 2; ++i) int64(matrix.stride[i]);
    for (int i = 0; i < 2; ++i) add(0, false);  // no NaN beyond the ends, no rounding to TF32
    extents_and_strides(name, matrix);
  }

  int32_t launch(const OnDevice& device, int kernel, uint32_t threads, int64_t x, int64_t y,
                 int64_t z, void* stream, kiln_error* error) {
    if (x <= 0 || y <= 0 || z <= 0) return KILN_OK;
    for (int i = 0; i < map_count_; ++i) {
      const Described& one = described_[i];
      const int32_t status =
          describe(one.matrix, one.rows, one.columns, one.name, kernel_, maps_[i].bytes, error);
      if (status != KILN_OK) return status;
    }
    return KernelCall::launch(device, kernel, threads, x, y, z, stream, error);
  }

 private:
  static constexpr int kMaxMaps = kMaxArguments / 11;
  struct alignas(64) Map {
    unsigned char bytes[kTensorMapBytes];
  };
  struct Described {
    const char* name;
    Tensor matrix;
    int64_t rows;
    int64_t columns;
  };

  void extents_and_strides(const char* name, const Tensor& matrix) {
    for (int i = 0; i < 2; ++i) int32(name, matrix.shape[i]);
    for (int i = 0; i < 2; ++i) int64(matrix.stride[i]);
  }

  Map maps_[kMaxMaps];
  Described described_[kMaxMaps];
  int map_count_ = 0;
};

}  // namespace kiln::sdk
