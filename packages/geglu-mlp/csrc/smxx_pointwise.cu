// SPDX-License-Identifier: Apache-2.0
//
// out = gelu(gate) * up and its gradients, elementwise, fp32 inside. Tensors have rows with any
// stride; blockIdx.y walks the rows, blockIdx.x and the threads walk the columns, kWidth elements
// at a time (16 bytes where the host found everything aligned, one element otherwise).
#include "activation.cuh"
#include "arguments.h"

namespace geglu_mlp {

template <class Element, int kWidth>
struct alignas(kWidth * sizeof(Element)) Vector {
  Element at[kWidth];
};

template <class Element, int kWidth>
__device__ __forceinline__ Vector<Element, kWidth> load(const void* data, long long offset) {
  const Element* address = static_cast<const Element*>(data) + offset;
  if constexpr (kWidth * sizeof(Element) == 16) {
    union {
      uint4 words;
      Vector<Element, kWidth> vector;
    } value{};
    value.words = *reinterpret_cast<const uint4*>(address);
    return value.vector;
  } else {
    return *reinterpret_cast<const Vector<Element, kWidth>*>(address);
  }
}

template <class Element, int kWidth>
__device__ __forceinline__ void store(void* data, long long offset,
                                      const Vector<Element, kWidth>& vector) {
  Element* address = static_cast<Element*>(data) + offset;
  if constexpr (kWidth * sizeof(Element) == 16) {
    union {
      uint4 words;
      Vector<Element, kWidth> vector;
    } value{};
    value.vector = vector;
    *reinterpret_cast<uint4*>(address) = value.words;
  } else {
    *reinterpret_cast<Vector<Element, kWidth>*>(address) = vector;
  }
}

template <class Element, int kWidth, bool kExact>
__device__ __forceinline__ void forward_vector(const PointwiseArguments& p, long long row,
                                               long long column) {
  const auto gate = load<Element, kWidth>(p.gate, row * p.gate_stride + column);
  const auto up = load<Element, kWidth>(p.up, row * p.up_stride + column);
  Vector<Element, kWidth> out;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float x = load_float(gate.at[i]);
    const float activated = kExact ? gelu_exact(x) : gelu_tanh(x);
    store_float(&out.at[i], activated * load_float(up.at[i]));
  }
  store<Element, kWidth>(p.out0, row * p.out0_stride + column, out);
}

template <class Element, int kWidth, bool kExact>
__device__ __forceinline__ void backward_vector(const PointwiseArguments& p, long long row,
                                                long long column) {
  const auto grad = load<Element, kWidth>(p.grad_out, row * p.grad_out_stride + column);
  const auto gate = load<Element, kWidth>(p.gate, row * p.gate_stride + column);
  const auto up = load<Element, kWidth>(p.up, row * p.up_stride + column);
  Vector<Element, kWidth> grad_gate;
  Vector<Element, kWidth> grad_up;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float x = load_float(gate.at[i]);
    const GeluWithSlope gelu = kExact ? gelu_exact_with_slope(x) : gelu_tanh_with_slope(x);
    const float g = load_float(grad.at[i]);
    store_float(&grad_gate.at[i], g * load_float(up.at[i]) * gelu.slope);
    store_float(&grad_up.at[i], g * gelu.value);
  }
  store<Element, kWidth>(p.out0, row * p.out0_stride + column, grad_gate);
  store<Element, kWidth>(p.out1, row * p.out1_stride + column, grad_up);
}

template <class Element, int kWidth, bool kBackward, bool kExact>
__device__ __forceinline__ void walk(const PointwiseArguments& p) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x * kWidth;
  const long long first = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  for (long long row = blockIdx.y; row < p.rows; row += gridDim.y) {
    for (long long column = first; column < p.columns; column += step) {
      if constexpr (kBackward) {
        backward_vector<Element, kWidth, kExact>(p, row, column);
      } else {
        forward_vector<Element, kWidth, kExact>(p, row, column);
      }
    }
  }
}

template <class Element, int kWidth, bool kBackward>
__device__ __forceinline__ void pointwise(const PointwiseArguments& p) {
  if (p.exact != 0) {
    walk<Element, kWidth, kBackward, true>(p);
  } else {
    walk<Element, kWidth, kBackward, false>(p);
  }
}

}  // namespace geglu_mlp

#define KILN_POINTWISE(name, Element, width, backward)                    \
  extern "C" __global__ void __launch_bounds__(256)                       \
      name(const geglu_mlp::PointwiseArguments arguments) {               \
    geglu_mlp::pointwise<geglu_mlp::Element, width, backward>(arguments); \
  }

namespace geglu_mlp {
using Float32 = float;
}

KILN_POINTWISE(geglu_f32x4, Float32, 4, false)
KILN_POINTWISE(geglu_f32x1, Float32, 1, false)
KILN_POINTWISE(geglu_bf16x8, Bfloat16, 8, false)
KILN_POINTWISE(geglu_bf16x1, Bfloat16, 1, false)
KILN_POINTWISE(geglu_f16x8, Float16, 8, false)
KILN_POINTWISE(geglu_f16x1, Float16, 1, false)
KILN_POINTWISE(geglu_backward_f32x4, Float32, 4, true)
KILN_POINTWISE(geglu_backward_f32x1, Float32, 1, true)
KILN_POINTWISE(geglu_backward_bf16x8, Bfloat16, 8, true)
KILN_POINTWISE(geglu_backward_bf16x1, Bfloat16, 1, true)
KILN_POINTWISE(geglu_backward_f16x8, Float16, 8, true)
KILN_POINTWISE(geglu_backward_f16x1, Float16, 1, true)
