// SPDX-License-Identifier: Apache-2.0
//
// Places: what the tensors of a call take of memory, and the refusal of what overlaps. Columns of
// one matrix, side by side, have nothing in common.
#pragma once

#include <kiln/sdk/check.hpp>

namespace kiln::sdk {

// KILN_INVALID_ARGUMENT, "forward: y overlaps x; …", unless each pair of the schema lies apart or,
// where it may, each element of one stands at the other's place. For checked tensors.
int32_t check_places(const OpSchema& op, const Tensor* tensors, kiln_error* error);

}  // namespace kiln::sdk
