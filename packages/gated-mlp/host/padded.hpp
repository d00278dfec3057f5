// SPDX-License-Identifier: Apache-2.0
//
// Padded: calls whose D or H is no multiple of 8 run on copies whose are, since no fast kernel
// takes others. Before it and after it: ops and backward, which compute the padded call.
#pragma once

#include "host/ops.hpp"

namespace kiln::package {

inline bool needs_padding(int64_t m, int64_t d, int64_t h) {
  return m > 0 && d > 0 && h > 0 && (d % 8 != 0 || h % 8 != 0);
}

// SIZE_MAX: more than a size_t holds.
size_t padded_workspace_bytes(const MlpCall& call);
size_t padded_workspace_bytes(const MlpBackwardCall& call);

int32_t run_padded(const sdk::OnDevice& gpu, const MlpCall& call, kiln_error* error);
int32_t run_padded(const sdk::OnDevice& gpu, const MlpBackwardCall& call, kiln_error* error);

}  // namespace kiln::package
