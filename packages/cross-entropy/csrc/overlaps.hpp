// SPDX-License-Identifier: Apache-2.0
//
// Overlaps: which outputs of cross-entropy may be an input of the call.
#pragma once

#include "in_place.hpp"
#include "package.gen.hpp"

namespace kiln::package {

inline int32_t refuse_overlaps(const ForwardArguments& call, kiln_error* error) {
  using rows::matrix, rows::vector;
  return rows::refuse_overlaps("forward", {vector("loss", call.loss), vector("lse", call.lse)},
                               {matrix("logits", call.logits), vector("targets", call.targets)},
                               error);
}

inline int32_t refuse_overlaps(const BackwardArguments& call, kiln_error* error) {
  using rows::matrix, rows::vector;
  return rows::refuse_overlaps("backward", {matrix("grad_logits", call.grad_logits)},
                               {matrix("logits", call.logits), vector("targets", call.targets),
                                vector("lse", call.lse), vector("grad_loss", call.grad_loss)},
                               error);
}

inline int32_t refuse_overlaps(const ForwardBackwardArguments& call, kiln_error* error) {
  using rows::matrix, rows::vector;
  return rows::refuse_overlaps("forward_backward",
                               {matrix("grad_logits", call.grad_logits), vector("loss", call.loss)},
                               {matrix("logits", call.logits), vector("targets", call.targets),
                                vector("grad_loss", call.grad_loss)},
                               error);
}

}  // namespace kiln::package
