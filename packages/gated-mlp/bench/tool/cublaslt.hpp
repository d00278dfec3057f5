// SPDX-License-Identifier: Apache-2.0
//
// CublasLt: cuBLAS's GEMM as nn.Linear uses it, y = x w^T + bias, found at run time. The fastest of
// its own proposals is taken, each timed on all sets of buffers: a stronger rival than PyTorch,
// which takes the first.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gpu.hpp"
#include "kiln/tensor.hpp"

namespace gated_mlp_bench {

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

  struct Operands {
    const void* x;
    const void* w;
    void* y;
  };

  /// A chosen algorithm for one shape; run() enqueues it on the GPU's stream.
  class Gemm {
   public:
    Gemm(Gemm&&) noexcept;
    ~Gemm();
    void run(const Operands& operands) const;

   private:
    friend class CublasLt;
    struct State;
    explicit Gemm(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
  };

  /// Times the proposals, each over all of these buffers in turn; asked again for the same Linear
  /// it gives the same answer. Throws std::runtime_error if there is no proposal.
  Gemm choose(const Linear& linear, const std::vector<Operands>& rotated) const;

 private:
  struct Proposal;
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, kiln::DType, bool>;

  CublasLt(const Gpu& gpu, SharedLibrary library);
  std::vector<Proposal> propose(const Gemm::State& state) const;

  const Gpu& gpu_;
  SharedLibrary library_;
  void* handle_ = nullptr;
  Gpu::Buffer workspace_;
  mutable std::map<Key, Proposal> chosen_;
};

}  // namespace gated_mlp_bench
