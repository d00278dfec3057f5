// SPDX-License-Identifier: Apache-2.0
//
// Forward_case: one forward call with poisoned outputs against the double reference. What
// check_forward, check_rows and check_kernels have in common; they choose the shapes.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "check.hpp"
#include "reference.hpp"

namespace gated_mlp_test {

struct ForwardCase {
  const MlpData& data;
  Gate gate;
  Shift shift;
  const MlpReference& reference;
  const std::vector<std::int64_t>& rows;       ///< the first of those that the reference has
  const std::vector<double>* eager = nullptr;  ///< the same rows from mlp_eager
  bool twice = false;                          ///< and the second call gives the same bits
  /// And each element is within kElementRoundings of its row's size: a few wrong ones do not change
  /// the relative error of all.
  bool each = false;
};

/// Counts one case. It fails if the error is above its bound or eager's, a value is not finite, or
/// anything but y and the workspace was written.
void check_forward_case(Variant& variant, const ForwardCase& test);

/// Decoded; `activation` is left to the caller.
MlpValues values_of(const MlpData& data);

/// All rows of a small call, a sample of a large one's with the first and the last.
std::vector<std::int64_t> rows_to_check(std::int64_t m, std::mt19937_64& random);

}  // namespace gated_mlp_test
