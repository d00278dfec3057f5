// SPDX-License-Identifier: Apache-2.0
#include "kernel_shapes.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "cublaslt_plan.h"
#include "sm90_plan.h"

namespace geglu_mlp_test {
namespace {

using geglu_mlp::Element;
using geglu_mlp::GemmShape;

constexpr std::int64_t kMostElements = std::int64_t{48} << 20;  // half a second of host work each

/// A kernel, into how many parts it splits k, and whether its clusters lie across; a negative
/// kernel: none runs.
using Use = std::tuple<int, int, bool>;

Use use_of(KernelFamily family, const GemmShape& shape, const geglu_mlp::GpuFacts& gpu,
           bool every_split) {
  if (family == KernelFamily::kCublaslt &&
      geglu_mlp::plan_cublaslt({true, shape.m, shape.k, shape.n}).refused == nullptr) {
    return {geglu_mlp::kAllKernels, 1, false};
  }
  if (family != KernelFamily::kSm90) {
    const geglu_mlp::GemmPlan plan = geglu_mlp::plan_gemm(shape, gpu);
    return {plan.ctas == 0 ? -1 : plan.kernel, 1, false};
  }
  const geglu_mlp::Sm90Plan plan = geglu_mlp::plan_sm90(shape, true, gpu);
  if (plan.refused != nullptr || plan.ctas == 0) return {-1, 1, false};
  const int parts = static_cast<int>(plan.choice.parts);
  return {plan.kernel, every_split ? parts : std::min(parts, 2), plan.choice.across};
}

std::int64_t elements_of(const Shape& shape) {
  return 3 * shape.d * shape.h + 2 * shape.m * shape.d + shape.m * shape.h;
}

/// Odd multiples of 8, each about an eighth more than the one before. The least is eight and an
/// eighth blocks of 64: no prefill or decode kernel has more than eight stages, so that each whose
/// k is not split goes around its ring. The longer rings of narrow stream tiles, and those of parts
/// of k, are left to check_forward's shapes.
std::vector<std::int64_t> widths() {
  std::vector<std::int64_t> widths;
  for (std::int64_t eighths = 65; eighths < 2048; eighths += eighths / 16 * 2) {
    widths.push_back(8 * eighths);
  }
  return widths;
}

}  // namespace

std::vector<Shape> shapes_of_kernels(KernelFamily family, const geglu_mlp::GpuFacts& gpu,
                                     bool every_split) {
  std::map<Use, Shape> least;
  const std::vector<std::int64_t> all_widths = widths();
  for (const std::int64_t m :
       {1,   9,   17,  33,  64,  65,   100,  129,  157,  200,  257,  300, 311,
        400, 440, 512, 513, 777, 1025, 1500, 2050, 3000, 3600, 4100, 6100}) {
    for (const std::int64_t d : all_widths) {
      for (const std::int64_t h : all_widths) {
        const Shape shape = {m, d, h};
        if (elements_of(shape) > kMostElements) break;
        const GemmShape products[] = {{true, Element::kBFloat16, m, h, d, true},
                                      {false, Element::kBFloat16, m, d, h, true}};
        for (const GemmShape& product : products) {
          const Use use = use_of(family, product, gpu, every_split);
          if (std::get<0>(use) < 0) continue;
          const auto [found, added] = least.emplace(use, shape);
          if (!added && elements_of(shape) < elements_of(found->second)) found->second = shape;
        }
      }
    }
  }
  std::vector<Shape> shapes;
  for (const auto& [use, shape] : least) {
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  }
  return shapes;
}

}  // namespace geglu_mlp_test
