// SPDX-License-Identifier: Apache-2.0
//
// Gate: the functions of gate.h on vectors, and their derivatives. Where one is saturated to the
// last bit of fp32 its argument is clamped, so that every product stays finite. Pure functions.
#pragma once

#include "cpu/vector.hpp"
#include "gate.h"

namespace gated_mlp::cpu {

struct WithSlope {
  Floats value;
  Floats slope;
};

// s = 1 / (1 + 2^exponent) and 1 - s = 2^exponent s, neither by cancellation. Where s is 0, so is
// `rest`: every product of the two is right.
struct Sigmoid {
  Floats value;
  Floats rest;
};

inline Sigmoid sigmoid_of_exponent(Floats exponent) {
  const Floats e = exp2(clamp(exponent, -126.0f, 126.0f));
  const Floats s = select(exponent > 126.0f, Floats{}, 1.0f / (1.0f + e));
  return {s, e * s};
}

inline constexpr float kLog2E = 1.4426950408889634f;

inline Sigmoid sigmoid(Floats x) {
  return sigmoid_of_exponent(x * -kLog2E);
}

// tanh: value = x s, slope = s + 2 x s (1 - s) z' with s = sigmoid(2 z): the same function as
// 0.5 (1 + tanh z), without cancellation at negative z.
inline WithSlope gelu_tanh(Floats x) {
  constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057308f;
  const Floats c = clamp(x, -20.0f, 20.0f);
  const Floats square = c * c;
  const Floats exponent = (c * (-kTwiceSqrtTwoOverPi * kLog2E)) * (square * 0.044715f + 1.0f);
  const Sigmoid s = sigmoid_of_exponent(exponent);
  const Floats twice_z_slope = (square * (3.0f * 0.044715f) + 1.0f) * kTwiceSqrtTwoOverPi;
  return {x * s.value, s.value + (c * s.value) * (s.rest * twice_z_slope)};
}

// erf: value = x cdf(x), slope = cdf(x) + x density(x). For a = |x|,
// 1 - cdf(a) = exp(-a^2 / 2) t P(t) with t = 1 / (1 + 0.3 a); P is a Chebyshev fit of degree 9 on
// a in [0, 16], relative error 5e-9, so the tail at negative x is exact to fp32 rounding.
inline WithSlope gelu_exact(Floats x) {
  const Floats c = clamp(x, -20.0f, 20.0f);
  const Floats a = bits_as<Floats>(bits_as<Ints>(c) & 0x7fffffff);
  const Floats t = 1.0f / (a * 0.3f + 1.0f);
  Floats p = broadcast(-0.0210099471f);
  p = p * t + 0.11451493f;
  p = p * t - 0.233037051f;
  p = p * t + 0.198096923f;
  p = p * t - 0.0845422783f;
  p = p * t + 0.0988146829f;
  p = p * t + 0.0775091556f;
  p = p * t + 0.11041428f;
  p = p * t + 0.119551655f;
  p = p * t + 0.119687649f;
  const Floats exponent = (c * c) * -0.72134752f;  // -log2(e) / 2
  const Floats bell = select(exponent < -126.0f, Floats{}, exp2(clamp(exponent, -126.0f, 0.0f)));
  const Floats tail = bell * (t * p);
  const Floats cdf = select(c < 0.0f, tail, 1.0f - tail);
  return {x * cdf, cdf + c * (bell * 0.39894228f)};
}

// x sigmoid(k x).
inline WithSlope silu(Floats x, float k) {
  const Sigmoid s = sigmoid(x * k);
  const Floats c = clamp(x, -100.0f, 100.0f);
  return {x * s.value, s.value + (c * k) * (s.value * s.rest)};
}

inline WithSlope relu(Floats x) {  // a NaN passes through, as in PyTorch
  return {select(x <= 0.0f, Floats{}, x), select(x <= 0.0f, Floats{}, broadcast(1.0f))};
}

template <Gate kGate>
WithSlope activate(Floats gate, float limit) {
  if constexpr (kGate == Gate::kGeluTanh) return gelu_tanh(gate);
  if constexpr (kGate == Gate::kGelu) return gelu_exact(gate);
  if constexpr (kGate == Gate::kSilu) return silu(gate, 1.0f);
  if constexpr (kGate == Gate::kRelu) return relu(gate);
  if constexpr (kGate == Gate::kSigmoid) {
    const Sigmoid s = sigmoid(gate);
    return {s.value, s.value * s.rest};
  }
  if constexpr (kGate == Gate::kSiluClamped) {
    const Ints above = gate > limit;
    const WithSlope inside = silu(select(above, broadcast(limit), gate), kClampedSlope);
    return {inside.value, select(above, Floats{}, inside.slope)};
  }
}

// What the activated gate is multiplied by.
template <Gate kGate>
WithSlope factor(Floats up, float limit) {
  if constexpr (kGate != Gate::kSiluClamped) return {up, broadcast(1.0f)};
  const Ints outside = (up > limit) | (up < -limit);
  return {clamp(up, -limit, limit) + 1.0f, select(outside, Floats{}, broadcast(1.0f))};
}

template <Gate kGate>
Floats gated(Floats gate, Floats up, float limit) {
  return activate<kGate>(gate, limit).value * factor<kGate>(up, limit).value;
}

// Calls function.operator()<kGate>(): a branch before a loop instead of one within.
template <class Function>
void with_gate(Gate gate, const Function& function) {
  switch (gate) {
    case Gate::kGeluTanh:
      return function.template operator()<Gate::kGeluTanh>();
    case Gate::kGelu:
      return function.template operator()<Gate::kGelu>();
    case Gate::kSilu:
      return function.template operator()<Gate::kSilu>();
    case Gate::kRelu:
      return function.template operator()<Gate::kRelu>();
    case Gate::kSigmoid:
      return function.template operator()<Gate::kSigmoid>();
    case Gate::kSiluClamped:
      return function.template operator()<Gate::kSiluClamped>();
  }
}

}  // namespace gated_mlp::cpu
