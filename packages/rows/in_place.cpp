// SPDX-License-Identifier: Apache-2.0
#include "in_place.hpp"

namespace rows {
namespace {

bool stand_at_one_place(const Rows& a, const Rows& b) {
  return a.tensor->data == b.tensor->data && a.rows == b.rows && a.columns == b.columns &&
         (a.stride == b.stride || a.rows == 1) && a.tensor->dtype == b.tensor->dtype;
}

}  // namespace

bool overlap(const Rows& a, const Rows& b) {
  if (!a.tensor->present || !b.tensor->present) return false;
  if (a.rows == 0 || a.columns == 0 || b.rows == 0 || b.columns == 0) return false;
  const auto size_a = static_cast<int64_t>(sdk::dtype_bytes(a.tensor->dtype));
  const auto size_b = static_cast<int64_t>(sdk::dtype_bytes(b.tensor->dtype));
  const auto begin_a = static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.tensor->data));
  const auto begin_b = static_cast<int64_t>(reinterpret_cast<uintptr_t>(b.tensor->data));
  const int64_t end_a = begin_a + ((a.rows - 1) * a.stride + a.columns) * size_a;
  const int64_t end_b = begin_b + ((b.rows - 1) * b.stride + b.columns) * size_b;
  if (end_a <= begin_b || end_b <= begin_a) return false;
  const int64_t stride = a.stride * size_a;
  if (stride != b.stride * size_b) return true;
  const int64_t apart = ((begin_b - begin_a) % stride + stride) % stride;
  return apart < a.columns * size_a || apart + b.columns * size_b > stride;
}

int32_t refuse_overlap(const char* op, const Rows& output, const Rows& other, bool may_be_the_same,
                       kiln_error* error) {
  if (!overlap(output, other) || (may_be_the_same && stand_at_one_place(output, other))) {
    return KILN_OK;
  }
  return sdk::fail(error, KILN_INVALID_ARGUMENT, "%s: %s overlaps %s; expected %smemory of its own",
                   op, output.name, other.name, may_be_the_same ? "the same place or " : "");
}

}  // namespace rows
