// SPDX-License-Identifier: Apache-2.0
//
// That geglu_mlp_check runs every kernel, as far as the plans choose it: found without a GPU.
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <utility>

#include "cublaslt_plan.h"
#include "kernel_shapes.hpp"
#include "sm90_plan.h"

namespace {

using namespace geglu_mlp;
using geglu_mlp_test::KernelFamily;
using geglu_mlp_test::Shape;
using geglu_mlp_test::shapes_of_kernels;

constexpr GpuFacts kH200 = {132, 232448};
constexpr GpuFacts kA100 = {108, 166912};
constexpr GpuFacts kRtx4090 = {128, 101376};

GemmShape product_of(const Shape& shape, bool gated) {
  return {gated, Element::kBFloat16, shape.m, gated ? shape.h : shape.d, gated ? shape.d : shape.h,
          true};
}

TEST_CASE("kernel shapes: on an H200 they run every sm_90a kernel that the plan offers") {
  for (const bool every_split : {false, true}) {
    std::set<std::pair<int, bool>> run;  // and whether across
    for (const Shape& shape : shapes_of_kernels(KernelFamily::kSm90, kH200, every_split)) {
      CHECK(shape.d % 16 == 8);
      CHECK(shape.h % 16 == 8);
      for (const bool gated : {true, false}) {
        const Sm90Plan plan = plan_sm90(product_of(shape, gated), true, kH200);
        run.insert({plan.kernel, plan.choice.across});
      }
    }
    for (const bool gated : {true, false}) {
      bool decodes_across = false;
      for (int tile = 0; tile < sm90_tile_count(gated); ++tile) {
        const Sm90Tile& facts = sm90_tile(gated, tile);
        const int kernel = sm90_kernel(gated, Element::kBFloat16, tile);
        CAPTURE(std::string(facts.name));
        CAPTURE(gated);
        const bool across = run.count({kernel, true}) == 1;
        CHECK((across || run.count({kernel, false}) == 1));
        if (can_lie_across(facts)) {
          CHECK(across);
          CHECK(run.count({kernel, false}) == 1);
        }
        if (facts.family == Sm90Family::kDecode && across) decodes_across = true;
      }
      CHECK(decodes_across);
    }
  }
}

TEST_CASE("kernel shapes: the splits of k are among them") {
  std::set<int64_t> splits;
  for (const Shape& shape : shapes_of_kernels(KernelFamily::kSm90, kH200, true)) {
    for (const bool gated : {true, false}) {
      splits.insert(plan_sm90(product_of(shape, gated), true, kH200).choice.parts);
    }
  }
  CHECK(splits == std::set<int64_t>{1, 2, 3, 4, 6, 8});
}

TEST_CASE("kernel shapes: they run each portable tile that fits the GPU, gated and plain") {
  struct Row {
    GpuFacts gpu;
    TileKind large;
  };
  for (const Row& row : {Row{kH200, TileKind::kLarge4}, Row{kA100, TileKind::kLarge4},
                         Row{kRtx4090, TileKind::kLarge3}}) {
    std::set<int> run;
    for (const Shape& shape : shapes_of_kernels(KernelFamily::kPortable, row.gpu, true)) {
      for (const bool gated : {true, false}) {
        run.insert(plan_gemm(product_of(shape, gated), row.gpu).kernel);
      }
    }
    std::set<int> expected;
    for (const bool gated : {true, false}) {
      for (const TileKind tile : {TileKind::kTall, row.large, TileKind::kMedium, TileKind::kSmall,
                                  TileKind::kDecode4, TileKind::kDecode8}) {
        expected.insert(gemm_kernel(gated, Element::kBFloat16, tile));
      }
    }
    CHECK(run == expected);
  }
}

TEST_CASE("kernel shapes: cuBLASLt gets one, and the portable kernels those below its rows") {
  int by_cublaslt = 0;
  std::set<int> run;
  for (const Shape& shape : shapes_of_kernels(KernelFamily::kCublaslt, kH200, true)) {
    by_cublaslt += plan_cublaslt({true, shape.m, shape.d, shape.h}).refused == nullptr ? 1 : 0;
    if (shape.m >= kCublasltRows) continue;
    for (const bool gated : {true, false}) {
      run.insert(plan_gemm(product_of(shape, gated), kH200).kernel);
    }
  }
  CHECK(by_cublaslt == 1);
  CHECK(run.size() == 12);  // six tiles fit the GPU, gated and plain
}

}  // namespace
