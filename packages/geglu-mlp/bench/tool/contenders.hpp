// SPDX-License-Identifier: Apache-2.0
//
// Contenders: the ways to compute one GeGLU MLP, and one Linear, on the same buffers: what a user
// has without Kiln, step by step, and Kiln. What is not installed is left out with its reason.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cublaslt.hpp"
#include "elementwise.hpp"
#include "gpu.hpp"
#include "kiln/kiln.hpp"
#include "kiln/layers/geglu_mlp.hpp"

namespace geglu_mlp_bench {

struct Shape {
  std::int64_t m, d, h;
};

/// What is measured with; the rivals' libraries may be missing.
struct Tools {
  const Gpu& gpu;
  const CublasLt* cublaslt = nullptr;
  const Elementwise* elementwise = nullptr;
};

struct Contender {
  std::string name;
  std::string what;    ///< "GEMM, gelu, GEMM, multiply, GEMM"
  int launches = 0;    ///< kernels expected for one forward
  bool is_mlp = true;  ///< else one Linear: fewer operations, another result
  bool biased = false;
  std::function<void(std::size_t set)> run;  ///< enqueues one forward on a set of buffers
};

/// All buffers of one shape, several sets of them: together more than any L2 cache holds, so that
/// weights come from memory as in a model.
class Field {
 public:
  Field(const Tools& tools, const kiln::Kernel& kernel, Shape shape, kiln::DType dtype);
  ~Field();
  Field(const Field&) = delete;  // contenders point into it
  Field& operator=(const Field&) = delete;

  const std::vector<Contender>& contenders() const { return contenders_; }
  std::size_t sets() const { return sets_.size(); }

  /// Relative L2 error of the contender's result on set 0 against fp64, over a few rows. The output
  /// is poisoned before.
  double error_of(const Contender& contender);

  double operations(const Contender& contender) const;   ///< floating-point operations a forward
  double least_bytes(const Contender& contender) const;  ///< inputs once, result once

 private:
  struct Set;
  void add_rivals(const Tools& tools);
  void add_kiln();

  const Gpu& gpu_;
  const kiln::Kernel& kernel_;
  Shape shape_;
  kiln::DType dtype_;
  std::vector<std::unique_ptr<Set>> sets_;
  std::vector<CublasLt::Gemm> gemms_;
  std::vector<Contender> contenders_;
};

}  // namespace geglu_mlp_bench
