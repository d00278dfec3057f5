// SPDX-License-Identifier: Apache-2.0
//
// Element: the storage types, and conversions between them and fp32. Device only, no toolkit
// headers: NVRTC compiles this in milliseconds.
#pragma once

namespace gated_mlp {

struct Bfloat16 {
  unsigned short bits;
};
struct Float16 {
  unsigned short bits;
};

__device__ __forceinline__ float load_float(Bfloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
__device__ __forceinline__ float load_float(Float16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
__device__ __forceinline__ float load_float(float value) {
  return value;
}

// Two values in one register, the first in the low half; round to nearest even.
__device__ __forceinline__ unsigned pack_pair(float first, float second, Bfloat16) {
  unsigned result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
  return result;
}
__device__ __forceinline__ unsigned pack_pair(float first, float second, Float16) {
  unsigned result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
  return result;
}

// Two values, of float16 those beyond `greatest` brought back to it; a NaN stays one.
__device__ __forceinline__ unsigned bound_pair(unsigned both, unsigned, Bfloat16) {
  return both;
}
__device__ __forceinline__ unsigned bound_pair(unsigned both, unsigned greatest, Float16) {
  asm("{\n"
      ".reg .b32 least;\n"
      "xor.b32 least, %1, 0x80008000;\n"
      "min.NaN.f16x2 %0, %0, %1;\n"
      "max.NaN.f16x2 %0, %0, least;\n"
      "}"
      : "+r"(both)
      : "r"(greatest));
  return both;
}

// And back.
template <class T>
__device__ __forceinline__ float2 unpack_pair(unsigned both) {
  return {load_float(T{static_cast<unsigned short>(both & 0xffffu)}),
          load_float(T{static_cast<unsigned short>(both >> 16)})};
}

// What stands for a GatedUnit (gate.cuh) in a plain kernel.
struct NoGate {
  template <class Element>
  __device__ __forceinline__ unsigned pack(float first, float second, Element element) const {
    return pack_pair(first, second, element);
  }
};

template <class T>
__device__ __forceinline__ void store_float(T* address, float value) {
  address->bits = static_cast<unsigned short>(pack_pair(value, 0.0f, T{}) & 0xffffu);
}
__device__ __forceinline__ void store_float(float* address, float value) {
  *address = value;
}
// To element `at` of sums, or, where it adds, of those of float32.
template <class T>
__device__ __forceinline__ void store_sum(void* sums, long long at, float value, bool adds) {
  if (adds) {
    static_cast<float*>(sums)[at] += value;
  } else {
    store_float(static_cast<T*>(sums) + at, value);
  }
}

}  // namespace gated_mlp
