// SPDX-License-Identifier: Apache-2.0
//
// GatedMlp: the layer over the ops of a package with gated MLPs: GegluMlp, SwigluMlp.
// kiln/ops/<package>.hpp, which is made of package.json, has the ops, the elementwise ones too;
// here is what a model's code wants above them: weights that are given once, overloads, a workspace
// of the layer's own. The package checks shapes, dtypes and devices and names what does not fit.
// Weights are views: their memory is the caller's and must outlive the layer.
//
// Threads: const members may be called from several threads at once. The members that use the
// layer's own workspace are not const: a thread that wants them takes a copy of the layer, which
// costs less than a microsecond, has the same weights and its own workspace. On a CPU a call takes
// worker threads, which are made when they are first wanted, sleep between calls and serve all
// callers: at most as many as the calling thread's affinity mask has CPUs (sched_setaffinity,
// taskset, a cpuset), as the control groups' quota grants, as OMP_NUM_THREADS says and as
// Request::threads does; a small call takes none. The child of a fork makes its own.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include "kiln/kernel.hpp"

namespace kiln::layers {

/// y[M,D] = (a(x gate^T + gate_bias) * f(x up^T + up_bias)) down^T + down_bias + residual; a and f
/// are the package's. bfloat16 or float16, on the CPU also float32; one dtype for all; accumulates
/// in float32. backward() gives the gradients of training. With attributes.batch_invariant,
/// the bits of a row of y, of what is kept and of x's gradient depend on that row of the inputs and
/// the weights alone: not on M, and not on the other rows. A call is slower then where few rows
/// want k split, and never uses cuBLASLt. Without it, M chooses the order of the sums.
///
/// `overflow` says what happens where h = a(x gate^T + gate_bias) * f(x up^T + up_bias) is beyond
/// 65504 and a GPU stores it in float16: it becomes infinity, or that value. A NaN stays one. The
/// other dtypes and the CPU hold every h. backward() takes h as forward() had it, for down's
/// gradient, and every derivative as if nothing saturated.
template <class ForwardOp, class TrainingForwardOp, class BackwardOp>
class GatedMlp {
 public:
  static constexpr std::string_view kPackage = ForwardOp::kSignature.package;

  /// How it computes: those of package.json.
  using Attributes = decltype(ForwardOp::attributes);
  using Overflow = typename Attributes::Overflow;

  struct Weights {
    RequiredTensor gate;    ///< [H,D], row-major as nn.Linear holds it
    RequiredTensor up;      ///< [H,D]
    RequiredTensor down;    ///< [D,H]
    Tensor gate_bias = {};  ///< [H], or none
    Tensor up_bias = {};    ///< [H], or none
    Tensor down_bias = {};  ///< [D], or none
    Attributes attributes = {};
  };

  /// What a forward reads: forward(x, y), or forward({x, residual}, y).
  struct Input {
    Tensor x;              ///< [M,D], M may be 0
    Tensor residual = {};  ///< [M,D], or none. Added in float32, before y is rounded; its gradient
                           ///< is grad_y. y may be the residual itself, in its place

    Input(const Tensor& a_x, const Tensor& a_residual = {})  // NOLINT(google-explicit-constructor)
        : x(a_x), residual(a_residual) {}
  };

  /// What training_forward() keeps for backward(): x gate^T + gate_bias and x up^T + up_bias.
  struct Kept {
    Tensor gate_out = {};  ///< [M,H]
    Tensor up_out = {};    ///< [M,H]
  };

  /// Where backward() adds gradients of weights to what is there: all float32, whatever x is.
  struct MainGradients {
    Tensor gate = {};       ///< [H,D]
    Tensor up = {};         ///< [H,D]
    Tensor down = {};       ///< [D,H]
    Tensor gate_bias = {};  ///< [H]
    Tensor up_bias = {};    ///< [H]
    Tensor down_bias = {};  ///< [D]
  };

  /// Where backward() writes, in the dtype of x. What is Tensor{} is not computed.
  struct Gradients {
    Tensor x = {};            ///< [M,D]
    Tensor gate = {};         ///< [H,D]
    Tensor up = {};           ///< [H,D]
    Tensor down = {};         ///< [D,H]
    Tensor gate_bias = {};    ///< [H]
    Tensor up_bias = {};      ///< [H]
    Tensor down_bias = {};    ///< [D]
    MainGradients main = {};  ///< each instead of the one above
  };

  /// Checks the weights: throws kInvalidCall with the one that does not fit, and what Kernel::op()
  /// throws where the kernel is another one.
  GatedMlp(const Kernel& kernel, Weights weights)
      : forward_(kernel.op<ForwardOp>()),
        training_forward_(kernel.op<TrainingForwardOp>()),
        backward_(kernel.op<BackwardOp>()),
        weights_(std::move(weights)),
        owned_(kernel.device()) {
    workspace_bytes(weights_.gate);  // [H,D]: itself a valid x
  }

  /// Scratch memory that forward() needs for this x: M * H elements on a GPU, and twice as many and
  /// 32 MiB where cuBLASLt computes the products. Where D or H is no multiple of 8, a GPU's calls
  /// copy all their tensors, rounded up: those count, too, here and below.
  std::size_t workspace_bytes(const Tensor& x) const {
    return forward_.workspace_bytes(arguments(x, x));
  }

  /// y: [M,D]. Enqueues on `stream` and returns; the CPU has finished. Allocates
  /// nothing, can be captured in a CUDA graph. Throws kInvalidCall or kDevice.
  void forward(const Input& input, const Tensor& y, Workspace workspace, Stream stream = {}) const {
    forward_.run(arguments(input, y), workspace, stream);
  }

  /// The same with the layer's own workspace, which grows to the largest x seen (growing
  /// synchronises the device). One stream and one thread at a time.
  void forward(const Input& input, const Tensor& y, Stream stream = {}) {
    forward(input, y, owned_.reserve(workspace_bytes(input.x)), stream);
  }

  /// Scratch memory that training_forward() needs: what forward() does, and the copies of `kept`.
  std::size_t training_workspace_bytes(const Tensor& x, const Kept& kept) const {
    return training_forward_.workspace_bytes(arguments(x, x, kept));
  }

  /// forward(), which also writes `kept`, both of it. y has the bits of forward()'s y where
  /// batch_invariant is set, on a CPU and in variants for every GPU; in those for SM 9.0 alone
  /// forward() may otherwise add in another order, within the same error.
  void training_forward(const Input& input, const Tensor& y, const Kept& kept, Workspace workspace,
                        Stream stream = {}) const {
    training_forward_.run(arguments(input, y, kept), workspace, stream);
  }

  /// The same with the layer's own workspace.
  void training_forward(const Input& input, const Tensor& y, const Kept& kept, Stream stream = {}) {
    training_forward(input, y, kept, owned_.reserve(training_workspace_bytes(input.x, kept)),
                     stream);
  }

  /// Scratch memory that backward() needs for these tensors. In variants for SM 9.0 alone, where D
  /// and H are multiples of 8 and each tensor begins at a multiple of 16 bytes: M * 3 H elements.
  /// Else on a GPU, for all gradients: M * (6 H + 2 D) + 5 H * D elements, with M rounded up to 8
  /// and each matrix to 256 bytes; 2 H * D less with what training_forward() kept. On a CPU no more
  /// than 4 * (M * (D + 3 min(H, 672)) + 1040 max(M, D, 672)) bytes and 8 MiB.
  std::size_t backward_workspace_bytes(const Tensor& grad_y, const Tensor& x, const Kept& kept,
                                       const Gradients& gradients) const {
    return backward_.workspace_bytes(arguments(grad_y, x, kept, gradients));
  }

  /// grad_y, x: [M,D], those of forward(); down_bias and residual are not read. `kept`: what
  /// training_forward() wrote. With {} backward() computes it again: two products of nine more, and
  /// M * 2 H elements less to keep. Overwrites the gradients that are asked for: nothing is added
  /// to what they held, and sums over no rows are 0. To those of `gradients.main` it adds, once,
  /// what it would write, before that is rounded. Sums are float32; a GPU rounds the intermediates
  /// to the dtype of x too, a CPU only the gradients that it writes. The same bits on each run, on
  /// any number of CPU threads, and whichever gradients are asked for. On a GPU, gate's and up's
  /// gradients in one buffer [2H,D], gate's first, are one product: faster, and the last bits may
  /// differ. Enqueues on `stream` and returns; the CPU has finished. Allocates nothing, can be
  /// captured in a CUDA graph. Throws kInvalidCall, also for half of `kept` and for a gradient that
  /// is to be written and added, or kDevice.
  void backward(const Tensor& grad_y, const Tensor& x, const Kept& kept, const Gradients& gradients,
                Workspace workspace, Stream stream = {}) const {
    backward_.run(arguments(grad_y, x, kept, gradients), workspace, stream);
  }

  /// The same with the layer's own workspace, which grows as that of forward().
  void backward(const Tensor& grad_y, const Tensor& x, const Kept& kept, const Gradients& gradients,
                Stream stream = {}) {
    backward(grad_y, x, kept, gradients,
             owned_.reserve(backward_workspace_bytes(grad_y, x, kept, gradients)), stream);
  }

 private:
  ForwardOp arguments(const Input& input, const Tensor& y) const {
    return {.x = input.x,
            .gate = weights_.gate,
            .up = weights_.up,
            .down = weights_.down,
            .gate_bias = weights_.gate_bias,
            .up_bias = weights_.up_bias,
            .down_bias = weights_.down_bias,
            .residual = input.residual,
            .y = y,
            .attributes = weights_.attributes};
  }
  TrainingForwardOp arguments(const Input& input, const Tensor& y, const Kept& kept) const {
    return {.x = input.x,
            .gate = weights_.gate,
            .up = weights_.up,
            .down = weights_.down,
            .gate_bias = weights_.gate_bias,
            .up_bias = weights_.up_bias,
            .down_bias = weights_.down_bias,
            .residual = input.residual,
            .y = y,
            .gate_out = kept.gate_out,
            .up_out = kept.up_out,
            .attributes = weights_.attributes};
  }
  BackwardOp arguments(const Tensor& grad_y, const Tensor& x, const Kept& kept,
                       const Gradients& gradients) const {
    return {.grad_y = grad_y,
            .x = x,
            .gate = weights_.gate,
            .up = weights_.up,
            .down = weights_.down,
            .gate_bias = weights_.gate_bias,
            .up_bias = weights_.up_bias,
            .gate_out = kept.gate_out,
            .up_out = kept.up_out,
            .grad_x = gradients.x,
            .grad_gate = gradients.gate,
            .grad_up = gradients.up,
            .grad_down = gradients.down,
            .grad_gate_bias = gradients.gate_bias,
            .grad_up_bias = gradients.up_bias,
            .grad_down_bias = gradients.down_bias,
            .main_grad_gate = gradients.main.gate,
            .main_grad_up = gradients.main.up,
            .main_grad_down = gradients.main.down,
            .main_grad_gate_bias = gradients.main.gate_bias,
            .main_grad_up_bias = gradients.main.up_bias,
            .main_grad_down_bias = gradients.main.down_bias,
            .attributes = weights_.attributes};
  }

  TypedOp<ForwardOp> forward_;
  TypedOp<TrainingForwardOp> training_forward_;
  TypedOp<BackwardOp> backward_;
  Weights weights_;
  OwnedWorkspace owned_;
};

}  // namespace kiln::layers
