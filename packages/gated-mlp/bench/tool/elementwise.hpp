// SPDX-License-Identifier: Apache-2.0
//
// Elementwise: the two kernels that an eager MLP has between its GEMMs, gelu and multiply, and one
// that only reads, for the ceiling of bandwidth. Compiled by an installed NVRTC when the bench
// starts: they are rivals, not part of any package.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gpu.hpp"
#include "kiln/tensor.hpp"

namespace gated_mlp_bench {

class Elementwise {
 public:
  /// Null where no NVRTC is installed.
  static std::unique_ptr<Elementwise> find(const Gpu& gpu, kiln::DType dtype);

  // Each vectorised, 16 bytes a thread; counts are multiples of 8.
  void gelu(const void* x, void* out, std::int64_t count) const;  ///< tanh form
  void multiply(const void* a, const void* b, void* out, std::int64_t count) const;
  /// Reads every byte once; bytes are a multiple of 16. sink: 4 bytes, not written.
  void read(const void* from, std::size_t bytes, void* sink) const;

 private:
  explicit Elementwise(const Gpu& gpu) : gpu_(gpu) {}
  const Gpu& gpu_;
  void* gelu_ = nullptr;
  void* multiply_ = nullptr;
  void* read_ = nullptr;
};

}  // namespace gated_mlp_bench
