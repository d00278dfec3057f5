// SPDX-License-Identifier: Apache-2.0
//
// Contenders: the ways to compute one GeGLU MLP, and one Linear, on the same buffers: what a user
// has without Kiln, step by step, and Kiln. What is not installed is left out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cublaslt.hpp"
#include "elementwise.hpp"
#include "gpu.hpp"
#include "kiln/kiln.hpp"
#include "kiln/layers/geglu_mlp.hpp"
#include "ways.hpp"

namespace gated_mlp_bench {

/// What is measured with; the rivals' libraries may be missing.
struct Tools {
  const Gpu& gpu;
  const CublasLt* cublaslt = nullptr;
  const Elementwise* elementwise = nullptr;
};

struct Contender {
  const Way* way;
  std::function<void(std::size_t set)> run;  ///< enqueues one forward on a set of buffers
};

/// All buffers of one shape, several sets of them: what a forward must read of all sets is at least
/// 200 MiB (or there are 32 sets), more than the L2 cache of any GPU so far, so that weights come
/// from memory as in a model.
class Field {
 public:
  static constexpr std::int64_t kMostSets = 32;  // small shapes: of 14 MB, 15 are enough

  /// `most_sets` 1 is enough for a trace.
  Field(const Tools& tools, const kiln::Kernel& kernel, Shape shape, kiln::DType dtype,
        std::int64_t most_sets = kMostSets);
  ~Field();
  Field(const Field&) = delete;  // contenders point into it
  Field& operator=(const Field&) = delete;

  const std::vector<Contender>& contenders() const { return contenders_; }
  std::size_t sets() const { return sets_.size(); }

  /// Relative L2 error of the contender's result on set 0 against fp64, over a few rows; 0 where
  /// there is no result. The output is poisoned before.
  double error_of(const Contender& contender);

  double operations(Result result) const;   ///< floating-point operations a forward
  double least_bytes(Result result) const;  ///< inputs and weights once, result once

 private:
  struct Set;
  void add_read(const Elementwise& elementwise);
  void add_rivals(const Tools& tools);
  void add_kiln();
  const std::vector<double>& exact(Result result);

  const Gpu& gpu_;
  const kiln::Kernel& kernel_;
  Shape shape_;
  kiln::DType dtype_;
  std::vector<std::unique_ptr<Set>> sets_;
  std::vector<CublasLt::Gemm> gemms_;
  std::vector<Contender> contenders_;
  std::map<Result, std::vector<double>> exact_;  ///< the checked rows in fp64
};

}  // namespace gated_mlp_bench
