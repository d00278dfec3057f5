// SPDX-License-Identifier: Apache-2.0
//
// Programmatic dependent launch: a kernel may start before the one ahead of it ends, and waits for
// it before it reads or writes. Both do nothing in a kernel that was launched without it, and where
// the target is older than SM 9.0: there the host must not launch so. Device only.
#pragma once

namespace gated_mlp {

// Until the kernel ahead has ended and all that it wrote can be seen.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next one starts when all CTAs have said so or ended.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace gated_mlp
