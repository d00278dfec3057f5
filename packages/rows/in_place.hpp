// SPDX-License-Identifier: Apache-2.0
//
// In place: which outputs may be an input of the call, and the refusal of all other overlaps. For
// ops that read an element before they write it where both stand at one place; what another row or
// another element would overwrite is refused, on every device alike.
#pragma once

#include <kiln/sdk/types.hpp>

namespace rows {

namespace sdk = kiln::sdk;

// Rows of `columns` elements that begin `stride` elements apart.
struct Rows {
  const char* name;
  const sdk::Tensor* tensor;
  int64_t rows;
  int64_t columns;
  int64_t stride;
  bool is_matrix;
};

inline Rows matrix(const char* name, const sdk::Tensor& tensor) {
  return {name, &tensor, tensor.shape[0], tensor.shape[1], tensor.stride[0], true};
}
inline Rows vector(const char* name, const sdk::Tensor& tensor) {
  return {name, &tensor, 1, tensor.shape[0], tensor.shape[0], false};
}

// Whether the two have an element in common. Columns of one matrix, side by side, do not; of rows
// that lie apart by two distances the memory between counts as theirs.
bool overlap(const Rows& a, const Rows& b);

// KILN_INVALID_ARGUMENT, "forward: y overlaps x; …", unless they do not or, where
// `may_be_the_same`, each element of one stands at the other's place.
int32_t refuse_overlap(const char* op, const Rows& output, const Rows& other, bool may_be_the_same,
                       kiln_error* error);

// The same of all outputs of an op that reads a row whole before it writes it: each may be any
// input of as many rows, and none may be another output.
template <int kOutputs, int kInputs>
int32_t refuse_overlaps(const char* op, const Rows (&outputs)[kOutputs],
                        const Rows (&inputs)[kInputs], kiln_error* error) {
  for (int i = 0; i < kOutputs; ++i) {
    for (const Rows& input : inputs) {
      const bool alike = outputs[i].is_matrix && input.is_matrix;
      const int32_t status = refuse_overlap(op, outputs[i], input, alike, error);
      if (status != KILN_OK) return status;
    }
    for (int other = 0; other < i; ++other) {
      const int32_t status = refuse_overlap(op, outputs[i], outputs[other], false, error);
      if (status != KILN_OK) return status;
    }
  }
  return KILN_OK;
}

}  // namespace rows
