// SPDX-License-Identifier: Apache-2.0
//
// The two products for a few tokens: decode.cuh, of x as it is.
#include "decode.cuh"

KILN_PRODUCTS(decode, (256, quantized_mlp::kDecodeCtas))
