// SPDX-License-Identifier: Apache-2.0
//
// Cublaslt: y = x w^T + bias + residual by cuBLASLt, found at run time by the soname that the
// variant needs. A handle for each context, made once; descriptors for each call; no memory, no
// synchronisation and no threads of its own. Before it: cublaslt_plan.h says which calls come here.
#pragma once

#include <kiln/sdk/device.hpp>

namespace kiln::package {

using CublasltHandle = struct CublasltHandleTag*;

// Whether this variant is one of those that need cuBLASLt: a fact of the build.
bool needs_cublaslt();

// The handle of the context that `gpu` has entered; made at the first call, and found again without
// a lock. cuBLASLt may allocate a little host and device memory for it, so it is made in prepare().
int32_t enter_cublaslt(const sdk::OnDevice& gpu, CublasltHandle* handle, kiln_error* error);

// x [rows, in], weight [out, in], y [rows, out], row-major without gaps, of float16 or bfloat16;
// bias [out], or null; residual [rows, out], or null. All at least kCublasltAlignment-aligned.
// `name` is the weight's, for errors.
struct Linear {
  const char* name;
  sdk::DType dtype;
  int64_t rows, in, out;
  const void* x;
  const void* weight;
  const void* bias;
  const void* residual;
  void* y;
};

// Enqueues it; `scratch` has kCublasltScratchBytes. Sums are fp32, rounded once.
int32_t launch_linear(CublasltHandle handle, const Linear& linear, void* scratch, void* stream,
                      kiln_error* error);

}  // namespace kiln::package
