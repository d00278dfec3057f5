// SPDX-License-Identifier: Apache-2.0
//
// In the image of a target from 9.0 on, whose kernels wait for the one ahead (overlap.cuh); never
// launched. Where the host finds it, it may launch kernels so that they start early: PTX of an
// older target runs on such GPUs too, and does not wait.
extern "C" __global__ void kernels_wait() {}
