// SPDX-License-Identifier: Apache-2.0
#include "places.hpp"

namespace kiln::sdk {
namespace {

// Rows of `width` bytes that begin `pitch` bytes apart; one row where nothing lies between them.
struct Memory {
  int64_t begin, rows, width, pitch;

  int64_t end() const { return begin + (rows - 1) * pitch + width; }
};

bool operator==(const Memory& a, const Memory& b) {
  return a.begin == b.begin && a.rows == b.rows && a.width == b.width && a.pitch == b.pitch;
}

// Dimensions before the rows are compact, so all rows lie one distance apart.
Memory memory_of(const Tensor& tensor, int dimensions) {
  const auto item = static_cast<int64_t>(dtype_bytes(tensor.dtype));
  const auto begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.data));
  const int last = dimensions - 1;
  int64_t rows = tensor.present ? 1 : 0;
  for (int d = 0; d < last; ++d) rows *= tensor.shape[d];
  const int64_t width = (dimensions > 0 ? tensor.shape[last] : 1) * item;
  if (rows == 0 || width == 0) return {begin, 0, 0, 0};
  const int64_t pitch = dimensions > 1 ? tensor.stride[last - 1] * item : width;
  if (rows == 1 || pitch == width) return {begin, 1, rows * width, 0};
  return {begin, rows, width, pitch};
}

// Of rows that lie apart by two distances the memory between counts as theirs.
bool overlap(const Memory& a, const Memory& b) {
  if (a.rows == 0 || b.rows == 0) return false;
  if (a.end() <= b.begin || b.end() <= a.begin) return false;
  const int64_t pitch = a.rows > 1 ? a.pitch : b.pitch;
  if (pitch == 0 || a.width > pitch || b.width > pitch) return true;
  if (a.rows > 1 && b.rows > 1 && a.pitch != b.pitch) return true;
  const int64_t apart = ((b.begin - a.begin) % pitch + pitch) % pitch;
  return apart < a.width || apart + b.width > pitch;
}

}  // namespace

int32_t check_places(const OpSchema& op, const Tensor* tensors, kiln_error* error) {
  for (int i = 0; i < op.place_count; ++i) {
    const PlaceRule& rule = op.places[i];
    const Tensor& output = tensors[rule.output];
    const Tensor& other = tensors[rule.other];
    const Memory a = memory_of(output, op.tensors[rule.output].dimensions);
    const Memory b = memory_of(other, op.tensors[rule.other].dimensions);
    const bool same = a == b && output.dtype == other.dtype;
    if (!overlap(a, b) || (same && rule.may_be_the_same)) continue;
    return fail(error, KILN_INVALID_ARGUMENT, "%s: %s overlaps %s; expected %smemory of its own",
                op.name, op.tensors[rule.output].name, op.tensors[rule.other].name,
                rule.may_be_the_same ? "the same place or " : "");
  }
  return KILN_OK;
}

}  // namespace kiln::sdk
