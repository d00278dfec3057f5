// SPDX-License-Identifier: Apache-2.0
//
// The plan of backward's products on SM 9.0: what it chooses, that its tiles cover every output,
// and which calls it leaves to the path with transposes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "host/gradients_plan.h"

namespace {

using namespace gated_mlp;

constexpr GpuFacts kH200 = {132, 232448};

struct Extents {
  int64_t m, d, h;
};

GradientsQuestion gated(const Extents& e) {
  return {GradientKind::kGated, Element::kBFloat16, e.d, 1, {{e.m, e.h}}};
}
GradientsQuestion grad_x(const Extents& e) {
  return {GradientKind::kTokens, Element::kBFloat16, e.h, 2, {{e.m, e.d}, {e.m, e.d}}};
}
GradientsQuestion weights(const Extents& e) {
  return {GradientKind::kWeights, Element::kBFloat16, e.m, 3, {{e.h, e.d}, {e.h, e.d}, {e.d, e.h}}};
}

TEST_CASE("gradients plan: the tile follows the shape") {
  struct Row {
    GradientsQuestion question;
    std::string tile;
    uint32_t ctas;
  };
  const Row rows[] = {
      {gated({8192, 768, 3072}), "gradients_128x256", 132},
      {grad_x({8192, 768, 3072}), "gradients_256x192", 128},
      {weights({8192, 768, 3072}), "gradients_128x256", 132},
      {gated({1024, 1024, 4096}), "gradients_128x256", 128},
      {gated({1, 8, 8}), "gradients_128x256", 2},
      {grad_x({1024, 1024, 4096}), "gradients_128x128", 64},
      {grad_x({4096, 2304, 9216}), "gradients_128x192", 132},
      {grad_x({4096, 4096, 14336}), "gradients_128x256", 132},
      {weights({8192, 1152, 6912}), "gradients_128x192", 132},
      {weights({1024, 1024, 4096}), "gradients_128x256", 132},
      {grad_x({1, 8, 8}), "gradients_128x128", 2},
      {weights({1, 8, 8}), "gradients_128x128", 6},
  };
  for (const Row& row : rows) {
    const GradientsPlan plan = plan_gradients(row.question, kH200);
    CHECK(plan.tile->name == row.tile);
    CHECK(plan.ctas == row.ctas);
  }
}

TEST_CASE("gradients plan: the tiles cover every output, and no grid is larger than the GPU") {
  for (const int64_t m : {1, 65, 768, 8192}) {
    for (const int64_t d : {8, 776, 4096}) {
      for (const int64_t h : {8, 88, 3072}) {
        const Extents extents = {m, d, h};
        for (const GradientsQuestion& question :
             {gated(extents), grad_x(extents), weights(extents)}) {
          const GradientsPlan plan = plan_gradients(question, kH200);
          const Sm90Tile& tile = *plan.tile;
          const auto place = static_cast<int>(&tile - &gradient_tile(question.kind, 0));
          CHECK(plan.kernel == gradient_kernel(question.kind, question.element, place));
          CHECK(plan.k_blocks == tiles_of(question.k, kDepth));
          CHECK(plan.ctas % 2 == 0);
          CHECK(plan.ctas <= 132);
          for (int i = 0; i < question.count; ++i) {
            CHECK(plan.grids[i].tiles_m == tiles_of(question.products[i].m, 2 * tile.rows));
            CHECK(plan.grids[i].tiles_n == tiles_of(question.products[i].n, tile.columns));
            CHECK(plan.grids[i].panel >= 1);
          }
        }
      }
    }
  }
}

TEST_CASE("gradients plan: what the copy engine cannot read is left to the path with transposes") {
  CHECK(gradients_lie_well(1, 8, 8, true, kH200));
  CHECK(gradients_lie_well(2061, 72, 2088, true, kH200));
  CHECK_FALSE(gradients_lie_well(0, 8, 8, true, kH200));
  CHECK_FALSE(gradients_lie_well(1, 0, 8, true, kH200));
  CHECK_FALSE(gradients_lie_well(1, 8, 0, true, kH200));
  CHECK_FALSE(gradients_lie_well(1, 12, 8, true, kH200));
  CHECK_FALSE(gradients_lie_well(1, 8, 12, true, kH200));
  CHECK_FALSE(gradients_lie_well(1, 8, 8, false, kH200));
  CHECK_FALSE(gradients_lie_well(int64_t{1} << 31, 8, 8, true, kH200));
  CHECK_FALSE(gradients_lie_well(1, 8, 8, true, {1, 232448}));
}

}  // namespace
