// SPDX-License-Identifier: Apache-2.0
//
// Backward in four launches: gate_out and up_out, unless they were kept; their gradients, of which
// that of h is never stored; dx; and all weights' gradients in one grid. Each starts early and
// waits for the one ahead before it reads.
#include "host/gradients.hpp"

#include <kiln/sdk/images.hpp>

#include <string.h>

#include "host/gemm.hpp"
#include "host/gradients_plan.h"

namespace kiln::package {
namespace {

using gated_mlp::BackwardPart;
using gated_mlp::BackwardPlan;
using gated_mlp::ColumnSumsArguments;
using gated_mlp::Element;
using gated_mlp::GatedGradientArguments;
using gated_mlp::GradientArguments;
using gated_mlp::GradientKind;
using gated_mlp::GradientProduct;
using gated_mlp::GradientsPlan;
using gated_mlp::GradientsQuestion;
using gated_mlp::Pinned;
using gated_mlp::Pins;
using gated_mlp::Sm90Plan;

struct Matrix {
  const char* name;
  void* data;
  int64_t rows;
  int64_t columns;
  bool added = false;  // of float32; a product is added to it
};

// out = a b^T, or out += a b^T
struct Factors {
  Matrix a;
  Matrix b;
  Matrix out;
};

class Gradients {
 public:
  Gradients(const sdk::OnDevice& gpu, const MlpBackwardCall& call, const BackwardPlan& plan,
            const Pins& pins, kiln_error* error)
      : gpu_(gpu), call_(call), plan_(plan), pins_(pins), error_(error) {}

  int32_t run() {
    if (plan_.has(BackwardPart::kGradProducts)) gated_unit();
    if (call_.grad_x.present) {
      const Matrix out = of(call_.grad_x, "grad_x");
      const Factors products[kMost] = {{grad_gate_out(), of(call_.gate, "gate"), out},
                                       {grad_up_out(), of(call_.up, "up"), out}};
      multiply(GradientKind::kTokens, call_.H, products, 2);
    }
    weights();
    sum_columns(grad_gate_out(), call_.grad_gate_bias);
    sum_columns(grad_up_out(), call_.grad_up_bias);
    sum_columns(of(call_.grad_y, "grad_y"), call_.grad_down_bias);
    return status_;
  }

 private:
  static constexpr int kMost = gated_mlp::kMostGradientProducts;

  Element element() const { return element_of(call_.x.dtype); }

  static Matrix of(const sdk::Tensor& tensor, const char* name) {
    return {name, tensor.data, tensor.shape[0], tensor.shape[1], adds(tensor)};
  }
  // [M, H] in the workspace; no data if it is not there.
  Matrix part(BackwardPart part) const {
    char* data = nullptr;
    if (plan_.has(part)) {
      data = static_cast<char*>(call_.workspace) + plan_.offsets[static_cast<int>(part)];
    }
    return {"an intermediate", data, call_.M, call_.H};
  }
  Matrix grad_gate_out() const { return part(BackwardPart::kGradProducts); }
  Matrix grad_up_out() const {
    Matrix matrix = grad_gate_out();
    if (matrix.data == nullptr) return matrix;
    matrix.data = static_cast<char*>(matrix.data) + call_.M * call_.H * gated_mlp::kHalfBytes;
    return matrix;
  }
  Matrix hidden() const { return part(BackwardPart::kHidden); }

  void gated_unit() {
    const bool kept = call_.gate_out.present;
    if (!kept) keep_products(hidden());
    if (!plan_.grad_hidden) {
      if (kept) compute_hidden();
      return;  // h is all that is wanted
    }
    const Factors products[kMost] = {
        {of(call_.grad_y, "grad_y"), of(call_.down, "down"), grad_gate_out()}};
    GatedGradientArguments arguments = {};
    const GradientsPlan plan = prepare(GradientKind::kGated, call_.D, products, 1, &arguments);
    const auto box = [&](const Matrix& matrix, gated_mlp::TensorMap* to) {
      map(matrix, static_cast<uint32_t>(plan.tile->store_rows), gated_mlp::kMostStripColumns, to);
    };
    box(kept ? of(call_.gate_out, "gate_out") : grad_gate_out(), &arguments.gate_out);
    box(kept ? of(call_.up_out, "up_out") : grad_up_out(), &arguments.up_out);
    box(grad_up_out(), &arguments.grad_up);
    arguments.stores_hidden = kept && hidden().data != nullptr ? 1 : 0;
    if (arguments.stores_hidden != 0) box(hidden(), &arguments.hidden);
    arguments.gating = call_.gating;
    launch(plan, &arguments);
  }

  void compute_hidden() {
    const sdk::Tensor h = {true, call_.x.dtype, hidden().data, {call_.M, call_.H}, {call_.H, 1}};
    status_ = pointwise({call_,
                         "backward",
                         {},
                         call_.gate_out,
                         call_.up_out,
                         h,
                         {},
                         call_.M,
                         call_.H,
                         call_.gating},
                        error_);
  }

  // gate_out, up_out and h, as training_forward computes them.
  void keep_products(const Matrix& out) {
    if (status_ != KILN_OK) return;
    GemmCall gated = {Product::kKeeping, "backward", "x", "gate", out.name, {}, {}};
    gated.shape = {.gated = true,
                   .element = element(),
                   .m = call_.M,
                   .n = call_.H,
                   .k = call_.D,
                   .keeps = true};
    gated.arguments.a = call_.x.data;
    gated.arguments.b0 = call_.gate.data;
    gated.arguments.b1 = call_.up.data;
    gated.arguments.bias0 = data_or_null(call_.gate_bias);
    gated.arguments.bias1 = data_or_null(call_.up_bias);
    gated.arguments.out = out.data;
    gated.arguments.gating = call_.gating;
    gated.arguments.gate_out = grad_gate_out().data;
    gated.arguments.up_out = grad_up_out().data;
    gated.pinned = pins_.of(Pinned::kGated);
    const Sm90Plan* const plan = find_sm90(gpu_, gated);
    if (plan != nullptr) {
      status_ = launch_sm90(gpu_, gated, *plan, {true, true}, call_.stream, error_);
    } else if (gated.pinned != nullptr) {
      status_ = fail_pinned(gpu_, gated, error_);
    } else {
      status_ = sdk::fail(error_, KILN_UNSUPPORTED, "backward: no kernel computes gate_out");
    }
  }

  void weights() {
    Factors products[kMost];
    int count = 0;
    const auto add = [&](const sdk::Tensor& out, const char* name, const Matrix& a,
                         const Matrix& b) {
      if (out.present) products[count++] = {a, b, of(out, name)};
    };
    add(call_.grad_gate, "grad_gate", grad_gate_out(), of(call_.x, "x"));
    add(call_.grad_up, "grad_up", grad_up_out(), of(call_.x, "x"));
    add(call_.grad_down, "grad_down", of(call_.grad_y, "grad_y"), hidden());
    if (count > 0) multiply(GradientKind::kWeights, call_.M, products, count);
  }

  // Of weights each into its own output, written or added, else their sum into the first one's; k
  // is a product's.
  void multiply(GradientKind kind, int64_t k, const Factors (&products)[kMost], int count) {
    GradientArguments arguments = {};
    const GradientsPlan plan = prepare(kind, k, products, count, &arguments);
    launch(plan, &arguments);
  }

  // The arguments of the kernel that the plan chooses.
  GradientsPlan prepare(GradientKind kind, int64_t k, const Factors (&products)[kMost], int count,
                        GradientArguments* arguments) {
    GradientsQuestion question = {kind, element(), k, count, {}};
    const Pinned named = kind == GradientKind::kTokens ? Pinned::kGradX : Pinned::kGradWeights;
    if (kind != GradientKind::kGated && pins_.of(named) != nullptr) {
      question.pinned = pins_.of(named)->tile;
    }
    for (int i = 0; i < count; ++i) {
      question.products[i] = {products[i].out.rows, products[i].out.columns};
    }
    const GradientsPlan plan = plan_gradients(question, facts_of(gpu_));
    const gated_mlp::Sm90Tile& tile = *plan.tile;
    arguments->count = static_cast<unsigned>(count);
    arguments->k_blocks = plan.k_blocks;
    constexpr uint32_t kBlock = gated_mlp::kDepth;
    const bool a_is_turned = kind == GradientKind::kWeights;
    const auto written_columns =
        static_cast<uint32_t>(gated_mlp::strip_columns(static_cast<int>(tile.columns)));
    for (int i = 0; i < count; ++i) {
      GradientProduct& product = arguments->products[i];
      const Factors& factors = products[i];
      map(factors.a, a_is_turned ? kBlock : static_cast<uint32_t>(tile.rows), kBlock, &product.a);
      map(factors.b, kBlock / 2, kBlock, &product.b);  // half of k, for both CTAs
      map(factors.out, static_cast<uint32_t>(tile.store_rows),
          factors.out.added ? gated_mlp::kAddedStripColumns : written_columns, &product.out);
      product.tiles_m = plan.grids[i].tiles_m;
      product.tiles_n = plan.grids[i].tiles_n;
      product.panel = plan.grids[i].panel;
      product.adds = factors.out.added ? 1 : 0;
    }
    return plan;
  }

  void launch(const GradientsPlan& plan, GradientArguments* arguments) {
    if (status_ != KILN_OK) return;
    void* pointers[] = {arguments};
    status_ = gpu_.launch(
        plan.kernel,
        {.grid = {plan.ctas}, .threads = plan.tile->threads, .cluster = 2, .overlap = true},
        call_.stream, pointers, error_);
  }

  void map(const Matrix& matrix, uint32_t box_rows, uint32_t box_columns,
           gated_mlp::TensorMap* to) {
    if (status_ != KILN_OK) return;
    const sdk::DType dtype = matrix.added ? sdk::DType::kFloat32 : call_.x.dtype;
    status_ =
        gpu_.map_matrix({matrix.data, dtype, matrix.rows, matrix.columns, box_rows, box_columns},
                        matrix.name, to, error_);
  }

  void sum_columns(const Matrix& matrix, const sdk::Tensor& sums) {
    if (!sums.present) return;
    ColumnSumsArguments arguments = {matrix.data, sums.data, matrix.rows, matrix.columns,
                                     adds(sums) ? 1 : 0};
    void* pointers[] = {&arguments};
    if (status_ != KILN_OK) return;
    const auto ctas =
        static_cast<uint32_t>(gated_mlp::tiles_of(matrix.columns, gated_mlp::kSumColumns));
    status_ = gpu_.launch(gated_mlp::column_sums_kernel(element()),
                          {.grid = {ctas}, .threads = gated_mlp::kSumThreads, .overlap = true},
                          call_.stream, pointers, error_);
  }

  const sdk::OnDevice& gpu_;
  const MlpBackwardCall& call_;
  const BackwardPlan& plan_;
  const Pins& pins_;
  kiln_error* const error_;
  int32_t status_ = KILN_OK;
};

}  // namespace

bool gradients_lie_well(const MlpBackwardCall& call) {
  constexpr gated_mlp::GpuFacts kHopper = {132, 227 * 1024};  // what those kernels are for
  bool has_kernels = false;
  for (int i = 0; i < sdk::kImageCount; ++i) {
    has_kernels = has_kernels || strcmp(sdk::kImages[i].stem, "sm90_gradients") == 0;
  }
  const sdk::Tensor* const tensors[] = {
      &call.grad_y, &call.x,      &call.gate,      &call.up,      &call.down,     &call.gate_out,
      &call.up_out, &call.grad_x, &call.grad_gate, &call.grad_up, &call.grad_down};
  bool mapped = has_kernels;
  for (const sdk::Tensor* tensor : tensors) {
    mapped =
        mapped && (!tensor->present || (tensor->data != nullptr && is_aligned(tensor->data, 16)));
  }
  return gated_mlp::gradients_lie_well(call.M, call.D, call.H, mapped, kHopper);
}

int32_t launch_gradients(const sdk::OnDevice& gpu, const MlpBackwardCall& call,
                         const BackwardPlan& plan, const Pins& pins, kiln_error* error) {
  return Gradients(gpu, call, plan, pins, error).run();
}

}  // namespace kiln::package
