// SPDX-License-Identifier: Apache-2.0
//
// Overlaps: which outputs of layer-norm may be an input of the call.
#pragma once

#include "in_place.hpp"
#include "package.gen.hpp"

namespace kiln::package {

inline int32_t refuse_overlaps(const ForwardArguments& call, kiln_error* error) {
  using rows::matrix, rows::vector;
  return rows::refuse_overlaps(
      "forward", {matrix("y", call.y)},
      {matrix("x", call.x), vector("weight", call.weight), vector("bias", call.bias)}, error);
}

inline int32_t refuse_overlaps(const ForwardResidualArguments& call, kiln_error* error) {
  using rows::matrix, rows::vector;
  return rows::refuse_overlaps("forward_residual", {matrix("y", call.y), matrix("h", call.h)},
                               {matrix("x", call.x), matrix("residual", call.residual),
                                vector("weight", call.weight), vector("bias", call.bias)},
                               error);
}

inline int32_t refuse_overlaps(const BackwardArguments& call, kiln_error* error) {
  using rows::matrix, rows::vector;
  return rows::refuse_overlaps(
      "backward",
      {matrix("grad_h", call.grad_h), vector("grad_weight", call.grad_weight),
       vector("grad_bias", call.grad_bias)},
      {matrix("grad_y", call.grad_y), matrix("h", call.h), matrix("grad_h_more", call.grad_h_more),
       vector("weight", call.weight)},
      error);
}

}  // namespace kiln::package
