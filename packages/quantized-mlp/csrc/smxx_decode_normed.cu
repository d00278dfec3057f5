// SPDX-License-Identifier: Apache-2.0
//
// The first product for a few tokens, of x that is normed on its way: decode.cuh. The norm is in
// the kernel that reads x, so that a call has two launches. Kernels of their own: what the others
// do is what it was.
#include "decode.cuh"

#define KILN_NORMED(name, Element, codes)                                       \
  extern "C" __global__ void __launch_bounds__(256, quantized_mlp::kDecodeCtas) \
      name(const __grid_constant__ quantized_mlp::NormedArguments p) {          \
    using gated_mlp::Bfloat16;                                                  \
    using gated_mlp::Float16;                                                   \
    using quantized_mlp::Codes;                                                 \
    quantized_mlp::decode<Element, codes, true, 1, true>(p.product, p.norm);    \
  }
#define KILN_NORMED_KINDS(name, Element)          \
  KILN_NORMED(name##_int4, Element, Codes::kInt4) \
  KILN_NORMED(name##_int8, Element, Codes::kInt8) \
  KILN_NORMED(name##_e4m3, Element, Codes::kE4m3)
KILN_NORMED_KINDS(decode_normed_bf16, Bfloat16)
KILN_NORMED_KINDS(decode_normed_f16, Float16)
