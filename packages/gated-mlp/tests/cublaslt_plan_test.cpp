// SPDX-License-Identifier: Apache-2.0
//
// The plan of the variants that need cuBLASLt, without a GPU: who computes, with which reason, and
// where the intermediates lie.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "host/cublaslt_plan.h"

namespace {

using namespace gated_mlp;

std::string text_of(const CublasltQuestion& question) {
  char text[128];
  describe(plan_cublaslt(question), text, sizeof(text));
  return text;
}

TEST_CASE("cublaslt plan: the first reason that holds keeps a forward on the portable kernels") {
  struct Row {
    CublasltQuestion question;
    const char* text;
  };
  const Row rows[] = {
      {{true, 512, 8, 8}, "cuBLASLt: up at 8192, scratch at 16384, workspace of 33570816 bytes"},
      {{true, 8192, 768, 3072},
       "cuBLASLt: up at 50331648, scratch at 100663296, workspace of 134217728 bytes"},
      // 513 * 8 * 2 = 8208, not a multiple of 256.
      {{true, 513, 8, 8}, "cuBLASLt: up at 8448, scratch at 16896, workspace of 33571328 bytes"},
      {{false, 8192, 768, 3072}, "portable kernels: this variant does not need cuBLASLt"},
      {{false, 1, 7, 7, false}, "portable kernels: this variant does not need cuBLASLt"},
      {{true, 0, 768, 3072}, "portable kernels: M is below 512"},
      {{true, 511, 768, 3072}, "portable kernels: M is below 512"},
      {{true, 8192, 0, 3072}, "portable kernels: D or H is 0"},
      {{true, 8192, 768, 0}, "portable kernels: D or H is 0"},
      {{true, 8192, 764, 3072}, "portable kernels: D or H is not a multiple of 8"},
      {{true, 8192, 768, 3073, false}, "portable kernels: D or H is not a multiple of 8"},
      {{true, 8192, 768, 3072, false}, "portable kernels: a tensor is not 16-byte aligned"},
      {{true, 8192, 768, 3072, true, true}, "portable kernels: the call is batch-invariant"},
  };
  for (const Row& row : rows) CHECK(text_of(row.question) == row.text);
  static_assert(plan_cublaslt({true, 512, 8, 8}).refused == nullptr);
}

TEST_CASE("cublaslt plan: the portable kernels need h alone, and less than cuBLASLt would") {
  const CublasltQuestion aligned = {true, 1000, 768, 3072};
  CublasltQuestion shifted = aligned;
  shifted.aligned = false;
  CHECK(plan_cublaslt(shifted).workspace_bytes == 1000 * 3072 * 2);
  CHECK(plan_cublaslt(shifted).workspace_bytes < plan_cublaslt(aligned).workspace_bytes);
  CHECK(plan_cublaslt({false, 1000, 768, 3072}).workspace_bytes == 1000 * 3072 * 2);
}

TEST_CASE("cublaslt plan: its parts lie apart, each aligned") {
  for (const std::int64_t m : {512, 513, 777, 4100}) {
    for (const std::int64_t h : {8, 24, 264, 3072}) {
      const CublasltPlan plan = plan_cublaslt({true, m, 16, h});
      const auto one = static_cast<std::size_t>(m * h * 2);
      CHECK(plan.up_offset >= one);
      CHECK(plan.scratch_offset >= plan.up_offset + one);
      CHECK(plan.workspace_bytes == plan.scratch_offset + kCublasltScratchBytes);
      CHECK(plan.up_offset % kWorkspaceAlignment == 0);
      CHECK(plan.scratch_offset % kWorkspaceAlignment == 0);
    }
  }
}

TEST_CASE("cublaslt plan: a workspace that a size does not hold is one that nobody can bring") {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  for (const std::int64_t h : {std::int64_t{8}, std::int64_t{1} << 32, kHuge}) {
    CAPTURE(h);
    CHECK(plan_cublaslt({true, kHuge, 8, h}).workspace_bytes == SIZE_MAX);
    CHECK(plan_cublaslt({false, kHuge, 8, h}).workspace_bytes == SIZE_MAX);
  }
  // One intermediate fits, two do not; and two fit, but not beside the scratch.
  CHECK(plan_cublaslt({false, kHuge / 8, 8, 8}).workspace_bytes == std::size_t{1} << 63);
  CHECK(plan_cublaslt({true, kHuge / 8, 8, 8}).workspace_bytes == SIZE_MAX);
  CHECK(plan_cublaslt({true, kHuge / 8 - 16, 8, 8}).workspace_bytes == SIZE_MAX);
  CHECK(plan_cublaslt({true, kHuge / 16, 8, 8}).workspace_bytes ==
        (std::size_t{1} << 63) + kCublasltScratchBytes);
}

}  // namespace
