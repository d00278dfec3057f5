// SPDX-License-Identifier: Apache-2.0
//
// Kernels: the entry functions of the templates that compute products. Device only.
#pragma once

#include "arguments.h"
#include "element.cuh"

// `bounds`: those of the launch, in parentheses; then the template's arguments.
#define KILN_PRODUCT(function, bounds, name, ...)                  \
  extern "C" __global__ void __launch_bounds__ bounds name(        \
      const __grid_constant__ quantized_mlp::ProductArguments p) { \
    using gated_mlp::Bfloat16;                                     \
    using gated_mlp::Float16;                                      \
    using quantized_mlp::Codes;                                    \
    quantized_mlp::function<__VA_ARGS__>(p);                       \
  }

// Of each kind of codes, and one or two tiles of tokens.
#define KILN_PRODUCTS_OF(function, bounds, name, Element, gated)                  \
  KILN_PRODUCT(function, bounds, name##_int4_x1, Element, Codes::kInt4, gated, 1) \
  KILN_PRODUCT(function, bounds, name##_int4_x2, Element, Codes::kInt4, gated, 2) \
  KILN_PRODUCT(function, bounds, name##_int8_x1, Element, Codes::kInt8, gated, 1) \
  KILN_PRODUCT(function, bounds, name##_int8_x2, Element, Codes::kInt8, gated, 2) \
  KILN_PRODUCT(function, bounds, name##_e4m3_x1, Element, Codes::kE4m3, gated, 1) \
  KILN_PRODUCT(function, bounds, name##_e4m3_x2, Element, Codes::kE4m3, gated, 2)
#define KILN_PRODUCTS(function, bounds)                                      \
  KILN_PRODUCTS_OF(function, bounds, function##_gated_bf16, Bfloat16, true)  \
  KILN_PRODUCTS_OF(function, bounds, function##_gated_f16, Float16, true)    \
  KILN_PRODUCTS_OF(function, bounds, function##_plain_bf16, Bfloat16, false) \
  KILN_PRODUCTS_OF(function, bounds, function##_plain_f16, Float16, false)
