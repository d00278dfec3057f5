// SPDX-License-Identifier: Apache-2.0
//
// out = a(gate) * f(up) and its gradients (gate.h), elementwise, fp32 inside. Tensors have rows
// with any stride. One vector of kWidth elements a thread and no loop: blockIdx.x and the threads
// are the place in a row, blockIdx.z and blockIdx.y the row; a flat grid has one row and spares the
// products of row and stride. The host chooses the width (plan.h). No shared memory, no barrier: a
// thread stores only where it alone has read, so an output may lie where an input does.
#include "element.cuh"
#include "gate.cuh"
#include "overlap.cuh"
#include "portable/arguments.h"

namespace gated_mlp {

using Float32 = float;

// The bits of kWidth elements, in the words that one instruction loads or stores: 16-bit elements
// in pairs, a single one in the low half. Of an array of 16-bit elements the compiler keeps each in
// a register of its own and puts them together again.
template <class Element, int kWidth>
struct Vector {
  static constexpr int kBytes = kWidth * sizeof(Element);
  static constexpr int kWords = (kBytes + 3) / 4;
  unsigned words[kWords];

  __device__ __forceinline__ float at(int i) const {
    if constexpr (sizeof(Element) == 4) {
      return __uint_as_float(words[i]);
    } else {
      return load_float(Element{static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16))});
    }
  }
};

template <class Element, int kWidth>
__device__ __forceinline__ Vector<Element, kWidth> load(const void* data, long long offset) {
  using Result = Vector<Element, kWidth>;
  const void* address = static_cast<const Element*>(data) + offset;
  if constexpr (Result::kBytes == 16) {
    const uint4 words = *static_cast<const uint4*>(address);
    return {{words.x, words.y, words.z, words.w}};
  } else if constexpr (Result::kBytes == 8) {
    const uint2 words = *static_cast<const uint2*>(address);
    return {{words.x, words.y}};
  } else if constexpr (Result::kBytes == 4) {
    return {{*static_cast<const unsigned*>(address)}};
  } else {
    return {{*static_cast<const unsigned short*>(address)}};
  }
}

// One instruction, spelled out: NVRTC makes four stores of a uint4 that was computed in a branch
// (11.8 for sm_80, 13.0 for sm_90a).
// `passing`, in 16 bytes: as what the L2 cache gives up first.
template <class Element, int kWidth>
__device__ __forceinline__ void store(void* data, long long offset,
                                      const Vector<Element, kWidth>& vector, int passing = 0) {
  using Given = Vector<Element, kWidth>;
  const auto& words = vector.words;
  void* address = static_cast<Element*>(data) + offset;
  if constexpr (Given::kBytes == 16) {
    if (passing != 0) {
      asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words[0]),
                   "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    } else {
      asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words[0]),
                   "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    }
  } else if constexpr (Given::kBytes == 8) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(words[0]), "r"(words[1])
                 : "memory");
  } else if constexpr (Given::kBytes == 4) {
    *static_cast<unsigned*>(address) = words[0];
  } else {
    *static_cast<unsigned short*>(address) = static_cast<unsigned short>(words[0]);
  }
}

template <class Element, int kWidth>
__device__ __forceinline__ Vector<Element, kWidth> rounded(const float (&values)[kWidth]) {
  Vector<Element, kWidth> result;
#pragma unroll
  for (int i = 0; i < result.kWords; ++i) {
    if constexpr (sizeof(Element) == 4) {
      result.words[i] = __float_as_uint(values[i]);
    } else {
      result.words[i] = pack_pair(values[2 * i], kWidth > 1 ? values[2 * i + 1] : 0.0f, Element{});
    }
  }
  return result;
}

template <class Unit, class Element, int kWidth>
__device__ __forceinline__ Vector<Element, kWidth> forward(Unit unit,
                                                           const Vector<Element, kWidth>& gate,
                                                           const Vector<Element, kWidth>& up) {
  float out[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) out[i] = unit.of(gate.at(i), up.at(i));
  auto result = rounded<Element, kWidth>(out);
  if constexpr (sizeof(Element) == 2) {
#pragma unroll
    for (int i = 0; i < result.kWords; ++i) {
      result.words[i] = bound_pair(result.words[i], unit.greatest, Element{});
    }
  }
  return result;
}

template <class Element, int kWidth>
struct Gradients {
  Vector<Element, kWidth> gate;
  Vector<Element, kWidth> up;
};

template <class Unit, class Element, int kWidth>
__device__ __forceinline__ Gradients<Element, kWidth> backward(
    Unit unit, const Vector<Element, kWidth>& grad_out, const Vector<Element, kWidth>& gate,
    const Vector<Element, kWidth>& up) {
  float grad_gate[kWidth];
  float grad_up[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const GatedGradients grads = unit.gradients(gate.at(i), up.at(i), grad_out.at(i));
    grad_gate[i] = grads.gate;
    grad_up[i] = grads.up;
  }
  return {rounded<Element, kWidth>(grad_gate), rounded<Element, kWidth>(grad_up)};
}

template <class Element, int kWidth, bool kBackward>
__device__ __forceinline__ void pointwise(const PointwiseArguments& p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const long long column =
      (static_cast<long long>(blockIdx.x) * kPointwiseThreads + threadIdx.x) * kWidth;
  if (column >= p.columns) return;
  long long gate_at = column;
  long long up_at = column;
  long long grad_out_at = column;
  long long out0_at = column;
  long long out1_at = column;
  if (gridDim.y > 1 || gridDim.z > 1) {
    const long long row = static_cast<long long>(blockIdx.z) * gridDim.y + blockIdx.y;
    if (row >= p.rows) return;
    gate_at += row * p.gate_stride;
    up_at += row * p.up_stride;
    grad_out_at += row * p.grad_out_stride;
    out0_at += row * p.out0_stride;
    out1_at += row * p.out1_stride;
  }
  const auto gate = load<Element, kWidth>(p.gate, gate_at);
  const auto up = load<Element, kWidth>(p.up, up_at);
  if constexpr (kBackward) {
    const auto grad_out = load<Element, kWidth>(p.grad_out, grad_out_at);
    with_gate(p.gating, [&](auto unit) {
      const auto grads = backward(unit, grad_out, gate, up);
      store(p.out0, out0_at, grads.gate);
      store(p.out1, out1_at, grads.up);
    });
  } else {
    with_gate(p.gating,
              [&](auto unit) { store(p.out0, out0_at, forward(unit, gate, up), p.passing); });
  }
}

}  // namespace gated_mlp

#define KILN_POINTWISE(kind, backward, type, Element, width)                               \
  extern "C" __global__ void __launch_bounds__(gated_mlp::kPointwiseThreads)               \
      pointwise_##kind##_##type##x##width(const gated_mlp::PointwiseArguments arguments) { \
    gated_mlp::pointwise<gated_mlp::Element, width, backward>(arguments);                  \
  }
KILN_POINTWISES(KILN_POINTWISE)
