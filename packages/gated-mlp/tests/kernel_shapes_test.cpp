// SPDX-License-Identifier: Apache-2.0
//
// That geglu_mlp_check runs every kernel: found without a GPU.
#include <doctest/doctest.h>

#include <array>
#include <set>
#include <string>

#include "host/cublaslt_plan.h"
#include "host/pins.h"
#include "kernel_shapes.hpp"
#include "sm90/sm90_plan.h"

namespace {

using namespace gated_mlp;
using gated_mlp_test::KernelFamily;
using gated_mlp_test::KernelShape;
using gated_mlp_test::Shape;
using gated_mlp_test::shapes_of_kernels;

constexpr GpuFacts kH200 = {132, 232448};
constexpr GpuFacts kA100 = {108, 166912};
constexpr GpuFacts kRtx4090 = {128, 101376};

GemmShape product_of(const Shape& shape, bool gated) {
  return {gated, Element::kBFloat16, shape.m, gated ? shape.h : shape.d, gated ? shape.d : shape.h,
          true};
}

TEST_CASE("kernel shapes: they pin every kernel for SM 9.0, across, in each split it can have") {
  for (const bool every_split : {false, true}) {
    std::set<std::string> run;  // "gated=decode_192x128,2,across"
    for (const KernelShape& one : shapes_of_kernels(KernelFamily::kSm90, kH200, every_split)) {
      CHECK(one.shape.d % 16 == 8);
      CHECK(one.shape.h % 16 == 8);
      Pins pins;
      std::array<char, 512> wrong{};
      CAPTURE(one.kernels);
      REQUIRE(
          read_pins(one.kernels.c_str(), {.forward = true}, &pins, {wrong.data(), wrong.size()}));
      for (const bool gated : {true, false}) {
        const Sm90Choice* const pinned = pins.of(gated ? Pinned::kGated : Pinned::kDown);
        REQUIRE(pinned != nullptr);
        CHECK(plan_sm90(product_of(one.shape, gated), true, kH200, pinned).refused == nullptr);
      }
      const std::size_t blank = one.kernels.find(' ');
      run.insert(one.kernels.substr(0, blank));
      run.insert(one.kernels.substr(blank + 1));
    }
    for (const std::string name :
         {"gated=prefill_128x96", "gated=prefill_128x256,across", "gated=swapped_152x128,across",
          "gated=decode_192x224", "gated=decode_192x128,2,across", "gated=stream_64x224",
          "down=swapped_192x256", "down=prefill_128x112,across", "down=decode_144x192,2",
          "down=decode_64x64,2,across", "down=stream_64x8"}) {
      CHECK(run.count(name) == 1);
    }
    CHECK(run.count("down=decode_64x64,8") == (every_split ? 1 : 0));
    CHECK(run.count("down=decode_144x128") == 0);  // it only splits k
    std::set<std::string> tiles;
    for (const std::string& each : run) tiles.insert(each.substr(0, each.find(',')));
    CHECK(tiles.size() == static_cast<std::size_t>(kGatedTileCount + kPlainTileCount));
  }
}

TEST_CASE("kernel shapes: they run each portable tile that fits the GPU, gated and plain") {
  struct Row {
    GpuFacts gpu;
    TileKind large;
  };
  for (const Row& row : {Row{kH200, TileKind::kLarge4}, Row{kA100, TileKind::kLarge4},
                         Row{kRtx4090, TileKind::kLarge3}}) {
    std::set<int> run;
    for (const auto& [shape, kernels] : shapes_of_kernels(KernelFamily::kPortable, row.gpu, true)) {
      CHECK(kernels.empty());
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
  for (const auto& [shape, kernels] : shapes_of_kernels(KernelFamily::kCublaslt, kH200, true)) {
    CHECK(kernels.empty());
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
