// SPDX-License-Identifier: Apache-2.0
#include "kernel_shapes.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "host/cublaslt_plan.h"
#include "sm90/sm90_plan.h"

namespace gated_mlp_test {
namespace {

using gated_mlp::Element;
using gated_mlp::GemmShape;
using gated_mlp::Sm90Choice;
using gated_mlp::Sm90Family;
using gated_mlp::Sm90Tile;

constexpr std::int64_t kMostElements = std::int64_t{48} << 20;  // half a second of host work each

/// A kernel of a family that pins none; a negative one: none runs.
int kernel_of(KernelFamily family, const GemmShape& shape, const gated_mlp::GpuFacts& gpu) {
  if (family == KernelFamily::kCublaslt &&
      gated_mlp::plan_cublaslt({true, shape.m, shape.k, shape.n}).refused == nullptr) {
    return gated_mlp::kAllKernels;
  }
  const gated_mlp::GemmPlan plan = gated_mlp::plan_gemm(shape, gpu);
  return plan.ctas == 0 ? -1 : plan.kernel;
}

std::int64_t elements_of(const Shape& shape) {
  return 3 * shape.d * shape.h + 2 * shape.m * shape.d + shape.m * shape.h;
}

/// Odd multiples of 8, each about an eighth more than the one before. The least is eight and an
/// eighth blocks of 64, as in pinned_shapes(): no prefill or decode kernel has more than eight
/// stages, so that each whose k is not split goes around its ring. The longer rings of narrow
/// stream tiles, and those of parts of k, are left to check_forward's shapes.
std::vector<std::int64_t> widths() {
  std::vector<std::int64_t> widths;
  for (std::int64_t eighths = 65; eighths < 2048; eighths += eighths / 16 * 2) {
    widths.push_back(8 * eighths);
  }
  return widths;
}

/// Every kernel of a product: each family's tiles, across, and in each split.
std::vector<Sm90Choice> choices_of(bool gated, bool every_split) {
  std::vector<Sm90Choice> choices;
  for (int tile = 0; tile < gated_mlp::sm90_tile_count(gated); ++tile) {
    for (const std::int64_t parts : gated_mlp::kSm90Parts) {
      if (parts > 2 && !every_split) break;
      for (const bool across : {false, true}) {
        const Sm90Choice choice = {tile, parts, across};
        const GemmShape few_rows = {gated, Element::kBFloat16, 1, 8, 8, true};
        if (gated_mlp::why_not_sm90(few_rows, choice) == nullptr) choices.push_back(choice);
      }
    }
  }
  return choices;
}

std::string name_of(bool gated, const Sm90Choice& choice) {
  return std::string(gated ? "gated=" : "down=") + gated_mlp::sm90_tile(gated, choice.tile).name +
         (choice.parts > 1 ? "," + std::to_string(choice.parts) : "") +
         (choice.across ? ",across" : "");
}

/// Every kernel of gate and up, and every one of down, in as few calls as there are of the more of
/// them: one tile of rows and a part of another, or of stream tiles, which take 64 rows, a part of
/// one.
std::vector<KernelShape> pinned_shapes(bool every_split) {
  const std::vector<Sm90Choice> gated = choices_of(true, every_split);
  const std::vector<Sm90Choice> plain = choices_of(false, every_split);
  std::vector<KernelShape> shapes;
  for (std::size_t i = 0; i < std::max(gated.size(), plain.size()); ++i) {
    // From the end: stream tiles are the last ones of both.
    const Sm90Choice& first = gated[gated.size() - 1 - i % gated.size()];
    const Sm90Choice& second = plain[plain.size() - 1 - i % plain.size()];
    const Sm90Tile& one = gated_mlp::sm90_tile(true, first.tile);
    const Sm90Tile& other = gated_mlp::sm90_tile(false, second.tile);
    const bool streams = one.family == Sm90Family::kStream || other.family == Sm90Family::kStream;
    const auto step = static_cast<std::int64_t>(i);
    const std::int64_t rows = std::max(one.rows, other.rows);
    const Shape shape = {streams ? 33 + step % 32 : rows + 1 + step * 7 % rows,
                         520 + 16 * (step % 5), 568 + 16 * (step % 7)};
    shapes.push_back({shape, name_of(true, first) + " " + name_of(false, second)});
  }
  return shapes;
}

}  // namespace

std::vector<KernelShape> shapes_of_kernels(KernelFamily family, const gated_mlp::GpuFacts& gpu,
                                           bool every_split) {
  if (family == KernelFamily::kSm90) return pinned_shapes(every_split);
  std::map<int, Shape> least;
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
          const int kernel = kernel_of(family, product, gpu);
          if (kernel < 0) continue;
          const auto [found, added] = least.emplace(kernel, shape);
          if (!added && elements_of(shape) < elements_of(found->second)) found->second = shape;
        }
      }
    }
  }
  std::vector<KernelShape> shapes;
  for (const auto& [kernel, shape] : least) {
    const auto same = [&shape = shape](const KernelShape& each) { return each.shape == shape; };
    if (std::none_of(shapes.begin(), shapes.end(), same)) shapes.push_back({shape, ""});
  }
  return shapes;
}

}  // namespace gated_mlp_test
