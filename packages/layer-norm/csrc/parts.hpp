// SPDX-License-Identifier: Apache-2.0
//
// Parts: into how many runs of rows backward's sums over all rows are cut. They are float32 within
// a part and are added up in the order of the parts, so that neither threads nor GPUs change a
// result.
#pragma once

#include "package.gen.hpp"

namespace kiln::package {

inline constexpr int64_t kParts = 256;  // two for each multiprocessor of a large GPU

inline int64_t rows_of_a_part(int64_t rows) {
  return (rows + kParts - 1) / kParts;
}
inline int64_t parts_of(int64_t rows) {
  return rows == 0 ? 0 : (rows + rows_of_a_part(rows) - 1) / rows_of_a_part(rows);
}

// Scratch memory: [2, parts, D] float32, the weight's sums and the bias's.
inline size_t scratch_bytes(const BackwardArguments& call) {
  if (!call.grad_weight.present && !call.grad_bias.present) return 0;
  return static_cast<size_t>(2 * parts_of(call.M) * call.D) * sizeof(float);
}

}  // namespace kiln::package
