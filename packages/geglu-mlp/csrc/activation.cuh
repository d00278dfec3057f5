// SPDX-License-Identifier: Apache-2.0
//
// Activation: gelu and its derivative in fp32, and the conversions between fp32 and the storage
// types. Device only, no toolkit headers: NVRTC compiles this in milliseconds.
#pragma once

namespace geglu_mlp {

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

template <class T>
__device__ __forceinline__ void store_float(T* address, float value) {
  address->bits = static_cast<unsigned short>(pack_pair(value, 0.0f, T{}) & 0xffffu);
}
__device__ __forceinline__ void store_float(float* address, float value) {
  *address = value;
}

__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

constexpr float kSqrtHalf = 0.70710678118654752f;
constexpr float kCubic = 0.044715f;
constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057308f;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kInverseSqrtTwoPi = 0.39894228040143268f;

// 0.5 (1 + tanh(z)) = sigmoid(2 z): the same function without the cancellation of 1 + tanh(z) at
// negative z. exp2 overflows to infinity there, its reciprocal is 0, and x * 0 is right.
__device__ __forceinline__ float gelu_tanh(float x) {
  const float exponent = (-kTwiceSqrtTwoOverPi * kLog2E) * x * fmaf(kCubic * x, x, 1.0f);
  return x * reciprocal_approx(1.0f + exp2_approx(exponent));
}

// The same of two values with one reciprocal, 1 / a = b (1 / (a b)): exponentials and reciprocals
// run at a quarter of the rate of products. a b stays finite because x is cut at -7.6, where the
// result is -1e-18; NaN passes through.
__device__ __forceinline__ float2 gelu_tanh_pair(float2 x) {
  constexpr float kLinear = -kTwiceSqrtTwoOverPi * kLog2E;
  constexpr float kLeast = -7.6f;
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x.x) : "f"(kLeast));
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x.y) : "f"(kLeast));
  const float a = 1.0f + exp2_approx(x.x * fmaf(kLinear * kCubic, x.x * x.x, kLinear));
  const float b = 1.0f + exp2_approx(x.y * fmaf(kLinear * kCubic, x.y * x.y, kLinear));
  const float both = reciprocal_approx(a * b);
  return {x.x * (b * both), x.y * (a * both)};
}

// 0.5 (1 + erf(x / sqrt 2)) = 0.5 erfc(-x / sqrt 2), for the same reason.
__device__ __forceinline__ float gelu_exact(float x) {
  return x * (0.5f * erfcf(-kSqrtHalf * x));
}

// The same in fifteen instructions, for results that are rounded to 16 bits:
// 0.5 erfc(z) = exp(-z^2) t P(t) with t = 1 / (1 + 0.4 z), z = |x| / sqrt 2, P of degree 6 through
// the Chebyshev nodes of t in [0, 1]. Greatest relative error 6.0e-6, against 4.9e-4 of float16's
// rounding.
__device__ __forceinline__ float gelu_exact_for_half(float x) {
  const float t = reciprocal_approx(fmaf(0.28284271f, fabsf(x), 1.0f));
  float p = -0.0486025924f;
  p = fmaf(p, t, 0.0964135932f);
  p = fmaf(p, t, 0.0304403166f);
  p = fmaf(p, t, 0.0930729493f);
  p = fmaf(p, t, 0.1029565969f);
  p = fmaf(p, t, 0.1128790920f);
  p = fmaf(p, t, 0.1128375211f);
  const float tail = p * t * exp2_approx((-0.5f * kLog2E) * x * x);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

// Of the results of wgmma, two at a time.
template <bool kExact>
__device__ __forceinline__ float2 gated_pair(float2 gate, float2 up) {
  const float2 gelu = kExact ? float2{gelu_exact_for_half(gate.x), gelu_exact_for_half(gate.y)}
                             : gelu_tanh_pair(gate);
  return {gelu.x * up.x, gelu.y * up.y};
}

__device__ __forceinline__ float2 gated_pair(float2 gate, float2 up, bool exact) {
  return exact ? gated_pair<true>(gate, up) : gated_pair<false>(gate, up);
}

struct GeluWithSlope {
  float value;
  float slope;
};

// Beyond 20 both forms are saturated to the last bit of fp32, and clamping there keeps every
// product finite. Written as comparisons so that NaN passes through.
__device__ __forceinline__ float clamp_argument(float x) {
  x = x > 20.0f ? 20.0f : x;
  return x < -20.0f ? -20.0f : x;
}

// value = x s, slope = s + 2 x s (1 - s) z' with s = sigmoid(2 z). 1 - s is e s with
// e = exp(-2 z): no cancellation; e is kept finite, else e s would be infinity times zero.
__device__ __forceinline__ GeluWithSlope gelu_tanh_with_slope(float x) {
  const float c = clamp_argument(x);
  const float square = c * c;
  const float exponent = (-kTwiceSqrtTwoOverPi * kLog2E) * c * fmaf(kCubic, square, 1.0f);
  const bool vanishes = exponent > 126.0f;
  const float e = exp2_approx(vanishes ? 126.0f : exponent);
  const float s = vanishes ? 0.0f : reciprocal_approx(1.0f + e);
  const float twice_z_slope = kTwiceSqrtTwoOverPi * fmaf(3.0f * kCubic, square, 1.0f);
  return {x * s, fmaf(c * s, (e * s) * twice_z_slope, s)};
}

__device__ __forceinline__ GeluWithSlope gelu_exact_with_slope(float x) {
  const float c = clamp_argument(x);
  const float cdf = 0.5f * erfcf(-kSqrtHalf * c);
  const float density = kInverseSqrtTwoPi * exp2_approx((-0.5f * kLog2E) * c * c);
  return {x * cdf, fmaf(c, density, cdf)};
}

}  // namespace geglu_mlp
