// SPDX-License-Identifier: Apache-2.0
//
// Kernel_shapes: plan.h and sm90_plan.h -> shapes that together run every kernel of one GPU. A
// check with chosen shapes misses the kernels that the plan keeps for others; this asks the plan
// itself, so that a new tile is checked as soon as it is planned. Pure, as the plans.
#pragma once

#include <cstdint>
#include <vector>

#include "plan.h"

namespace geglu_mlp_test {

/// x: [m, d]; h columns between the two products.
struct Shape {
  std::int64_t m, d, h;
  bool operator==(const Shape&) const = default;
};

/// kCublaslt: cuBLASLt from kCublasltRows on, below it the portable kernels.
enum class KernelFamily { kSm90, kCublaslt, kPortable };

/// For each kernel of the family, across and not, the shape with the fewest elements that the plan
/// gives to it. `every_split`: and for each number of parts of k. D and H
/// are odd multiples of 8, so that every tile is ragged. A kernel that only shapes of more than 48
/// M elements get has none. What cuBLASLt computes counts as one kernel.
std::vector<Shape> shapes_of_kernels(KernelFamily family, const geglu_mlp::GpuFacts& gpu,
                                     bool every_split);

}  // namespace geglu_mlp_test
