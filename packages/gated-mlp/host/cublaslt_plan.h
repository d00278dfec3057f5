// SPDX-License-Identifier: Apache-2.0
//
// Cublaslt_plan: which forwards cuBLASLt computes, in the variants that need it ("needs" of
// package.json), and where their intermediates lie in the workspace. Pure: no I/O, no globals, no
// driver; gpu_ops.cpp executes it. A plan is a value that tests compare and `describe` prints.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "host/plan.h"

namespace gated_mlp {

// A guess, without a measurement on a GPU of such a variant: three GEMMs and a pass over gate and
// up must first earn back four launches and the larger workspace. On an H200 eager, which is cuBLAS
// and more passes, is ahead of the portable kernels from M = 256 on
// (bench/results/nvidia-h200-sweep.json); 512 keeps a distance.
inline constexpr int64_t kCublasltRows = 512;

// What a caller's tensors must have, and all that cuBLASLt is told of them: with its own default
// it would expect 256. The choice then never depends on where a tensor happens to lie.
inline constexpr int64_t kCublasltAlignment = 16;
inline constexpr int64_t kCublasltMultiple = kCublasltAlignment / kHalfBytes;

// For partial sums: what NVIDIA's documentation recommends for cuBLAS on Hopper.
inline constexpr size_t kCublasltScratchBytes = size_t{32} << 20;
inline constexpr size_t kWorkspaceAlignment = 256;

struct CublasltQuestion {
  bool needed = false;  // by this variant
  int64_t m = 0;
  int64_t d = 0;
  int64_t h = 0;
  bool aligned = true;     // every tensor and bias, to kCublasltAlignment
  bool invariant = false;  // a row's bits must not depend on m
};

struct CublasltPlan {
  const char* refused = nullptr;  // why the portable kernels compute it; null: cuBLASLt does
  // Gate's product lies at 0, and there the geglu of both replaces it.
  size_t up_offset = 0;
  size_t scratch_offset = 0;
  size_t workspace_bytes = 0;  // SIZE_MAX: more than a size_t holds
  bool operator==(const CublasltPlan&) const = default;
};

constexpr const char* why_not_cublaslt(const CublasltQuestion& question) {
  if (!question.needed) return "this variant does not need cuBLASLt";
  if (question.invariant) return "the call is batch-invariant";
  if (question.m < kCublasltRows) return "M is below 512";
  if (question.d == 0 || question.h == 0) return "D or H is 0";
  if (question.d % kCublasltMultiple != 0 || question.h % kCublasltMultiple != 0) {
    return "D or H is not a multiple of 8";
  }
  if (!question.aligned) return "a tensor is not 16-byte aligned";
  return nullptr;
}
static_assert(kCublasltRows == 512 && kCublasltMultiple == 8 && kCublasltAlignment == 16,
              "the reasons above name these numbers");

// [m, h] of a half type; false if a size_t does not hold it.
constexpr bool intermediate_bytes(int64_t m, int64_t h, size_t* bytes) {
  return !__builtin_mul_overflow(static_cast<size_t>(m), static_cast<size_t>(h), bytes) &&
         !__builtin_mul_overflow(*bytes, static_cast<size_t>(kHalfBytes), bytes);
}

constexpr CublasltPlan plan_cublaslt(const CublasltQuestion& question) {
  CublasltPlan plan;
  plan.refused = why_not_cublaslt(question);
  size_t one = 0;
  bool fits = intermediate_bytes(question.m, question.h, &one);
  if (plan.refused != nullptr) {
    plan.workspace_bytes = fits ? one : SIZE_MAX;  // the portable kernels write h alone
    return plan;
  }
  fits = fits && !__builtin_add_overflow(one, kWorkspaceAlignment - 1, &plan.up_offset);
  plan.up_offset -= plan.up_offset % kWorkspaceAlignment;
  fits = fits && !__builtin_mul_overflow(plan.up_offset, size_t{2}, &plan.scratch_offset) &&
         !__builtin_add_overflow(plan.scratch_offset, kCublasltScratchBytes, &plan.workspace_bytes);
  if (!fits) plan.workspace_bytes = SIZE_MAX;
  return plan;
}

inline int describe(const CublasltPlan& plan, char* text, size_t size) {
  if (plan.refused != nullptr) return snprintf(text, size, "portable kernels: %s", plan.refused);
  return snprintf(text, size, "cuBLASLt: up at %zu, scratch at %zu, workspace of %zu bytes",
                  plan.up_offset, plan.scratch_offset, plan.workspace_bytes);
}

}  // namespace gated_mlp
