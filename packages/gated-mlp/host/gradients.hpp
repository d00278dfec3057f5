// SPDX-License-Identifier: Apache-2.0
//
// Gradients: backward where this variant has kernels for SM 9.0 that read its matrices as they lie
// in memory (sm90_gradients.cu). Before it: gpu_backward.cpp, which takes every other call. After
// it: gradients_plan.h and gpu_gemm.hpp.
#pragma once

#include "host/backward_plan.h"
#include "host/ops.hpp"
#include "host/pins.h"

namespace kiln::package {

// Whether this variant and the call's widths and addresses allow it. An address that is not known
// does not: workspace_bytes() asks this, too, before there may be any.
bool gradients_lie_well(const MlpBackwardCall& call);

int32_t launch_gradients(const sdk::OnDevice& gpu, const MlpBackwardCall& call,
                         const gated_mlp::BackwardPlan& plan, const gated_mlp::Pins& pins,
                         kiln_error* error);

}  // namespace kiln::package
