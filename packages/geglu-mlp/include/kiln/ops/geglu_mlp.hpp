// SPDX-License-Identifier: Apache-2.0
// clang-format off
// Made by kiln build from package.json of geglu-mlp@1: change that.
//
//   kiln::get_kernel("geglu-mlp", {.version = 1})
//       .op<kiln::ops::geglu_mlp::Forward>().run({…}, workspace, stream);
#pragma once

#include "kiln/op.hpp"

namespace kiln::ops::geglu_mlp {

inline constexpr std::string_view kPackage = "geglu-mlp";
inline constexpr int kVersion = 1;

/// The attributes of forward, training_forward, backward.
struct ForwardAttributes {
  enum class Approximate { kTanh, kNone };
  friend constexpr const char* word_of(Approximate value) {
    return kiln::word_at(value, {"tanh", "none"});
  }
  enum class Overflow { kInfinity, kSaturate };
  friend constexpr const char* word_of(Overflow value) {
    return kiln::word_at(value, {"infinity", "saturate"});
  }
  Approximate approximate = Approximate::kTanh;
  Overflow overflow = Overflow::kInfinity;
  bool batch_invariant = false;
  std::string kernels = {};

  friend std::array<kiln::Attribute, 4> attributes_of(const ForwardAttributes& a) {
    return {{word_of(a.approximate), word_of(a.overflow), a.batch_invariant ? "yes" : "no",
            a.kernels.c_str()}};
  }
};

/// y = (gelu(x gate^T + gate_bias) * (x up^T + up_bias)) down^T + down_bias + residual, accumulated
/// in fp32 and rounded once. In float16 a GPU stores the product that down multiplies as float16:
/// beyond 65504 it becomes infinity, or 65504 where overflow is saturate. float32 on the CPU only.
/// A CPU call uses the CPUs in its thread's affinity mask, no more than the control groups' quota.
struct Forward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "forward",
      "geglu-mlp.forward(x: bfloat16|float16|float32 [M,D], gate: x [H,D], up: x "
      "[H,D], down: x [D,H], gate_bias?: x [H], up_bias?: x [H], down_bias?: x [D], "
      "residual?: x [M,D], y!: x [M,D]; approximate: string tanh|none = \"tanh\", "
      "overflow: string infinity|saturate = \"infinity\", batch_invariant: string no|yes "
      "= \"no\", kernels: string = \"\")"};

  kiln::RequiredTensor x;  ///< [M, D], bfloat16, float16, float32
  kiln::RequiredTensor gate;  ///< [H, D], as x
  kiln::RequiredTensor up;  ///< [H, D], as x
  kiln::RequiredTensor down;  ///< [D, H], as x
  kiln::Tensor gate_bias = {};  ///< [H], as x; or none
  kiln::Tensor up_bias = {};  ///< [H], as x; or none
  kiln::Tensor down_bias = {};  ///< [D], as x; or none
  kiln::Tensor residual = {};  ///< [M, D], as x; or none
  kiln::RequiredTensor y;  ///< [M, D], as x; output
  ForwardAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 9> tensors_of(const Forward& a) {
    return {&a.x, &a.gate, &a.up, &a.down, &a.gate_bias, &a.up_bias, &a.down_bias, &a.residual,
            &a.y};
  }
};

/// forward, and what backward can read instead of computing it again: gate_out = x gate^T +
/// gate_bias and up_out = x up^T + up_bias. They are rounded to the dtype; y is computed from the
/// sums before that.
struct TrainingForward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "training_forward",
      "geglu-mlp.training_forward(x: bfloat16|float16|float32 [M,D], gate: x [H,D], "
      "up: x [H,D], down: x [D,H], gate_bias?: x [H], up_bias?: x [H], down_bias?: x "
      "[D], residual?: x [M,D], y!: x [M,D], gate_out!: x [M,H], up_out!: x [M,H]; "
      "approximate: string tanh|none = \"tanh\", overflow: string infinity|saturate = "
      "\"infinity\", batch_invariant: string no|yes = \"no\", kernels: string = \"\")"};

  kiln::RequiredTensor x;  ///< [M, D], bfloat16, float16, float32
  kiln::RequiredTensor gate;  ///< [H, D], as x
  kiln::RequiredTensor up;  ///< [H, D], as x
  kiln::RequiredTensor down;  ///< [D, H], as x
  kiln::Tensor gate_bias = {};  ///< [H], as x; or none
  kiln::Tensor up_bias = {};  ///< [H], as x; or none
  kiln::Tensor down_bias = {};  ///< [D], as x; or none
  kiln::Tensor residual = {};  ///< [M, D], as x; or none
  kiln::RequiredTensor y;  ///< [M, D], as x; output
  kiln::RequiredTensor gate_out;  ///< [M, H], as x; output
  kiln::RequiredTensor up_out;  ///< [M, H], as x; output
  ForwardAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 11> tensors_of(const TrainingForward& a) {
    return {&a.x, &a.gate, &a.up, &a.down, &a.gate_bias, &a.up_bias, &a.down_bias, &a.residual,
            &a.y, &a.gate_out, &a.up_out};
  }
};

/// The gradients of forward, of x and of each weight and bias, from grad_y and what forward read.
/// With gate_out and up_out of training_forward it spares two products; without them it computes
/// them again. An output left out is not computed. main_grad_gate and its like, each instead of
/// grad_gate and its like, get the gradient added in fp32 to what they hold. Accumulated in fp32.
/// float32 on the CPU only.
struct Backward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "backward",
      "geglu-mlp.backward(grad_y: bfloat16|float16|float32 [M,D], x: grad_y [M,D], "
      "gate: grad_y [H,D], up: grad_y [H,D], down: grad_y [D,H], gate_bias?: grad_y "
      "[H], up_bias?: grad_y [H], gate_out?: grad_y [M,H], up_out?: grad_y [M,H], "
      "grad_x?!: grad_y [M,D], grad_gate?!: grad_y [H,D], grad_up?!: grad_y [H,D], "
      "grad_down?!: grad_y [D,H], grad_gate_bias?!: grad_y [H], grad_up_bias?!: grad_y "
      "[H], grad_down_bias?!: grad_y [D], main_grad_gate?~: float32 [H,D], "
      "main_grad_up?~: float32 [H,D], main_grad_down?~: float32 [D,H], "
      "main_grad_gate_bias?~: float32 [H], main_grad_up_bias?~: float32 [H], "
      "main_grad_down_bias?~: float32 [D]; approximate: string tanh|none = \"tanh\", "
      "overflow: string infinity|saturate = \"infinity\", batch_invariant: string no|yes "
      "= \"no\", kernels: string = \"\")"};

  kiln::RequiredTensor grad_y;  ///< [M, D], bfloat16, float16, float32
  kiln::RequiredTensor x;  ///< [M, D], as grad_y
  kiln::RequiredTensor gate;  ///< [H, D], as grad_y
  kiln::RequiredTensor up;  ///< [H, D], as grad_y
  kiln::RequiredTensor down;  ///< [D, H], as grad_y
  kiln::Tensor gate_bias = {};  ///< [H], as grad_y; or none
  kiln::Tensor up_bias = {};  ///< [H], as grad_y; or none
  kiln::Tensor gate_out = {};  ///< [M, H], as grad_y; or none
  kiln::Tensor up_out = {};  ///< [M, H], as grad_y; or none
  kiln::Tensor grad_x = {};  ///< [M, D], as grad_y; output; or none
  kiln::Tensor grad_gate = {};  ///< [H, D], as grad_y; output; or none
  kiln::Tensor grad_up = {};  ///< [H, D], as grad_y; output; or none
  kiln::Tensor grad_down = {};  ///< [D, H], as grad_y; output; or none
  kiln::Tensor grad_gate_bias = {};  ///< [H], as grad_y; output; or none
  kiln::Tensor grad_up_bias = {};  ///< [H], as grad_y; output; or none
  kiln::Tensor grad_down_bias = {};  ///< [D], as grad_y; output; or none
  kiln::Tensor main_grad_gate = {};  ///< [H, D], float32; read and written; or none
  kiln::Tensor main_grad_up = {};  ///< [H, D], float32; read and written; or none
  kiln::Tensor main_grad_down = {};  ///< [D, H], float32; read and written; or none
  kiln::Tensor main_grad_gate_bias = {};  ///< [H], float32; read and written; or none
  kiln::Tensor main_grad_up_bias = {};  ///< [H], float32; read and written; or none
  kiln::Tensor main_grad_down_bias = {};  ///< [D], float32; read and written; or none
  ForwardAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 22> tensors_of(const Backward& a) {
    return {&a.grad_y, &a.x, &a.gate, &a.up, &a.down, &a.gate_bias, &a.up_bias, &a.gate_out,
            &a.up_out, &a.grad_x, &a.grad_gate, &a.grad_up, &a.grad_down, &a.grad_gate_bias,
            &a.grad_up_bias, &a.grad_down_bias, &a.main_grad_gate, &a.main_grad_up,
            &a.main_grad_down, &a.main_grad_gate_bias, &a.main_grad_up_bias,
            &a.main_grad_down_bias};
  }
};

/// The attributes of geglu, geglu_backward.
struct GegluAttributes {
  enum class Approximate { kTanh, kNone };
  friend constexpr const char* word_of(Approximate value) {
    return kiln::word_at(value, {"tanh", "none"});
  }
  Approximate approximate = Approximate::kTanh;

  friend std::array<kiln::Attribute, 1> attributes_of(const GegluAttributes& a) {
    return {{word_of(a.approximate)}};
  }
};

/// out = gelu(gate) * up, elementwise, computed in fp32. Each tensor may be a column slice.
struct Geglu {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "geglu",
      "geglu-mlp.geglu(gate: bfloat16|float16|float32 [M,H] rows, up: gate [M,H] rows, "
      "out!: gate [M,H] rows; approximate: string tanh|none = \"tanh\")"};

  kiln::RequiredTensor gate;  ///< [M, H], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor up;  ///< [M, H], as gate; rows may lie apart
  kiln::RequiredTensor out;  ///< [M, H], as gate; rows may lie apart; output
  GegluAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 3> tensors_of(const Geglu& a) {
    return {&a.gate, &a.up, &a.out};
  }
};

/// grad_gate = grad_out * up * gelu'(gate), grad_up = grad_out * gelu(gate), elementwise, computed
/// in fp32. The inputs are not written.
struct GegluBackward {
  static constexpr kiln::OpSignature kSignature = {
      kPackage, "geglu_backward",
      "geglu-mlp.geglu_backward(grad_out: bfloat16|float16|float32 [M,H] rows, gate: "
      "grad_out [M,H] rows, up: grad_out [M,H] rows, grad_gate!: grad_out [M,H] rows, "
      "grad_up!: grad_out [M,H] rows; approximate: string tanh|none = \"tanh\")"};

  kiln::RequiredTensor grad_out;  ///< [M, H], bfloat16, float16, float32; rows may lie apart
  kiln::RequiredTensor gate;  ///< [M, H], as grad_out; rows may lie apart
  kiln::RequiredTensor up;  ///< [M, H], as grad_out; rows may lie apart
  kiln::RequiredTensor grad_gate;  ///< [M, H], as grad_out; rows may lie apart; output
  kiln::RequiredTensor grad_up;  ///< [M, H], as grad_out; rows may lie apart; output
  GegluAttributes attributes = {};

  friend std::array<const kiln::Tensor*, 5> tensors_of(const GegluBackward& a) {
    return {&a.grad_out, &a.gate, &a.up, &a.grad_gate, &a.grad_up};
  }
};

}  // namespace kiln::ops::geglu_mlp
