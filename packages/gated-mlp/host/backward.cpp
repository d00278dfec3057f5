// SPDX-License-Identifier: Apache-2.0
//
// Backward on a GPU. With g, u, h those of forward and dg, du, dh their gradients:
//
//   [g, u] = x [gate; up]^T + biases    unless training_forward kept them
//   dh     = dy down
//   dg, du, h from g, u, dh
//   dx     = [dg, du] [gate; up]
//   dgate  = dg^T x, dup = du^T x, ddown = dy^T h
//   the biases' gradients: sums over the rows of dg, du and dy
//
// Each product is one of forward's plain GEMM kernels, which sum over what lies side by side in
// memory in both operands: what does not is transposed first (smxx_backward.cu). On SM 9.0
// gpu_gradients.cpp spares that, where it can.
#include "host/backward_plan.h"
#include "host/gemm.hpp"
#include "host/gradients.hpp"
#include "host/ops.hpp"
#include "host/padded.hpp"

namespace kiln::package {
namespace {

using gated_mlp::BackwardPart;
using gated_mlp::BackwardPlan;
using gated_mlp::Element;
using gated_mlp::GatedBackwardArguments;
using gated_mlp::RowSumsArguments;
using gated_mlp::TransposeArguments;

BackwardPlan plan_of(const MlpBackwardCall& call) {
  return gated_mlp::plan_backward(
      {call.M, call.D, call.H, call.gate_out.present, gradients_lie_well(call),
       call.gate_bias.present || call.up_bias.present, call.grad_x.present, call.grad_gate.present,
       call.grad_up.present, call.grad_down.present, call.grad_gate_bias.present,
       call.grad_up_bias.present, call.grad_down_bias.present});
}

// A matrix of 16-bit elements without gaps; or of float32, to which a product is added.
struct Matrix {
  const char* name;
  void* data;
  int64_t rows;
  int64_t columns;
  bool added = false;
};

// The steps of one call, each a launch. The first that fails ends the call.
class Backward {
 public:
  Backward(const sdk::OnDevice& gpu, const MlpBackwardCall& call, const BackwardPlan& plan,
           kiln_error* error)
      : gpu_(gpu), call_(call), plan_(plan), error_(error) {}

  int32_t run() {
    if (plan_.has(BackwardPart::kGradProducts)) gated_unit();
    const int64_t h = call_.H;
    const Matrix across = part(BackwardPart::kTransposedGradients, 2 * h, plan_.padded_m);
    const Matrix of_gate = rows_of(across, 0, h);
    const Matrix of_up = rows_of(across, h, h);
    if (call_.grad_x.present) {
      multiply(Product::kGradX, gradients(), part(BackwardPart::kTransposedWeights, call_.D, 2 * h),
               of(call_.grad_x, "grad_x"));
    }
    const Matrix x = transposed(BackwardPart::kTransposedX, of(call_.x, "x"));
    if (gradients_are_one()) {
      Matrix both = of(call_.grad_gate, "grad_gate");
      both.rows = 2 * h;
      multiply(Product::kGradGate, across, x, both);
    } else {
      if (call_.grad_gate.present) {
        multiply(Product::kGradGate, of_gate, x, of(call_.grad_gate, "grad_gate"));
      }
      if (call_.grad_up.present) {
        multiply(Product::kGradUp, of_up, x, of(call_.grad_up, "grad_up"));
      }
    }
    const Matrix grad_y = transposed(BackwardPart::kTransposedGradY, of(call_.grad_y, "grad_y"));
    if (call_.grad_down.present) {
      multiply(Product::kGradDown, grad_y, part(BackwardPart::kTransposedHidden, h, plan_.padded_m),
               of(call_.grad_down, "grad_down"));
    }
    sum_rows(of_gate, call_.grad_gate_bias);
    sum_rows(of_up, call_.grad_up_bias);
    sum_rows(grad_y, call_.grad_down_bias);
    return status_;
  }

 private:
  // Whether up's gradient follows gate's in memory: one product fills the GPU better than two.
  bool gradients_are_one() const {
    const sdk::Tensor& gate = call_.grad_gate;
    const sdk::Tensor& up = call_.grad_up;
    return gate.present && up.present && gate.dtype == up.dtype &&
           static_cast<char*>(gate.data) + call_.H * call_.D * bytes_of(element_of(gate.dtype)) ==
               up.data;
  }

  // What lies in the workspace; no data if it is not there.
  Matrix part(BackwardPart part, int64_t rows, int64_t columns) const {
    void* data = nullptr;
    if (plan_.has(part)) {
      data = static_cast<char*>(call_.workspace) + plan_.offsets[static_cast<int>(part)];
    }
    return {"an intermediate", data, rows, columns};
  }
  Matrix gradients() const { return part(BackwardPart::kGradProducts, call_.M, 2 * call_.H); }

  static Matrix of(const sdk::Tensor& tensor, const char* name) {
    return {name, tensor.data, tensor.shape[0], tensor.shape[1], adds(tensor)};
  }
  static Matrix column_of(const sdk::Tensor& bias) {
    return {"a bias", bias.data, bias.present ? bias.shape[0] : 0, 1};
  }
  static Matrix rows_of(const Matrix& matrix, int64_t first, int64_t rows) {
    Matrix result = matrix;
    result.rows = rows;
    if (matrix.data != nullptr) {
      result.data =
          static_cast<char*>(matrix.data) + first * matrix.columns * gated_mlp::kHalfBytes;
    }
    return result;
  }

  // x, gate and up -> products, their gradients in their place, and all that is transposed of them.
  void gated_unit() {
    const int64_t d = call_.D;
    const int64_t h = call_.H;
    const Matrix weights = part(BackwardPart::kWeights, 2 * h, d);
    const Matrix across = part(BackwardPart::kTransposedWeights, d, 2 * h);
    transpose(of(call_.gate, "gate"), across, 0, h, rows_of(weights, 0, h).data);
    transpose(of(call_.up, "up"), across, h, h, rows_of(weights, h, h).data);
    if (weights.data != nullptr) {
      const Matrix biases = part(BackwardPart::kBiases, 1, 2 * h);
      transpose(column_of(call_.gate_bias), biases, 0, h, nullptr);
      transpose(column_of(call_.up_bias), biases, h, h, nullptr);
      multiply(Product::kGateUp, of(call_.x, "x"), weights, gradients(), biases.data);
    }
    const Matrix grad_hidden = part(BackwardPart::kGradHidden, call_.M, h);
    if (grad_hidden.data != nullptr) {
      const Matrix down = part(BackwardPart::kDown, h, d);
      transpose(of(call_.down, "down"), down, 0, d, nullptr);
      multiply(Product::kGradHidden, of(call_.grad_y, "grad_y"), down, grad_hidden);
    }
    GatedBackwardArguments arguments = {};
    arguments.gradients = gradients().data;
    arguments.grad_hidden = grad_hidden.data;
    if (call_.gate_out.present) {
      arguments.gate_out = call_.gate_out.data;
      arguments.up_out = call_.up_out.data;
      arguments.out_stride = h;
    } else {
      arguments.gate_out = gradients().data;
      arguments.up_out = static_cast<char*>(gradients().data) + h * gated_mlp::kHalfBytes;
      arguments.out_stride = 2 * h;
    }
    arguments.transposed_gradients = part(BackwardPart::kTransposedGradients, 0, 0).data;
    arguments.transposed_hidden = part(BackwardPart::kTransposedHidden, 0, 0).data;
    arguments.rows = call_.M;
    arguments.columns = h;
    arguments.padded_rows = plan_.padded_m;
    arguments.paired =
        h % 2 == 0 && is_aligned(arguments.gate_out, 4) && is_aligned(arguments.up_out, 4) ? 1 : 0;
    arguments.gating = call_.gating;
    launch_tiles(gated_backward_kernel(element_of(call_.x.dtype)), plan_.padded_m, h, arguments);
  }

  // The matrix with its rows padded to plan_.padded_m columns of the part.
  Matrix transposed(BackwardPart to, const Matrix& matrix) {
    const Matrix result = part(to, matrix.columns, plan_.padded_m);
    if (result.data != nullptr) transpose(matrix, result, 0, plan_.padded_m, nullptr);
    return result;
  }

  // Into columns `first` to `first` + `padded_rows` of `to`, unless that is not there; and, where
  // `copy` is not null, as it is to there.
  void transpose(const Matrix& matrix, const Matrix& to, int64_t first, int64_t padded_rows,
                 void* copy) {
    TransposeArguments arguments = {};
    arguments.source = matrix.data;
    arguments.transposed =
        to.data == nullptr ? nullptr : static_cast<char*>(to.data) + first * gated_mlp::kHalfBytes;
    arguments.copy = copy;
    arguments.rows = matrix.rows;
    arguments.columns = matrix.columns;
    arguments.padded_rows = padded_rows;
    arguments.transposed_stride = to.columns;
    arguments.paired_loads =
        matrix.columns % 2 == 0 && is_aligned(matrix.data, 4) && is_aligned(copy, 4) ? 1 : 0;
    arguments.paired_stores = to.columns % 2 == 0 && is_aligned(arguments.transposed, 4) ? 1 : 0;
    if (to.data == nullptr && copy == nullptr) return;
    launch_tiles(gated_mlp::kTransposeKernel, padded_rows, matrix.columns, arguments);
  }

  // out[m, n] = a[m, k] b[n, k]^T + bias[n], or, without a bias, out += a b^T
  void multiply(Product product, const Matrix& a, const Matrix& b, const Matrix& out,
                const void* bias = nullptr) {
    if (status_ != KILN_OK) return;
    GemmCall gemm = {product, "backward", a.name, b.name, out.name, {}, {}};
    gemm.shape = {.element = element_of(call_.x.dtype),
                  .m = out.rows,
                  .n = out.columns,
                  .k = a.columns,
                  .invariant = call_.invariant,
                  .adds = out.added};
    gemm.arguments.a = a.data;
    gemm.arguments.b0 = b.data;
    gemm.arguments.bias0 = bias;
    gemm.arguments.out = out.data;
    status_ = launch_gemm(gpu_, gemm, call_.stream, error_);
  }

  void sum_rows(const Matrix& matrix, const sdk::Tensor& sums) {
    if (status_ != KILN_OK || !sums.present || matrix.rows == 0) return;
    RowSumsArguments arguments = {matrix.data, sums.data, matrix.rows, matrix.columns,
                                  adds(sums) ? 1 : 0};
    void* pointers[] = {&arguments};
    const auto ctas =
        static_cast<uint32_t>(gated_mlp::tiles_of(matrix.rows, gated_mlp::kBackwardThreads / 32));
    launch(row_sums_kernel(element_of(call_.x.dtype)), ctas, pointers);
  }

  template <class Arguments>
  void launch_tiles(int kernel, int64_t rows, int64_t columns, Arguments arguments) {
    if (status_ != KILN_OK) return;
    const int64_t down = gated_mlp::tiles_of(rows, gated_mlp::kTransposeTile);
    const int64_t across = gated_mlp::tiles_of(columns, gated_mlp::kTransposeTile);
    if (down == 0 || across == 0) return;
    if (down > gated_mlp::kMostGridX / across) {
      status_ = sdk::fail(error_, KILN_UNSUPPORTED,
                          "backward: %lld x %lld elements need more CTAs than a grid has; "
                          "split x into several calls",
                          static_cast<long long>(rows), static_cast<long long>(columns));
      return;
    }
    arguments.tiles_across = static_cast<unsigned>(across);
    void* pointers[] = {&arguments};
    launch(kernel, static_cast<uint32_t>(down * across), pointers);
  }

  // A variant with kernels for SM 9.0 has these from the same compiler target: they wait for the
  // kernel ahead.
  void launch(int kernel, uint32_t ctas, void** arguments) {
    status_ = gpu_.launch(kernel,
                          {.grid = {ctas},
                           .threads = gated_mlp::kBackwardThreads,
                           .overlap = gpu_.has(gated_mlp::kKernels)},
                          call_.stream, arguments, error_);
  }

  const sdk::OnDevice& gpu_;
  const MlpBackwardCall& call_;
  const BackwardPlan& plan_;
  kiln_error* const error_;
  int32_t status_ = KILN_OK;
};

}  // namespace

size_t mlp_backward_workspace_bytes(const MlpBackwardCall& call) {
  if (needs_padding(call.M, call.D, call.H)) return padded_workspace_bytes(call);
  return plan_of(call).workspace_bytes;
}

int32_t mlp_backward(const MlpBackwardCall& call, kiln_error* error) {
  if (element_of(call.x.dtype) == Element::kFloat32) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "backward: grad_y is float32; on a GPU it takes bfloat16 or float16 "
                     "(convert, or use a CPU variant)");
  }
  gated_mlp::Pins pins;
  if (const int32_t status = read_pins("backward", call.kernels, {.backward = true}, &pins, error);
      status != KILN_OK) {
    return status;
  }
  sdk::OnDevice gpu;
  if (const int32_t status = gpu.enter(call.device, error); status != KILN_OK) return status;
  if (needs_padding(call.M, call.D, call.H) && !pins.any()) return run_padded(gpu, call, error);
  const BackwardPlan plan = plan_of(call);
  if (plan.as_it_lies) return launch_gradients(gpu, call, plan, pins, error);
  if (pins.any()) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "backward: kernels names kernels for SM 9.0, which do not compute this call: "
                     "the variant has none, D or H is not a multiple of 8, or a tensor is not "
                     "16-byte aligned");
  }
  return Backward(gpu, call, plan, error).run();
}

}  // namespace kiln::package
