// SPDX-License-Identifier: Apache-2.0
//
// CublasLt: cuBLAS's GEMM as nn.Linear uses it, y = x w^T + bias, found at run time. The fastest of
// its own proposals is taken, each timed once: a stronger rival than PyTorch, which takes the
// first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gpu.hpp"
#include "kiln/tensor.hpp"

namespace geglu_mlp_bench {

class CublasLt {
 public:
  /// Null where no cuBLASLt is installed.
  static std::unique_ptr<CublasLt> find(const Gpu& gpu);

  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  ~CublasLt();

  std::string version() const;  ///< "libcublasLt.so.13 130100"

  struct Linear {
    std::int64_t rows, in, out;  ///< x [rows, in], w [out, in], y [rows, out], all row-major
    kiln::DType dtype;
    const void* bias = nullptr;  ///< [out], added in the GEMM's epilogue
  };

  /// A chosen algorithm for one shape; run() enqueues it on the GPU's stream.
  class Gemm {
   public:
    Gemm(Gemm&&) noexcept;
    ~Gemm();
    void run(const void* x, const void* w, void* y) const;

   private:
    friend class CublasLt;
    struct State;
    explicit Gemm(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
  };

  /// Times the proposals on these buffers. Throws std::runtime_error if there is no proposal.
  Gemm choose(const Linear& linear, const void* x, const void* w, void* y) const;

 private:
  CublasLt(const Gpu& gpu, SharedLibrary library);
  const Gpu& gpu_;
  SharedLibrary library_;
  void* handle_ = nullptr;
  Gpu::Buffer workspace_;
};

}  // namespace geglu_mlp_bench
