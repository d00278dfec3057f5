// SPDX-License-Identifier: Apache-2.0
// clang-format off
// Made by kiln build from package.json of quantized-mlp@1: change that.
//
//   kiln::get_kernel("quantized-mlp", {.version = 1})
//       .op<kiln::ops::quantized_mlp::Forward>().run({…}, workspace, stream);
#pragma once

#include "kiln/op.hpp"

namespace kiln::ops::quantized_mlp {

inline constexpr std::string_view kPackage = "quantized-mlp";
inline constexpr int kVersion = 1;

/// The attributes of forward.
struct ForwardAttributes {
  enum class Activation { kSilu, kGelu, kGeluTanh, kRelu, kSigmoid, kSiluClamped };
  friend constexpr const char* word_of(Activation value) {
    return kiln::word_at(value, {"silu", "gelu", "gelu_tanh", "relu", "sigmoid", "silu_clamped"});
  }
  enum class Overflow { kInfinity, kSaturate };
  friend constexpr const char* word_of(Overflow value) {
    return kiln::word_at(value, {"infinity", "saturate"});
  }
  enum class InputDtype { kX, kFloat8E4m3fn };
  friend constexpr const char* word_of(InputDtype value) {
    return kiln::word_at(value, {"x", "float8_e4m3fn"});
  }
  Activation activation = Activation::kSilu;
  double limit = 7.0;
  Overflow overflow = Overflow::kInfinity;
  bool batch_invariant = false;
  InputDtype input_dtype = InputDtype::kX;
  double eps = 1e-06;
  double offset = 0.0;

  friend std::array<kiln::Attribute, 7> attributes_of(const ForwardAttributes& a) {
    return {{word_of(a.activation), a.limit, word_of(a.overflow),
            a.batch_invariant ? "yes" : "no", word_of(a.input_dtype), a.eps, a.offset}};
  }
};

/// y = (a(x gate^T + gate_bias) * f(x up^T + up_bias)) down^T + down_bias + residual, accumulated
/// in fp32 and rounded once. Where norm_weight is given, the products are of n = x / sqrt(mean(x^2)
/// + eps) * (offset + norm_weight), row by row, in place of x, and the residual is added as it is:
/// with x as the residual y = x + mlp(norm(x)). n is computed in fp32 and rounded to the dtype of
/// x, once. Squares are added in fp32. A weight is scale * (code - zero), of float8_e4m3fn scale *
/// code. It is not rounded, but on a GPU in calls of many tokens, unless batch_invariant, where x
/// is not rounded to float8_e4m3fn: there to the dtype of x, once. Those are calls of 512 tokens
/// and more, where D is a multiple of 8 and x, y and the residual begin at multiples of 16 bytes;
/// on SM 9.0 also of more than 32, of more than 16 where gate has 20 million weights, where scales
/// have the dtype of x or are float32. gate, up, down with their scales and zeros are what pack
/// wrote: T and TD are 512 for weights of 4 bits, 1024 for 8; DG and HG, the numbers of groups, say
/// whether a group is 32, 64, 128 or all weights of a row. Scales of float8_e4m3fn are float32,
/// others bfloat16 or float16. gate_bias and up_bias have zeros beyond H. Without zeros, the zero
/// is 8 of 4 bits and 128 of 8; float8_e4m3fn has none. A GPU stores the product that down
/// multiplies in the dtype of x: in float16, beyond 65504 it becomes infinity, or 65504 where
/// overflow is saturate. Where input_dtype is float8_e4m3fn, weights are it too, and x and what
/// down multiplies, in the dtype of x, are rounded to it: each 128 columns of a row are divided by
/// the least power of two that brings their largest finite magnitude to 448 or below, at least
/// 2^-117, of float16 2^-15, and what is not finite becomes a NaN. On SM 9.0 in calls of more than
/// 16 tokens, 8 where gate has 32 million weights, unless batch_invariant, and where groups are of
/// 128 or a whole row, the products are then of e4m3, which the GPU adds with about 14 bits, and
/// those of each 128 columns to others in fp32.
struct Forward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "forward",
      "quantized-mlp.forward(x: bfloat16|float16 [M,D], gate: uint8|float8_e4m3fn "
      "[HR,DK,T], gate_scales: bfloat16|float16|float32 [HR,DG,16], gate_zeros?: uint8 "
      "[HR,DG,16], up: gate [HR,DK,T], up_scales: gate_scales [HR,DG,16], up_zeros?: "
      "uint8 [HR,DG,16], down: gate [DR,HK,TD], down_scales: gate_scales [DR,HG,16], "
      "down_zeros?: uint8 [DR,HG,16], gate_bias?: x [HR,16], up_bias?: x [HR,16], "
      "down_bias?: x [D], residual?: x [M,D], norm_weight?: x [D], y!: x [M,D]; "
      "activation: string silu|gelu|gelu_tanh|relu|sigmoid|silu_clamped = \"silu\", "
      "limit: float = 7.0, overflow: string infinity|saturate = \"infinity\", "
      "batch_invariant: string no|yes = \"no\", input_dtype: string x|float8_e4m3fn = "
      "\"x\", eps: float = 1e-06, offset: float = 0.0)"};

  kiln::RequiredTensor x;  ///< [M, D], bfloat16, float16
  kiln::RequiredTensor gate;  ///< [HR, DK, T], uint8, float8_e4m3fn
  kiln::RequiredTensor gate_scales;  ///< [HR, DG, 16], bfloat16, float16, float32
  kiln::Tensor gate_zeros = {};  ///< [HR, DG, 16], uint8; or none
  kiln::RequiredTensor up;  ///< [HR, DK, T], as gate
  kiln::RequiredTensor up_scales;  ///< [HR, DG, 16], as gate_scales
  kiln::Tensor up_zeros = {};  ///< [HR, DG, 16], uint8; or none
  kiln::RequiredTensor down;  ///< [DR, HK, TD], as gate
  kiln::RequiredTensor down_scales;  ///< [DR, HG, 16], as gate_scales
  kiln::Tensor down_zeros = {};  ///< [DR, HG, 16], uint8; or none
  kiln::Tensor gate_bias = {};  ///< [HR, 16], as x; or none
  kiln::Tensor up_bias = {};  ///< [HR, 16], as x; or none
  kiln::Tensor down_bias = {};  ///< [D], as x; or none
  kiln::Tensor residual = {};  ///< [M, D], as x; or none
  kiln::Tensor norm_weight = {};  ///< [D], as x; or none
  kiln::RequiredTensor y;  ///< [M, D], as x; output
  ForwardAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 16> tensors_of(const Forward& a) {
    return {&a.x, &a.gate, &a.gate_scales, &a.gate_zeros, &a.up, &a.up_scales, &a.up_zeros,
            &a.down, &a.down_scales, &a.down_zeros, &a.gate_bias, &a.up_bias, &a.down_bias,
            &a.residual, &a.norm_weight, &a.y};
  }
};

/// The attributes of pack.
struct PackAttributes {
  enum class Layout { kPlain, kGptq, kAwq, kCompressedTensors };
  friend constexpr const char* word_of(Layout value) {
    return kiln::word_at(value, {"plain", "gptq", "awq", "compressed_tensors"});
  }
  Layout layout = Layout::kPlain;

  friend std::array<kiln::Attribute, 1> attributes_of(const PackAttributes& a) {
    return {{word_of(a.layout)}};
  }
};

/// The packed form of one weight matrix of N rows and K columns: packed [N / 16, K / 64, 512 of 4
/// bits or 1024 of 8] and packed_scales [N / 16, groups, 16], rounded up. `layout` says how codes
/// and scales lie: plain: codes uint8, or signed int8 whose zero is 0, or float8_e4m3fn, [N, K],
/// scales [N, groups]; of float8_e4m3fn also [N / 128, groups], rounded up, or [1, groups], each
/// for 128 or all rows: packed_scales are float32 then, and a NaN among a group's codes makes its
/// scale one. gptq: int32 [K / n, N], n = 32 / bits codes along K in a word, scales [groups, N].
/// awq: 4 bits, int32 [K, N / 8], in AWQ's order of columns, scales [groups, N].
/// compressed_tensors: int32 [N, K / n], scales [N, groups].
struct Pack {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "pack",
      "quantized-mlp.pack(codes: int32|uint8|int8|float8_e4m3fn [A,B], scales: "
      "bfloat16|float16|float32 [SA,SB], packed!: uint8|float8_e4m3fn [NR,KT,T], "
      "packed_scales!: bfloat16|float16|float32 [NR,G,16]; layout: string "
      "plain|gptq|awq|compressed_tensors = \"plain\")"};

  kiln::RequiredTensor codes;  ///< [A, B], int32, uint8, int8, float8_e4m3fn
  kiln::RequiredTensor scales;  ///< [SA, SB], bfloat16, float16, float32
  kiln::RequiredTensor packed;  ///< [NR, KT, T], uint8, float8_e4m3fn; output
  kiln::RequiredTensor packed_scales;  ///< [NR, G, 16], bfloat16, float16, float32; output
  PackAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 4> tensors_of(const Pack& a) {
    return {&a.codes, &a.scales, &a.packed, &a.packed_scales};
  }
};

/// The attributes of pack_zeros.
struct PackZerosAttributes {
  enum class Layout { kPlain, kGptq, kGptqV2, kAwq, kCompressedTensors };
  friend constexpr const char* word_of(Layout value) {
    return kiln::word_at(value, {"plain", "gptq", "gptq_v2", "awq", "compressed_tensors"});
  }
  Layout layout = Layout::kPlain;
  std::int64_t bits = 4;

  friend std::array<kiln::Attribute, 2> attributes_of(const PackZerosAttributes& a) {
    return {{word_of(a.layout), a.bits}};
  }
};

/// The zeros of a matrix that pack packs, where codes do not have theirs in the middle:
/// packed_zeros [N / 16, groups, 16], rounded up. plain: uint8 [N, groups]. gptq: int32 [groups, N
/// / n], each stored as one less than it is, modulo 2^bits; gptq_v2: as it is. awq: int32 [groups,
/// N / 8], in AWQ's order. compressed_tensors: int32 [N / n, groups].
struct PackZeros {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "pack_zeros",
      "quantized-mlp.pack_zeros(zeros: int32|uint8 [ZA,ZB], packed_zeros!: uint8 "
      "[NR,G,16]; layout: string plain|gptq|gptq_v2|awq|compressed_tensors = \"plain\", "
      "bits: int = 4)"};

  kiln::RequiredTensor zeros;  ///< [ZA, ZB], int32, uint8
  kiln::RequiredTensor packed_zeros;  ///< [NR, G, 16], uint8; output
  PackZerosAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 2> tensors_of(const PackZeros& a) {
    return {&a.zeros, &a.packed_zeros};
  }
};

/// What pack and pack_zeros were given, bit by bit, in the layout plain, but that scales of
/// float8_e4m3fn are float32 and one for each row; and the weights that it means, scale * (code -
/// zero), rounded once.
struct Unpack {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "unpack",
      "quantized-mlp.unpack(packed: uint8|float8_e4m3fn [NR,KT,T], packed_scales: "
      "bfloat16|float16|float32 [NR,G,16], packed_zeros?: uint8 [NR,G,16], codes!: "
      "packed [N,K], scales?!: packed_scales [N,G], zeros?!: uint8 [N,G], weight?!: "
      "bfloat16|float16|float32 [N,K])"};

  kiln::RequiredTensor packed;  ///< [NR, KT, T], uint8, float8_e4m3fn
  kiln::RequiredTensor packed_scales;  ///< [NR, G, 16], bfloat16, float16, float32
  kiln::Tensor packed_zeros = {};  ///< [NR, G, 16], uint8; or none
  kiln::RequiredTensor codes;  ///< [N, K], as packed; output
  kiln::Tensor scales = {};  ///< [N, G], as packed_scales; output; or none
  kiln::Tensor zeros = {};  ///< [N, G], uint8; output; or none
  kiln::Tensor weight = {};  ///< [N, K], bfloat16, float16, float32; output; or none

  friend std::array<const kiln::Tensor*, 7> tensors_of(const Unpack& a) {
    return {&a.packed, &a.packed_scales, &a.packed_zeros, &a.codes, &a.scales, &a.zeros,
            &a.weight};
  }
};

}  // namespace kiln::ops::quantized_mlp
