// SPDX-License-Identifier: Apache-2.0
//
// Gate: what a gated unit makes of its two inputs, out = a(gate) * f(up). Included by host and
// device code alike, hence without a header of either.
#pragma once

namespace gated_mlp {

// f(u) = u unless said otherwise; s(z) = 1 / (1 + exp(-z)).
enum class Gate : int {
  kGeluTanh,     // a(g) = 0.5 g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3)))
  kGelu,         // a(g) = 0.5 g (1 + erf(g / sqrt(2)))
  kSilu,         // a(g) = g s(g)
  kRelu,         // a(g) = max(g, 0)
  kSigmoid,      // a(g) = s(g)
  kSiluClamped,  // a(g) = c s(1.702 c), c = min(g, limit); f(u) = min(max(u, -limit), limit) + 1
};

// A package's gates, at compile time.
template <Gate... kGates>
struct Gates {};

// Two float16 in a word.
constexpr unsigned kInfiniteFloat16s = 0x7c007c00u;
constexpr unsigned kLargestFloat16s = 0x7bff7bffu;  // 65504

// Which gate a call means, and how large its result may be in float16.
struct Gating {
  Gate gate;
  float limit;        // of kSiluClamped, above 0
  unsigned greatest;  // one of the two above
};

constexpr float kClampedSlope = 1.702f;  // of kSiluClamped's sigmoid

constexpr const char* name_of(Gate gate) {
  switch (gate) {
    case Gate::kGeluTanh:
      return "gelu_tanh";
    case Gate::kGelu:
      return "gelu";
    case Gate::kSilu:
      return "silu";
    case Gate::kRelu:
      return "relu";
    case Gate::kSigmoid:
      return "sigmoid";
    case Gate::kSiluClamped:
      return "silu_clamped";
  }
  return "?";
}

}  // namespace gated_mlp
