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

// The parts of a workspace, one after another. What no size_t counts is the most that one does, so
// that its allocation fails.
class WorkspaceLayout {
 public:
  // The part's offset in bytes.
  size_t add(int64_t count, size_t element_bytes) {
    const size_t offset = bytes_;
    size_t part = 0;
    size_t end = 0;
    const bool over =
        __builtin_mul_overflow(static_cast<size_t>(max(count, 0)), element_bytes, &part) ||
        __builtin_add_overflow(offset, part, &end) || end > kMost;
    bytes_ = over ? kMost : (end + 255) / 256 * 256;
    return offset;
  }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kMost = SIZE_MAX / 256 * 256;
  size_t bytes_ = 0;
};

constexpr bool is_aligned(int64_t value) {
  return value % 16 == 0;
}
inline bool is_aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// What a descriptor is of.
struct Matrix {
  void* data;
  DType dtype;
  int64_t rows;
  int64_t columns;
  int64_t stride;    // elements from one row to the next
  int64_t elements;  // that its tensor has; of one that was left out: 0
};

// A compact tensor as a matrix of other extents, of which nothing is checked here.
inline Matrix matrix_of(const Tensor& tensor, int dimensions, int64_t rows, int64_t columns) {
  int64_t elements = tensor.present ? 1 : 0;
  for (int i = 0; i < dimensions; ++i) elements *= tensor.shape[i];
  return {tensor.data, tensor.dtype, rows, columns, columns, elements};
}
// A tensor of two dimensions.
inline Matrix matrix_of(const Tensor& tensor) {
  Matrix matrix = matrix_of(tensor, 2, tensor.shape[0], tensor.shape[1]);
  matrix.stride = tensor.stride[0];
  return matrix;
}

// Whether a descriptor can be made of a matrix: it has elements, no more than its tensor, and its
// address and its rows are multiples of 16 bytes.
inline bool describable(const Matrix& matrix) {
  const int64_t row_bytes = matrix.stride * static_cast<int64_t>(dtype_bytes(matrix.dtype));
  return matrix.rows > 0 && matrix.columns > 0 && matrix.rows <= matrix.elements / matrix.columns &&
         is_aligned(matrix.data) && row_bytes > 0 && is_aligned(row_bytes);
}
inline bool describable(const Tensor& tensor) {
  return describable(matrix_of(tensor));
}

// An op asks all of its launches before it launches the first: what a later one refuses is refused
// while nothing has been written.
enum class Step { kAsk, kLaunch };

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

  int32_t launch(Step step, const OnDevice& device, int kernel, uint32_t threads, int64_t x,
                 int64_t y, int64_t z, void* stream, kiln_error* error) {
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
    if (step == Step::kAsk && device.has(kernel)) return KILN_OK;
    const Grid grid = {static_cast<uint32_t>(x), static_cast<uint32_t>(y),
                       static_cast<uint32_t>(z)};
    return device.launch(kernel, grid, threads, stream, arguments_, error);
  }

 protected:
  static constexpr int kMaxArguments = 64;

  void add(uint64_t bits, bool counts) {
    if (counts && bits % 16 != 0) aligned_ = false;
    values_[count_] = bits;
    add_at(&values_[count_]);
  }
  // An argument that stands elsewhere, until it was launched.
  void add_at(void* argument) { arguments_[count_++] = argument; }

  const char* op_;
  const char* kernel_;

 private:
  uint64_t values_[kMaxArguments];  // little-endian: a shorter value begins at the same byte
  void* arguments_[kMaxArguments];
  int count_ = 0;
  int form_ = 0;
  bool aligned_ = true;
  const char* wrong_ = nullptr;
  int64_t wrong_value_ = 0;
};

// A matrix that a kernel is given, in blocks of rows x columns.
struct Described {
  const char* name;  // of the argument
  Matrix matrix;
  int64_t rows;
  int64_t columns;
};

// Refuses (KILN_UNSUPPORTED) what is not describable; else writes its CUtensorMap to `map`, if that
// is not null, for blocks as Triton cuts them: at most 256 rows of 128 bytes at once.
int32_t describe(const Described& described, const char* op, const char* kernel, void* map,
                 kiln_error* error);

// A call some of whose arguments are descriptors of matrices, in the parameters that Triton makes
// of one. What no descriptor can be made of is refused for every GPU, so that a call that one takes
// is one that all take.
class DescribedCall : public KernelCall {
 public:
  using KernelCall::KernelCall;

  // Of a GPU that has a copy engine for them.
  void map(const char* name, const Matrix& matrix, int64_t rows, int64_t columns) {
    add_at(maps_[described_count_].bytes);
    keep({name, matrix, rows, columns});
  }
  // Of another: the kernel computes addresses.
  void described(const char* name, const Matrix& matrix) {
    pointer(matrix.data);
    int64(matrix.rows);
    int64(matrix.columns);
    strides(matrix);
    for (int i = 0; i < 2; ++i) add(0, false);  // no NaN beyond the ends, no rounding to TF32
    keep({name, matrix, kNoMap, kNoMap});
  }

  int32_t launch(Step step, const OnDevice& device, int kernel, uint32_t threads, int64_t x,
                 int64_t y, int64_t z, void* stream, kiln_error* error) {
    if (x <= 0 || y <= 0 || z <= 0) return KILN_OK;
    for (int i = 0; i < described_count_; ++i) {
      const bool maps = step == Step::kLaunch && described_[i].rows != kNoMap;
      void* const map = maps ? maps_[i].bytes : nullptr;
      const int32_t status = describe(described_[i], op_, kernel_, map, error);
      if (status != KILN_OK) return status;
    }
    return KernelCall::launch(step, device, kernel, threads, x, y, z, stream, error);
  }

 private:
  static constexpr int kMaxDescribed = kMaxArguments / 11;
  static constexpr int64_t kNoMap = 0;
  struct alignas(64) Map {
    unsigned char bytes[kTensorMapBytes];
  };

  void keep(const Described& described) {
    described_[described_count_++] = described;
    int32(described.name, described.matrix.rows);
    int32(described.name, described.matrix.columns);
    strides(described.matrix);
  }
  void strides(const Matrix& matrix) {
    int64(matrix.stride);
    int64(1);
  }

  Map maps_[kMaxDescribed];
  Described described_[kMaxDescribed];
  int described_count_ = 0;
};

}  // namespace kiln::sdk
