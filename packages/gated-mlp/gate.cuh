// SPDX-License-Identifier: Apache-2.0
//
// Gate: the functions of gate.h and their derivatives on the GPU, in fp32. A kernel has the code of
// each of its package's gates and branches once, before its epilogue: with_gate calls a function
// with the GatedUnit that the arguments name. Device only.
#pragma once

#include <gates.h>

#include "element.cuh"

namespace gated_mlp {

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

// A NaN passes through both.
__device__ __forceinline__ float at_least(float x, float least) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(least));
  return x;
}
__device__ __forceinline__ float at_most(float x, float most) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(most));
  return x;
}
__device__ __forceinline__ float within(float x, float limit) {
  return at_most(at_least(x, -limit), limit);
}

constexpr float kSqrtHalf = 0.70710678118654752f;
constexpr float kCubic = 0.044715f;
constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057308f;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kInverseSqrtTwoPi = 0.39894228040143268f;

// 1 / (1 + 2^x) of two values with one reciprocal, 1 / a = b (1 / (a b)): exponentials and
// reciprocals run at a quarter of the rate of products. a b is finite for x up to 63.
__device__ __forceinline__ float2 sigmoids_of_exponents(float2 x) {
  const float a = 1.0f + exp2_approx(x.x);
  const float b = 1.0f + exp2_approx(x.y);
  const float both = reciprocal_approx(a * b);
  return {b * both, a * both};
}

struct WithSlope {
  float value;
  float slope;
};

// A gated unit's output, and the gradients of its inputs.
struct GatedGradients {
  float hidden;
  float gate;
  float up;
};

// s = 1 / (1 + 2^x), and 1 - s = 2^x s without cancellation. 2^x is kept finite: else it times s
// would be infinity times zero. Where s is 0, so is `rest`.
struct Sigmoid {
  float value;
  float rest;
};

__device__ __forceinline__ Sigmoid sigmoid_of_exponent(float x) {
  const bool vanishes = x > 126.0f;
  const float e = exp2_approx(vanishes ? 126.0f : x);
  const float s = vanishes ? 0.0f : reciprocal_approx(1.0f + e);
  return {s, e * s};
}

// 0.5 (1 + tanh(z)) = sigmoid(2 z): the same function without the cancellation of 1 + tanh(z) at
// negative z. exp2 overflows to infinity there, its reciprocal is 0, and x * 0 is right.
__device__ __forceinline__ float gelu_tanh(float x) {
  const float exponent = (-kTwiceSqrtTwoOverPi * kLog2E) * x * fmaf(kCubic * x, x, 1.0f);
  return x * reciprocal_approx(1.0f + exp2_approx(exponent));
}

// x is cut at -7.6, where the result is -1e-18.
__device__ __forceinline__ float2 gelu_tanh_pair(float2 x) {
  constexpr float kLinear = -kTwiceSqrtTwoOverPi * kLog2E;
  x = {at_least(x.x, -7.6f), at_least(x.y, -7.6f)};
  const float2 s = sigmoids_of_exponents({x.x * fmaf(kLinear * kCubic, x.x * x.x, kLinear),
                                          x.y * fmaf(kLinear * kCubic, x.y * x.y, kLinear)});
  return {x.x * s.x, x.y * s.y};
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

// Beyond 20 both forms of gelu are saturated to the last bit of fp32, and clamping there keeps
// every product finite.
constexpr float kGeluSaturates = 20.0f;

// value = x s, slope = s + 2 x s (1 - s) z' with s = sigmoid(2 z).
__device__ __forceinline__ WithSlope gelu_tanh_with_slope(float x) {
  const float c = within(x, kGeluSaturates);
  const float square = c * c;
  const float exponent = (-kTwiceSqrtTwoOverPi * kLog2E) * c * fmaf(kCubic, square, 1.0f);
  const Sigmoid s = sigmoid_of_exponent(exponent);
  const float twice_z_slope = kTwiceSqrtTwoOverPi * fmaf(3.0f * kCubic, square, 1.0f);
  return {x * s.value, fmaf(c * s.value, s.rest * twice_z_slope, s.value)};
}

__device__ __forceinline__ WithSlope gelu_exact_with_slope(float x) {
  const float c = within(x, kGeluSaturates);
  const float cdf = 0.5f * erfcf(-kSqrtHalf * c);
  const float density = kInverseSqrtTwoPi * exp2_approx((-0.5f * kLog2E) * c * c);
  return {x * cdf, fmaf(c, density, cdf)};
}

// x sigmoid(k x).
__device__ __forceinline__ float silu(float x, float k) {
  return x * sigmoid_of_exponent(-kLog2E * k * x).value;
}

// x is cut at -43 / k, where a sigmoid is 2e-19.
__device__ __forceinline__ float2 silu_pair(float2 x, float k) {
  x = {at_least(x.x, -43.0f / k), at_least(x.y, -43.0f / k)};
  const float2 s = sigmoids_of_exponents({-kLog2E * k * x.x, -kLog2E * k * x.y});
  return {x.x * s.x, x.y * s.y};
}

// slope = s + k x s (1 - s). Beyond 100 that product is 0, also of an infinite x.
__device__ __forceinline__ WithSlope silu_with_slope(float x, float k) {
  const Sigmoid s = sigmoid_of_exponent(-kLog2E * k * x);
  return {x * s.value, fmaf(k * within(x, 100.0f) * s.value, s.rest, s.value)};
}

// a(gate) * f(up), a and f those of gate.h.
template <Gate kGate>
struct GatedUnit {
  float limit;        // of Gate::kSiluClamped
  unsigned greatest;  // Gating's

  // a(gate), for results in fp32.
  __device__ __forceinline__ float activate(float gate) const {
    if constexpr (kGate == Gate::kGeluTanh) return gelu_tanh(gate);
    if constexpr (kGate == Gate::kGelu) return gelu_exact(gate);
    if constexpr (kGate == Gate::kSilu) return silu(gate, 1.0f);
    if constexpr (kGate == Gate::kRelu) return at_least(gate, 0.0f);
    if constexpr (kGate == Gate::kSigmoid) return sigmoid_of_exponent(-kLog2E * gate).value;
    if constexpr (kGate == Gate::kSiluClamped) return silu(at_most(gate, limit), kClampedSlope);
  }

  // Two, for results that are rounded to 16 bits. They may share a reciprocal, so they must be of
  // one row: a NaN stays in its row.
  __device__ __forceinline__ float2 activate_pair(float2 gate) const {
    if constexpr (kGate == Gate::kGeluTanh) {
      return gelu_tanh_pair(gate);
    } else if constexpr (kGate == Gate::kGelu) {
      return {gelu_exact_for_half(gate.x), gelu_exact_for_half(gate.y)};
    } else if constexpr (kGate == Gate::kSilu) {
      return silu_pair(gate, 1.0f);
    } else if constexpr (kGate == Gate::kSigmoid) {
      return sigmoids_of_exponents(
          {-kLog2E * at_least(gate.x, -43.0f), -kLog2E * at_least(gate.y, -43.0f)});
    } else if constexpr (kGate == Gate::kSiluClamped) {
      return silu_pair({at_most(gate.x, limit), at_most(gate.y, limit)}, kClampedSlope);
    } else {
      return {activate(gate.x), activate(gate.y)};
    }
  }

  __device__ __forceinline__ WithSlope activate_with_slope(float gate) const {
    if constexpr (kGate == Gate::kGeluTanh) return gelu_tanh_with_slope(gate);
    if constexpr (kGate == Gate::kGelu) return gelu_exact_with_slope(gate);
    if constexpr (kGate == Gate::kSilu) return silu_with_slope(gate, 1.0f);
    if constexpr (kGate == Gate::kRelu) {
      return {at_least(gate, 0.0f), gate <= 0.0f ? 0.0f : 1.0f};
    }
    if constexpr (kGate == Gate::kSigmoid) {
      const Sigmoid s = sigmoid_of_exponent(-kLog2E * gate);
      return {s.value, s.value * s.rest};
    }
    if constexpr (kGate == Gate::kSiluClamped) {
      const WithSlope inside = silu_with_slope(at_most(gate, limit), kClampedSlope);
      return {inside.value, gate > limit ? 0.0f : inside.slope};
    }
  }

  // f(up).
  __device__ __forceinline__ float factor(float up) const {
    return kGate == Gate::kSiluClamped ? within(up, limit) + 1.0f : up;
  }
  __device__ __forceinline__ float factor_slope(float up) const {
    return kGate == Gate::kSiluClamped && fabsf(up) > limit ? 0.0f : 1.0f;
  }

  __device__ __forceinline__ float of(float gate, float up) const {
    return activate(gate) * factor(up);
  }
  __device__ __forceinline__ float2 of_pair(float2 gate, float2 up) const {
    const float2 active = activate_pair(gate);
    return {active.x * factor(up.x), active.y * factor(up.y)};
  }

  // `grad`: the gradient of the output.
  __device__ __forceinline__ GatedGradients gradients(float gate, float up, float grad) const {
    const WithSlope active = activate_with_slope(gate);
    return {active.value * factor(up), grad * factor(up) * active.slope,
            grad * active.value * factor_slope(up)};
  }

  // Two results as memory has them.
  template <class Element>
  __device__ __forceinline__ unsigned pack(float first, float second, Element element) const {
    return bound_pair(pack_pair(first, second, element), greatest, element);
  }
};

template <Gate kFirst, Gate... kOthers, class Function>
__device__ __forceinline__ void with_gate(Gates<kFirst, kOthers...>, Gating p,
                                          const Function& function) {
  if constexpr (sizeof...(kOthers) == 0) {
    function(GatedUnit<kFirst>{p.limit, p.greatest});
  } else if (p.gate == kFirst) {
    function(GatedUnit<kFirst>{p.limit, p.greatest});
  } else {
    with_gate(Gates<kOthers...>{}, p, function);
  }
}

// Calls function(unit): the unit of `p`, or, in a plain kernel, NoGate.
template <bool kGated = true, class Function>
__device__ __forceinline__ void with_gate(Gating p, const Function& function) {
  if constexpr (kGated) {
    with_gate(PackageGates{}, p, function);
  } else {
    function(NoGate{});
  }
}

}  // namespace gated_mlp
