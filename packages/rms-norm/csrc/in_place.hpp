// SPDX-License-Identifier: Apache-2.0
//
// In place: which outputs may be an input of the call, and the refusal of all other overlaps. An
// element is read before it is written where both stand at one place; what another row or another
// element would overwrite is refused, on every device alike.
#pragma once

#include "package.gen.hpp"

namespace kiln::package {

/// Rows of `columns` elements that begin `stride` elements apart. No data: the tensor is absent.
struct Rows {
  const char* name;
  const sdk::Tensor& tensor;
  int64_t rows;
  int64_t columns;
  int64_t stride;
};

inline Rows matrix(const char* name, const sdk::Tensor& tensor, int64_t rows, int64_t columns) {
  return {name, tensor, rows, columns, tensor.stride[0]};
}

inline Rows vector(const char* name, const sdk::Tensor& tensor, int64_t columns) {
  return {name, tensor, 1, columns, columns};
}

inline bool stand_at_one_place(const Rows& a, const Rows& b) {
  return a.tensor.data == b.tensor.data && a.rows == b.rows && a.columns == b.columns &&
         (a.stride == b.stride || a.rows == 1);
}

/// Columns of one matrix, side by side, do not overlap. Of rows that lie apart by two distances the
/// memory between counts as theirs.
inline bool overlap(const Rows& a, const Rows& b) {
  if (a.rows == 0 || a.columns == 0 || b.rows == 0 || b.columns == 0) return false;
  if (!a.tensor.present || !b.tensor.present) return false;
  const auto size = static_cast<int64_t>(sdk::dtype_bytes(a.tensor.dtype));
  const auto begin_a = static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.tensor.data));
  const auto begin_b = static_cast<int64_t>(reinterpret_cast<uintptr_t>(b.tensor.data));
  const int64_t end_a = begin_a + ((a.rows - 1) * a.stride + a.columns) * size;
  const int64_t end_b = begin_b + ((b.rows - 1) * b.stride + b.columns) * size;
  if (end_a <= begin_b || end_b <= begin_a) return false;
  if (a.stride != b.stride || (begin_b - begin_a) % size != 0) return true;
  const int64_t apart = ((begin_b - begin_a) / size % a.stride + a.stride) % a.stride;
  return apart < a.columns || apart + b.columns > a.stride;
}

inline int32_t refuse_overlap(const char* op, const Rows& output, const Rows& other,
                              bool may_be_the_same, kiln_error* error) {
  if (!overlap(output, other) || (may_be_the_same && stand_at_one_place(output, other))) {
    return KILN_OK;
  }
  return sdk::fail(error, KILN_INVALID_ARGUMENT, "%s: %s overlaps %s; expected %smemory of its own",
                   op, output.name, other.name, may_be_the_same ? "the same place or " : "");
}

inline int32_t check_in_place(const ForwardArguments& call, kiln_error* error) {
  const Rows x = matrix("x", call.x, call.M, call.D);
  const Rows residual = matrix("residual", call.residual, call.M, call.D);
  const Rows weight = vector("weight", call.weight, call.D);
  const Rows y = matrix("y", call.y, call.M, call.D);
  const Rows h_out = matrix("h_out", call.h_out, call.M, call.D);
  const Rows outputs[] = {y, h_out};
  for (const Rows& output : outputs) {
    int32_t status = refuse_overlap("forward", output, weight, false, error);
    if (status == KILN_OK) status = refuse_overlap("forward", output, x, true, error);
    if (status == KILN_OK) status = refuse_overlap("forward", output, residual, true, error);
    if (status != KILN_OK) return status;
  }
  return refuse_overlap("forward", h_out, y, false, error);
}

/// The gradient of weight reads h and grad_y when that of h is written.
inline int32_t check_in_place(const BackwardArguments& call, kiln_error* error) {
  const Rows grad_y = matrix("grad_y", call.grad_y, call.M, call.D);
  const Rows h = matrix("h", call.h, call.M, call.D);
  const Rows weight = vector("weight", call.weight, call.D);
  const Rows grad_h = matrix("grad_h", call.grad_h, call.M, call.D);
  const Rows grad_weight = vector("grad_weight", call.grad_weight, call.D);
  const bool alone = !call.grad_weight.present;
  int32_t status = refuse_overlap("backward", grad_h, weight, false, error);
  if (status == KILN_OK) status = refuse_overlap("backward", grad_h, grad_y, alone, error);
  if (status == KILN_OK) status = refuse_overlap("backward", grad_h, h, alone, error);
  const Rows others[] = {weight, grad_y, h, grad_h};
  for (const Rows& other : others) {
    if (status == KILN_OK) status = refuse_overlap("backward", grad_weight, other, false, error);
  }
  return status;
}

}  // namespace kiln::package
