// SPDX-License-Identifier: Apache-2.0
//
// Kernel_shapes: plan.h and sm90_plan.h -> shapes that together run every kernel of one GPU. A
// check with chosen shapes misses the kernels that the plan keeps for others. Those for SM 9.0 are
// pinned, each by its name; for the portable ones this asks the plan itself. So a new tile is
// checked as soon as it is there. Pure, as the plans.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/plan.h"

namespace gated_mlp_test {

/// x: [m, d]; h columns between the two products.
struct Shape {
  std::int64_t m, d, h;
  bool operator==(const Shape&) const = default;
};

/// kCublaslt: cuBLASLt from kCublasltRows on, below it the portable kernels.
enum class KernelFamily { kSm90, kCublaslt, kPortable };

struct KernelShape {
  Shape shape;
  std::string kernels;  ///< pinned ones, as host/pins.h has them; empty: the plan's
};

/// For SM 9.0 a shape for each kernel of gate and up beside one of down, across and not;
/// `every_split`: and for each number of parts of k. For another family the shape with the fewest
/// elements that the plan gives to each kernel; one that only shapes of more than 48 M elements get
/// has none, and what cuBLASLt computes counts as one kernel. D and H are odd multiples of 8, so
/// that every tile is ragged.
std::vector<KernelShape> shapes_of_kernels(KernelFamily family, const gated_mlp::GpuFacts& gpu,
                                           bool every_split);

}  // namespace gated_mlp_test
