// SPDX-License-Identifier: Apache-2.0
//
// Tensor: a view of memory that the caller owns, in DLPack's terms. A value: copy it freely;
// nothing is allocated and nothing is freed.
#pragma once

#include "kiln/compiler.hpp"

#include <dlpack/dlpack.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "kiln/device.hpp"

namespace kiln {

/// float16.hpp makes elements of kFloat16 and kBFloat16, and reads them.
enum class DType {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat64,
  kFloat8E4M3FN,  ///< finite: no infinity, one NaN of each sign
  kFloat8E5M2,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kBool,  ///< a byte, 0 or 1
};
std::size_t size_of(DType dtype);  ///< bytes an element

class Tensor {
 public:
  static constexpr int kMaxDimensions = 8;

  /// No tensor: what an optional argument is when it is left out.
  Tensor() = default;

  /// Row-major and compact. `device` must not be automatic. Throws Error(kUsage) for more than 8
  /// dimensions or a negative extent.
  Tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device)
      : Tensor(data, dtype, std::span(shape.begin(), shape.size()), device) {}
  Tensor(void* data, DType dtype, std::span<const std::int64_t> shape, Device device);

  /// No memory yet: shape and dtype alone, for Op::workspace_bytes.
  Tensor(std::nullptr_t, DType dtype, std::initializer_list<std::int64_t> shape, Device device)
      : Tensor(static_cast<void*>(nullptr), dtype, shape, device) {}

  /// An input: weights in a read-only mapping, say. An op does not write to its inputs. Not for an
  /// output.
  Tensor(const void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device)
      : Tensor(const_cast<void*>(data), dtype, shape, device) {}
  Tensor(const void* data, DType dtype, std::span<const std::int64_t> shape, Device device)
      : Tensor(const_cast<void*>(data), dtype, shape, device) {}

  /// A DLPack tensor of any framework: shape and strides are copied, the data is not. Throws
  /// Error(kUsage) for more than 8 dimensions or a NULL shape.
  explicit Tensor(const DLTensor& tensor);

  /// Columns [begin, begin + count) of a two-dimensional tensor: one half of a packed [M, 2H], say.
  Tensor columns(std::int64_t begin, std::int64_t count) const;

  bool empty() const { return !defined_; }
  int dimensions() const { return tensor_.ndim; }
  std::int64_t extent(int dimension) const { return shape_[static_cast<std::size_t>(dimension)]; }

  /// The DLPack form; points into this object, so it is valid while this object lives and is
  /// unmoved. A temporary has none.
  DLTensor dl() const&;
  DLTensor dl() const&& = delete;

 private:
  bool defined_ = false;
  DLTensor tensor_{};  ///< but for its pointers to these, which dl() sets
  std::array<std::int64_t, kMaxDimensions> shape_{};
  std::array<std::int64_t, kMaxDimensions> strides_{};
};

/// A tensor that an op cannot do without: in the arguments of an op (kernel.op<…>()), leaving it
/// out does not compile.
struct RequiredTensor : Tensor {
  RequiredTensor(const Tensor& tensor)  // NOLINT(google-explicit-constructor)
      : Tensor(tensor) {}
};

/// Makes tensors of one dtype on one device:
///
///   const kiln::TensorMaker bf16{kiln::DType::kBFloat16, kernel.device()};
///   mlp.forward(bf16(x, {tokens, 768}), bf16(y, {tokens, 768}));
struct TensorMaker {
  DType dtype;
  Device device;

  Tensor operator()(void* data, std::initializer_list<std::int64_t> shape) const {
    return {data, dtype, shape, device};
  }
  Tensor operator()(const void* data, std::initializer_list<std::int64_t> shape) const {
    return {data, dtype, shape, device};
  }
  Tensor operator()(std::nullptr_t, std::initializer_list<std::int64_t> shape) const {
    return {nullptr, dtype, shape, device};
  }
};

/// Scratch memory for one call: device memory for a GPU kernel, host memory for a CPU one; 256-byte
/// aligned. Owned by the caller; in use until the stream has passed the call.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace kiln
