// SPDX-License-Identifier: Apache-2.0
// clang-format off
// Made by kiln build from package.json of attention@1: change that.
//
//   kiln::get_kernel("attention", {.version = 1})
//       .op<kiln::ops::attention::Prefill>().run({…}, workspace, stream);
#pragma once

#include "kiln/op.hpp"

namespace kiln::ops::attention {

inline constexpr std::string_view kPackage = "attention";
inline constexpr int kVersion = 1;

/// The attributes of prefill, backward.
struct PrefillAttributes {
  double scale = 0.0;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;

  friend std::array<kiln::Attribute, 3> attributes_of(const PrefillAttributes& a) {
    return {{a.scale, a.window_left, a.window_right}};
  }
};

/// out = softmax(scale q k^T) v, sequence by sequence: of sequence b the rows cu_seqlens_q[b] to
/// cu_seqlens_q[b + 1] of q, and those of k and v by cu_seqlens_k; one sequence is {0, T}. Query i
/// of Lq stands at key i + Lk - Lq, and sees window_left keys before it and window_right after it,
/// all where that is negative: causal is window_right 0. A query that sees no key gets zeros, and
/// lse -inf. QW = HQ D, KW = HK D, HQ a multiple of HK; scale 0: 1 / sqrt(D). out may be q. float32
/// on the CPU only.
struct Prefill {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "prefill",
      "attention.prefill(q: bfloat16|float16|float32 [T,QW] rows, k: q [S,KW] rows, v: "
      "q [S,KW] rows, cu_seqlens_q: int32 [E], cu_seqlens_k: int32 [E], out!: q "
      "[T,HQ,D], lse?!: float32 [HQ,T]; scale: float = 0.0, window_left: int = -1, "
      "window_right: int = -1)"};

  kiln::RequiredTensor q;  ///< [T, QW], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor k;  ///< [S, KW], as q; rows may lie apart
  kiln::RequiredTensor v;  ///< [S, KW], as q; rows may lie apart
  kiln::RequiredTensor cu_seqlens_q;  ///< [E], int32
  kiln::RequiredTensor cu_seqlens_k;  ///< [E], int32
  kiln::RequiredTensor out;  ///< [T, HQ, D], as q; output
  kiln::Tensor lse = {};  ///< [HQ, T], float32; output; or none
  PrefillAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 7> tensors_of(const Prefill& a) {
    return {&a.q, &a.k, &a.v, &a.cu_seqlens_q, &a.cu_seqlens_k, &a.out, &a.lse};
  }
};

/// The gradients of prefill's q, k and v, from grad_out, and from what prefill was given and gave;
/// grad_lse, where lse has a gradient. Rows of no sequence are not written. They do not depend on
/// how the GPU runs. grad_q, grad_k and grad_v may be columns of one matrix.
struct Backward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "backward",
      "attention.backward(grad_out: bfloat16|float16|float32 [T,HQ,D], q: grad_out "
      "[T,QW] rows, k: grad_out [S,KW] rows, v: grad_out [S,KW] rows, out: grad_out "
      "[T,HQ,D], lse: float32 [HQ,T], cu_seqlens_q: int32 [E], cu_seqlens_k: int32 "
      "[E], grad_lse?: float32 [HQ,T], grad_q!: grad_out [T,QW] rows, grad_k!: "
      "grad_out [S,KW] rows, grad_v!: grad_out [S,KW] rows; scale: float = 0.0, "
      "window_left: int = -1, window_right: int = -1)"};

  kiln::RequiredTensor grad_out;  ///< [T, HQ, D], bfloat16, float16, float32
  kiln::RequiredTensor q;  ///< [T, QW], as grad_out; rows may lie apart
  kiln::RequiredTensor k;  ///< [S, KW], as grad_out; rows may lie apart
  kiln::RequiredTensor v;  ///< [S, KW], as grad_out; rows may lie apart
  kiln::RequiredTensor out;  ///< [T, HQ, D], as grad_out
  kiln::RequiredTensor lse;  ///< [HQ, T], float32
  kiln::RequiredTensor cu_seqlens_q;  ///< [E], int32
  kiln::RequiredTensor cu_seqlens_k;  ///< [E], int32
  kiln::Tensor grad_lse = {};  ///< [HQ, T], float32; or none
  kiln::RequiredTensor grad_q;  ///< [T, QW], as grad_out; rows may lie apart; output
  kiln::RequiredTensor grad_k;  ///< [S, KW], as grad_out; rows may lie apart; output
  kiln::RequiredTensor grad_v;  ///< [S, KW], as grad_out; rows may lie apart; output
  PrefillAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 12> tensors_of(const Backward& a) {
    return {&a.grad_out, &a.q, &a.k, &a.v, &a.out, &a.lse, &a.cu_seqlens_q, &a.cu_seqlens_k,
            &a.grad_lse, &a.grad_q, &a.grad_k, &a.grad_v};
  }
};

/// The attributes of decode.
struct DecodeAttributes {
  double scale = 0.0;
  std::int64_t window_left = -1;

  friend std::array<kiln::Attribute, 2> attributes_of(const DecodeAttributes& a) {
    return {{a.scale, a.window_left}};
  }
};

/// Attention of the last N / B tokens of each of B sequences, causal, with the keys in pages: key n
/// of sequence b is row n % PS of page block_table[b, n / PS]. lengths[b] keys count, those of the
/// new tokens included; what the pages hold beyond them is not read. lengths, at most MP PS, are
/// read on the device, so that a CUDA graph may be replayed with others. Rows of q: B sequences of
/// N / B tokens. QW = HQ D, HQ a multiple of HK; scale 0: 1 / sqrt(D). A token that sees no key
/// gets zeros, and lse -inf. out may be q. float32 on the CPU only.
struct Decode {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "decode",
      "attention.decode(q: bfloat16|float16|float32 [N,QW] rows, k_pages: q "
      "[P,PS,HK,D], v_pages: q [P,PS,HK,D], block_table: int32 [B,MP] rows, lengths: "
      "int32 [B], out!: q [N,HQ,D], lse?!: float32 [HQ,N]; scale: float = 0.0, "
      "window_left: int = -1)"};

  kiln::RequiredTensor q;  ///< [N, QW], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor k_pages;  ///< [P, PS, HK, D], as q
  kiln::RequiredTensor v_pages;  ///< [P, PS, HK, D], as q
  kiln::RequiredTensor block_table;  ///< [B, MP], int32; rows may lie apart
  kiln::RequiredTensor lengths;  ///< [B], int32
  kiln::RequiredTensor out;  ///< [N, HQ, D], as q; output
  kiln::Tensor lse = {};  ///< [HQ, N], float32; output; or none
  DecodeAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 7> tensors_of(const Decode& a) {
    return {&a.q, &a.k_pages, &a.v_pages, &a.block_table, &a.lengths, &a.out, &a.lse};
  }
};

/// Writes rows of k and v into the pages: row n to row slots[n] % PS of page slots[n] / PS. A slot
/// below 0 is passed over. No two rows may have one slot. KW = HK D.
struct Append {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "append",
      "attention.append(k: bfloat16|float16|float32 [N,KW] rows, v: k [N,KW] rows, "
      "slots: int32 [N], k_pages~: k [P,PS,HK,D], v_pages~: k [P,PS,HK,D])"};

  kiln::RequiredTensor k;  ///< [N, KW], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor v;  ///< [N, KW], as k; rows may lie apart
  kiln::RequiredTensor slots;  ///< [N], int32
  kiln::RequiredTensor k_pages;  ///< [P, PS, HK, D], as k; read and written
  kiln::RequiredTensor v_pages;  ///< [P, PS, HK, D], as k; read and written

  friend std::array<const kiln::Tensor*, 5> tensors_of(const Append& a) {
    return {&a.k, &a.v, &a.slots, &a.k_pages, &a.v_pages};
  }
};

}  // namespace kiln::ops::attention
