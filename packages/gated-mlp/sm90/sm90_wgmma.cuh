// SPDX-License-Identifier: Apache-2.0
//
// wgmma: a warpgroup's 64 x N accumulators += A (64 x 16) B^T (N x 16), both in shared memory as
// lines of 128 swizzled bytes: rows with 64 of k, or, turned, a k with 64 rows. Thread t of the
// warpgroup holds, of column block j (8 columns), at 4 j: row 16 (t / 32) + t % 32 / 4, columns 8 j
// + 2 (t % 4) and the next; at 4 j + 2 the same 8 rows below.
#pragma once

#include "element.cuh"
#include "sm90/sm90_arguments.h"

namespace gated_mlp {

// The matrix descriptor of lines of 128 bytes in the 128-byte swizzle: start address, 1024 bytes
// from one group of eight lines to the next, and, turned, from 64 rows to the next ones, all in
// units of 16 bytes.
template <bool kTurned = false>
__device__ __forceinline__ unsigned long long matrix_at(unsigned shared) {
  constexpr unsigned long long kSwizzle128 = 1ull << 62;
  constexpr unsigned long long kGroupStride = 64ull << 32;
  constexpr unsigned long long kBlockStride = (kTurned ? kTurnedBytes / 16 : 1ull) << 16;
  return kSwizzle128 | kGroupStride | kBlockStride | ((shared & 0x3ffffu) >> 4);
}
// From 16 of k to the next, in units of 16 bytes: 32 bytes, or 16 lines.
constexpr unsigned kNextK16 = 2;
constexpr unsigned kNextK16Turned = 16 * 128 / 16;

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
// Operands of wgmma: the numbers of the sums of n columns, built up from four (eight columns) to 128.
#define KILN_NUMBERS_8 "%0, %1, %2, %3"
#define KILN_NUMBERS_16 KILN_NUMBERS_8 \
  ", %4, %5, %6, %7"
#define KILN_NUMBERS_24 KILN_NUMBERS_16 \
  ", %8, %9, %10, %11"
#define KILN_NUMBERS_32 KILN_NUMBERS_24 \
  ", %12, %13, %14, %15"
#define KILN_NUMBERS_40 KILN_NUMBERS_32 \
  ", %16, %17, %18, %19"
#define KILN_NUMBERS_48 KILN_NUMBERS_32 \
  ", %16, %17, %18, %19, %20, %21, %22, %23"
#define KILN_NUMBERS_56 KILN_NUMBERS_48 \
  ", %24, %25, %26, %27"
#define KILN_NUMBERS_64 KILN_NUMBERS_48 \
  ", %24, %25, %26, %27, %28, %29, %30, %31"
#define KILN_NUMBERS_72 KILN_NUMBERS_64 \
  ", %32, %33, %34, %35"
#define KILN_NUMBERS_80 KILN_NUMBERS_64 \
  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define KILN_NUMBERS_88 KILN_NUMBERS_80 \
  ", %40, %41, %42, %43"
#define KILN_NUMBERS_96 KILN_NUMBERS_64 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define KILN_NUMBERS_104 KILN_NUMBERS_96 \
  ", %48, %49, %50, %51"
#define KILN_NUMBERS_112 KILN_NUMBERS_96 \
  ", %48, %49, %50, %51, %52, %53, %54, %55"
#define KILN_NUMBERS_120 KILN_NUMBERS_112 \
  ", %56, %57, %58, %59"
#define KILN_NUMBERS_128 KILN_NUMBERS_112 \
  ", %56, %57, %58, %59, %60, %61, %62, %63"
#define KILN_NUMBERS_136 KILN_NUMBERS_128 \
  ", %64, %65, %66, %67"
#define KILN_NUMBERS_144 KILN_NUMBERS_128 \
  ", %64, %65, %66, %67, %68, %69, %70, %71"
#define KILN_NUMBERS_152 KILN_NUMBERS_144 \
  ", %72, %73, %74, %75"
#define KILN_NUMBERS_160 KILN_NUMBERS_152 \
  ", %76, %77, %78, %79"
#define KILN_NUMBERS_176 KILN_NUMBERS_160 \
  ", %80, %81, %82, %83, %84, %85, %86, %87"
#define KILN_NUMBERS_184 KILN_NUMBERS_176 \
  ", %88, %89, %90, %91"
#define KILN_NUMBERS_168 KILN_NUMBERS_160 \
  ", %80, %81, %82, %83"
#define KILN_NUMBERS_192 KILN_NUMBERS_160 \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define KILN_NUMBERS_224 KILN_NUMBERS_192 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define KILN_NUMBERS_256 KILN_NUMBERS_224 \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define KILN_SUMS_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KILN_SUMS_16(i) KILN_SUMS_8(i), KILN_SUMS_8(i + 4)
#define KILN_SUMS_32(i) KILN_SUMS_16(i), KILN_SUMS_16(i + 8)
#define KILN_SUMS_64(i) KILN_SUMS_32(i), KILN_SUMS_32(i + 16)
#define KILN_SUMS_128(i) KILN_SUMS_64(i), KILN_SUMS_64(i + 32)
#define KILN_SUMS_24(i) KILN_SUMS_16(i), KILN_SUMS_8(i + 8)
#define KILN_SUMS_48(i) KILN_SUMS_32(i), KILN_SUMS_16(i + 16)
#define KILN_SUMS_40(i) KILN_SUMS_32(i), KILN_SUMS_8(i + 16)
#define KILN_SUMS_56(i) KILN_SUMS_48(i), KILN_SUMS_8(i + 24)
#define KILN_SUMS_72(i) KILN_SUMS_64(i), KILN_SUMS_8(i + 32)
#define KILN_SUMS_80(i) KILN_SUMS_64(i), KILN_SUMS_16(i + 32)
#define KILN_SUMS_88(i) KILN_SUMS_80(i), KILN_SUMS_8(i + 40)
#define KILN_SUMS_96(i) KILN_SUMS_64(i), KILN_SUMS_32(i + 32)
#define KILN_SUMS_112(i) KILN_SUMS_96(i), KILN_SUMS_16(i + 48)
#define KILN_SUMS_144(i) KILN_SUMS_128(i), KILN_SUMS_16(i + 64)
#define KILN_SUMS_152(i) KILN_SUMS_144(i), KILN_SUMS_8(i + 72)
#define KILN_SUMS_160(i) KILN_SUMS_128(i), KILN_SUMS_32(i + 64)
#define KILN_SUMS_104(i) KILN_SUMS_96(i), KILN_SUMS_8(i + 48)
#define KILN_SUMS_120(i) KILN_SUMS_112(i), KILN_SUMS_8(i + 56)
#define KILN_SUMS_136(i) KILN_SUMS_128(i), KILN_SUMS_8(i + 64)
#define KILN_SUMS_168(i) KILN_SUMS_160(i), KILN_SUMS_8(i + 80)
#define KILN_SUMS_176(i) KILN_SUMS_160(i), KILN_SUMS_16(i + 80)
#define KILN_SUMS_184(i) KILN_SUMS_176(i), KILN_SUMS_8(i + 88)
#define KILN_SUMS_192(i) KILN_SUMS_128(i), KILN_SUMS_64(i + 64)
#define KILN_SUMS_224(i) KILN_SUMS_192(i), KILN_SUMS_32(i + 96)
#define KILN_SUMS_256(i) KILN_SUMS_128(i), KILN_SUMS_128(i + 64)

// a, b and add are the operands after the sums; `turned` says of a and of b whether it is.
#define KILN_WGMMA(columns, type, turned, a_number, b_number, add_number) \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_number ", 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" \
      KILN_NUMBERS_##columns "}, %" #a_number ", %" #b_number ", add, 1, 1, " turned ";\n}" \
      : KILN_SUMS_##columns(0) \
      : "l"(a), "l"(b), "r"(add))
// clang-format on

// Tells multiply how many columns the sums have.
template <int kColumns>
struct Columns {};

// d += a b^T; add == 0: the sums start at zero.
#define KILN_MULTIPLY_IN(Order, turned, columns, a_number, b_number, add_number)                \
  __device__ __forceinline__ void multiply(Columns<columns>, Order, float* d,                   \
                                           unsigned long long a, unsigned long long b, int add, \
                                           Bfloat16) {                                          \
    KILN_WGMMA(columns, "bf16", turned, a_number, b_number, add_number);                        \
  }                                                                                             \
  __device__ __forceinline__ void multiply(Columns<columns>, Order, float* d,                   \
                                           unsigned long long a, unsigned long long b, int add, \
                                           Float16) {                                           \
    KILN_WGMMA(columns, "f16", turned, a_number, b_number, add_number);                         \
  }
#define KILN_MULTIPLY(...) KILN_MULTIPLY_IN(Straight, "0, 0", __VA_ARGS__)
#define KILN_MULTIPLY_TURNED(...)                \
  KILN_MULTIPLY_IN(TurnedB, "0, 1", __VA_ARGS__) \
  KILN_MULTIPLY_IN(TurnedBoth, "1, 1", __VA_ARGS__)
KILN_MULTIPLY(8, 4, 5, 6)
KILN_MULTIPLY(16, 8, 9, 10)
KILN_MULTIPLY(24, 12, 13, 14)
KILN_MULTIPLY(32, 16, 17, 18)
KILN_MULTIPLY(40, 20, 21, 22)
KILN_MULTIPLY(48, 24, 25, 26)
KILN_MULTIPLY(56, 28, 29, 30)
KILN_MULTIPLY(64, 32, 33, 34)
KILN_MULTIPLY(72, 36, 37, 38)
KILN_MULTIPLY(80, 40, 41, 42)
KILN_MULTIPLY(88, 44, 45, 46)
KILN_MULTIPLY(96, 48, 49, 50)
KILN_MULTIPLY(104, 52, 53, 54)
KILN_MULTIPLY(112, 56, 57, 58)
KILN_MULTIPLY(120, 60, 61, 62)
KILN_MULTIPLY(128, 64, 65, 66)
KILN_MULTIPLY(136, 68, 69, 70)
KILN_MULTIPLY(144, 72, 73, 74)
KILN_MULTIPLY(152, 76, 77, 78)
KILN_MULTIPLY(160, 80, 81, 82)
KILN_MULTIPLY(168, 84, 85, 86)
KILN_MULTIPLY(176, 88, 89, 90)
KILN_MULTIPLY(184, 92, 93, 94)
KILN_MULTIPLY(192, 96, 97, 98)
KILN_MULTIPLY(224, 112, 113, 114)
KILN_MULTIPLY(256, 128, 129, 130)
KILN_MULTIPLY_TURNED(128, 64, 65, 66)
KILN_MULTIPLY_TURNED(192, 96, 97, 98)
KILN_MULTIPLY_TURNED(256, 128, 129, 130)

// Into all of an array: its size tells the columns.
template <int kCount, class Element, class Order = Straight>
__device__ __forceinline__ void multiply(float (&d)[kCount], unsigned long long a,
                                         unsigned long long b, int add, Element element,
                                         Order order = {}) {
  multiply(Columns<2 * kCount>{}, order, d, a, b, add, element);
}

}  // namespace gated_mlp
