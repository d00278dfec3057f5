// SPDX-License-Identifier: Apache-2.0
//
// wgmma: a warpgroup's 64 x N accumulators += A (64 x 16) B^T (N x 16), both in shared memory as
// rows of 128 swizzled bytes. Thread t of the warpgroup holds, of column block j (8 columns), at 4
// j: row 16 (t / 32) + t % 32 / 4, columns 8 j + 2 (t % 4) and the next; at 4 j + 2 the same 8 rows
// below.
#pragma once

#include "activation.cuh"

namespace geglu_mlp {

// The matrix descriptor of rows of 128 bytes in the 128-byte swizzle: start address, and 1024 bytes
// from one group of eight rows to the next, both in units of 16 bytes.
__device__ __forceinline__ unsigned long long matrix_at(unsigned shared) {
  constexpr unsigned long long kSwizzle128 = 1ull << 62;
  constexpr unsigned long long kGroupStride = 64ull << 32;
  return kSwizzle128 | kGroupStride | (1ull << 16) | ((shared & 0x3ffffu) >> 4);
}
constexpr unsigned kNextK16 = 2;  // 32 bytes further on, in units of 16

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accumulators while a wgmma writes them.
template <int kCount>
__device__ __forceinline__ void hold(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// clang-format off
#define KILN_SUMS_8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
  "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define KILN_SUMS_32(i) \
  KILN_SUMS_8(i), KILN_SUMS_8(i + 8), KILN_SUMS_8(i + 16), KILN_SUMS_8(i + 24)

#define KILN_WGMMA_64(type) \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
      "}, %32, %33, add, 1, 1, 0, 0;\n}" \
      : KILN_SUMS_32(0) \
      : "l"(a), "l"(b), "r"(add))

#define KILN_WGMMA_128(type) \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63" \
      "}, %64, %65, add, 1, 1, 0, 0;\n}" \
      : KILN_SUMS_32(0), KILN_SUMS_32(32) \
      : "l"(a), "l"(b), "r"(add))

#define KILN_WGMMA_192(type) \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %98, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n192k16.f32." type "." type " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
      "}, %96, %97, add, 1, 1, 0, 0;\n}" \
      : KILN_SUMS_32(0), KILN_SUMS_32(32), KILN_SUMS_32(64) \
      : "l"(a), "l"(b), "r"(add))

#define KILN_WGMMA_256(type) \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127" \
      "}, %128, %129, add, 1, 1, 0, 0;\n}" \
      : KILN_SUMS_32(0), KILN_SUMS_32(32), KILN_SUMS_32(64), KILN_SUMS_32(96) \
      : "l"(a), "l"(b), "r"(add))

// clang-format on

// add == 0: the sums start at zero.

#define KILN_WGMMA(columns)                                                              \
  __device__ __forceinline__ void multiply(float(&d)[columns / 2], unsigned long long a, \
                                           unsigned long long b, int add, Bfloat16) {    \
    KILN_WGMMA_##columns("bf16");                                                        \
  }                                                                                      \
  __device__ __forceinline__ void multiply(float(&d)[columns / 2], unsigned long long a, \
                                           unsigned long long b, int add, Float16) {     \
    KILN_WGMMA_##columns("f16");                                                         \
  }
KILN_WGMMA(64)
KILN_WGMMA(128)
KILN_WGMMA(192)
KILN_WGMMA(256)

}  // namespace geglu_mlp
