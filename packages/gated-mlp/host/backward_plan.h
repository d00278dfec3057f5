// SPDX-License-Identifier: Apache-2.0
//
// Backward_plan: which steps a backward takes for the gradients that are asked for, and where its
// intermediates lie in the workspace. Pure: no I/O, no globals, no driver; gpu_backward.cpp
// executes it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "host/plan.h"

namespace gated_mlp {

struct BackwardQuestion {
  int64_t m = 0;
  int64_t d = 0;
  int64_t h = 0;
  bool kept = false;        // training_forward's gate_out and up_out are there
  bool as_it_lies = false;  // kernels read every matrix as it lies: nothing is transposed
  bool biases = false;      // of gate or of up
  // The gradients that are asked for.
  bool x = false;
  bool gate = false;  // the weight
  bool up = false;
  bool down = false;
  bool gate_bias = false;
  bool up_bias = false;
  bool down_bias = false;
};

// Matrices of 16-bit elements in the workspace, in their order there. A step whose result nobody
// needs is not taken: then its matrix is not there.
enum class BackwardPart : int {
  kWeights,              // [2 h, d]: gate, then up
  kBiases,               // [1, 2 h]: theirs, 0 where there is none
  kGradProducts,         // [m, 2 h]: the gradients of gate_out and up_out, and unless kept these
  kDown,                 // [h, d]: down, transposed
  kGradHidden,           // [m, h]
  kTransposedWeights,    // [d, 2 h]
  kTransposedGradients,  // [2 h, padded m]: of the products
  kTransposedHidden,     // [h, padded m]
  kTransposedX,          // [d, padded m]
  kTransposedGradY,      // [d, padded m]
  kHidden,               // [m, h]: this and kGradProducts alone where nothing is transposed
};
inline constexpr int kBackwardParts = 11;

inline constexpr size_t kBackwardAlignment = 256;
inline constexpr size_t kNoPart = SIZE_MAX;

struct BackwardPlan {
  bool as_it_lies = false;
  bool grad_hidden = false;          // whether the gradient of h is needed
  int64_t padded_m = 0;              // a multiple of 8: rows that the copy engine can read
  size_t offsets[kBackwardParts]{};  // kNoPart: not there
  size_t workspace_bytes = 0;        // SIZE_MAX: more than a size_t holds
  constexpr bool has(BackwardPart part) const { return offsets[static_cast<int>(part)] != kNoPart; }
};

constexpr BackwardPlan plan_backward(const BackwardQuestion& q) {
  const bool of_gates = q.gate || q.up || q.gate_bias || q.up_bias;
  const bool products = q.x || of_gates || q.down;
  const bool grad_hidden = q.x || of_gates;
  BackwardPlan plan;
  plan.as_it_lies = q.as_it_lies;
  plan.grad_hidden = grad_hidden;
  plan.padded_m = tiles_of(q.m, 8) * 8;
  const struct {
    bool needed;
    int64_t rows;
    int64_t row_parts;  // rows are so many times that
    int64_t columns;
  } parts[kBackwardParts] = {
      {products && !q.kept, q.h, 2, q.d},
      {products && !q.kept && q.biases, q.h, 2, 1},
      {products, q.h, 2, q.m},
      {grad_hidden, q.h, 1, q.d},
      {grad_hidden, q.h, 1, q.m},
      {q.x, q.h, 2, q.d},
      {of_gates, q.h, 2, plan.padded_m},
      {q.down, q.h, 1, plan.padded_m},
      {q.gate || q.up, q.d, 1, plan.padded_m},
      {q.down || q.down_bias, q.d, 1, plan.padded_m},
      // What computes the products anew stores h with them, wanted or not.
      {products && (q.down || !q.kept), q.h, 1, q.m},
  };
  bool fits = true;
  for (int i = 0; i < kBackwardParts; ++i) {
    const auto part = static_cast<BackwardPart>(i);
    const bool on_this_road =
        part == BackwardPart::kGradProducts || q.as_it_lies == (part == BackwardPart::kHidden);
    const bool there = on_this_road && parts[i].needed;
    plan.offsets[i] = there ? plan.workspace_bytes : kNoPart;
    if (!there) continue;
    size_t bytes = 0;
    fits = fits &&
           !__builtin_mul_overflow(static_cast<size_t>(parts[i].rows),
                                   static_cast<size_t>(parts[i].columns), &bytes) &&
           !__builtin_mul_overflow(bytes, static_cast<size_t>(kHalfBytes * parts[i].row_parts),
                                   &bytes) &&
           !__builtin_add_overflow(bytes, kBackwardAlignment - 1, &bytes) &&
           !__builtin_add_overflow(plan.workspace_bytes, bytes - bytes % kBackwardAlignment,
                                   &plan.workspace_bytes);
  }
  if (!fits) plan.workspace_bytes = SIZE_MAX;
  return plan;
}

}  // namespace gated_mlp
