// SPDX-License-Identifier: Apache-2.0
//
#include "host/ops.hpp"

#include "host/cublaslt.hpp"
#include "host/cublaslt_plan.h"
#include "host/gemm.hpp"
#include "host/padded.hpp"

namespace kiln::package {
namespace {

using gated_mlp::CublasltPlan;
using gated_mlp::Element;
using gated_mlp::Pins;
using gated_mlp::PointwiseArguments;
using gated_mlp::PointwisePlan;
using gated_mlp::PointwiseShape;
using gated_mlp::Sm90Plan;

struct PointwiseLaunch {
  PointwiseShape shape;
  PointwiseArguments arguments;
};

// Puts one tensor into the arguments, and its alignment and gaps into the shape.
template <class Data>
void add_tensor(PointwiseLaunch& launch, const sdk::Tensor& tensor, Data*& data,
                long long& stride) {
  data = tensor.data;
  stride = tensor.stride[0];
  const int64_t stride_bytes = tensor.stride[0] * bytes_of(launch.shape.element);
  const bool one_row = launch.shape.rows <= 1;
  int64_t& alignment = launch.shape.alignment;
  while (!is_aligned(tensor.data, static_cast<uintptr_t>(alignment)) ||
         (!one_row && stride_bytes % alignment != 0)) {
    alignment /= 2;
  }
  launch.shape.compact =
      launch.shape.compact && (one_row || tensor.stride[0] == launch.shape.columns);
}

PointwiseLaunch pointwise_launch(const PointwiseCall& call) {
  PointwiseLaunch launch = {};
  const bool backward = call.grad_out.present;
  launch.shape = {backward, element_of(call.gate.dtype), call.rows, call.columns,
                  true,     gated_mlp::kWideBytes};
  PointwiseArguments& arguments = launch.arguments;
  arguments.gating = call.gating;
  add_tensor(launch, call.gate, arguments.gate, arguments.gate_stride);
  add_tensor(launch, call.up, arguments.up, arguments.up_stride);
  add_tensor(launch, call.out, arguments.out0, arguments.out0_stride);
  if (backward) {
    add_tensor(launch, call.grad_out, arguments.grad_out, arguments.grad_out_stride);
    add_tensor(launch, call.grad_up, arguments.out1, arguments.out1_stride);
  }
  return launch;
}

CublasltPlan plan_by_cublaslt(const MlpCall& call, bool aligned) {
  return gated_mlp::plan_cublaslt(
      {needs_cublaslt(), call.M, call.D, call.H, aligned, call.invariant});
}

bool is_aligned_for_cublaslt(const MlpCall& call) {
  const sdk::Tensor* const tensors[] = {
      &call.x,         &call.gate,     &call.up, &call.down,     &call.gate_bias, &call.up_bias,
      &call.down_bias, &call.residual, &call.y,  &call.gate_out, &call.up_out};
  for (const sdk::Tensor* tensor : tensors) {
    if (!is_aligned(data_or_null(*tensor), gated_mlp::kCublasltAlignment)) return false;
  }
  return true;
}

int32_t forward_by_cublaslt(const sdk::OnDevice& gpu, const MlpCall& call, const CublasltPlan& plan,
                            kiln_error* error) {
  CublasltHandle handle = nullptr;
  int32_t status = enter_cublaslt(gpu, &handle, error);
  if (status != KILN_OK) return status;
  char* const workspace = static_cast<char*>(call.workspace);
  const auto intermediate = [&](void* data) {
    return sdk::Tensor{true, call.x.dtype, data, {call.M, call.H}, {call.H, 1}};
  };
  const bool kept = call.gate_out.present;
  const sdk::Tensor h = intermediate(workspace);
  const sdk::Tensor gate = kept ? call.gate_out : h;
  const sdk::Tensor up = kept ? call.up_out : intermediate(workspace + plan.up_offset);
  void* const scratch = workspace + plan.scratch_offset;
  const auto linear = [&](const char* name, int64_t in, int64_t out, const void* x,
                          const sdk::Tensor& weight, const sdk::Tensor& bias,
                          const sdk::Tensor& residual, void* y) {
    return launch_linear(handle,
                         {name, call.x.dtype, call.M, in, out, x, weight.data, data_or_null(bias),
                          data_or_null(residual), y},
                         scratch, call.stream, error);
  };
  status = linear("gate", call.D, call.H, call.x.data, call.gate, call.gate_bias, {}, gate.data);
  if (status != KILN_OK) return status;
  status = linear("up", call.D, call.H, call.x.data, call.up, call.up_bias, {}, up.data);
  if (status != KILN_OK) return status;

  // In place unless gate_out is kept: a thread stores where it alone has read.
  status = pointwise({call, call.op, {}, gate, up, h, {}, call.M, call.H, call.gating}, error);
  if (status != KILN_OK) return status;
  return linear("down", call.H, call.D, h.data, call.down, call.down_bias, call.residual,
                call.y.data);
}

GemmCall down_of(const MlpCall& call, const void* h) {
  GemmCall down = {Product::kDown, call.op, "h", "down", "y", {}, {}};
  down.shape = {.element = element_of(call.x.dtype),
                .m = call.M,
                .n = call.D,
                .k = call.H,
                .invariant = call.invariant};
  down.arguments.a = h;
  down.arguments.b0 = call.down.data;
  down.arguments.bias0 = data_or_null(call.down_bias);
  down.arguments.residual = data_or_null(call.residual);
  down.arguments.out = call.y.data;
  return down;
}

GemmCall gated_of(const MlpCall& call) {
  const bool keeps = call.gate_out.present;
  GemmCall gated = {keeps ? Product::kKeeping : Product::kGated, call.op, "x", "gate", "h", {}, {}};
  gated.shape = {.gated = true,
                 .element = element_of(call.x.dtype),
                 .m = call.M,
                 .n = call.H,
                 .k = call.D,
                 .keeps = keeps,
                 .invariant = call.invariant};
  gated.arguments.a = call.x.data;
  gated.arguments.b0 = call.gate.data;
  gated.arguments.b1 = call.up.data;
  gated.arguments.bias0 = data_or_null(call.gate_bias);
  gated.arguments.bias1 = data_or_null(call.up_bias);
  gated.arguments.out = call.workspace;
  gated.arguments.gating = call.gating;
  gated.arguments.gate_out = keeps ? call.gate_out.data : nullptr;
  gated.arguments.up_out = keeps ? call.up_out.data : nullptr;
  return gated;
}

}  // namespace

size_t mlp_workspace_bytes(const MlpCall& call) {
  if (needs_padding(call.M, call.D, call.H)) return padded_workspace_bytes(call);
  // Addresses are not known yet: with others than aligned ones less of it is used.
  return plan_by_cublaslt(call, true).workspace_bytes;
}

int32_t mlp(const MlpCall& call, kiln_error* error) {
  const Element element = element_of(call.x.dtype);
  if (element == Element::kFloat32) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "%s: x is float32; on a GPU it takes bfloat16 or float16 "
                     "(convert, or use a CPU variant)",
                     call.op);
  }
  Pins pins;
  const bool keeps = call.gate_out.present;
  if (const int32_t status =
          read_pins(call.op, call.kernels, {.forward = true, .keeps = keeps}, &pins, error);
      status != KILN_OK) {
    return status;
  }
  if (call.M == 0 || (call.D == 0 && !keeps)) return KILN_OK;
  sdk::OnDevice gpu;
  if (const int32_t status = gpu.enter(call.device, error); status != KILN_OK) return status;
  if (needs_padding(call.M, call.D, call.H) && !pins.any()) return run_padded(gpu, call, error);
  if (needs_cublaslt() && !pins.any()) {
    const CublasltPlan plan = plan_by_cublaslt(call, is_aligned_for_cublaslt(call));
    if (plan.refused == nullptr) return forward_by_cublaslt(gpu, call, plan, error);
  }

  GemmCall gated = gated_of(call);
  GemmCall down = down_of(call, call.workspace);
  gated.pinned = pins.of(gated_mlp::Pinned::kGated);
  down.pinned = pins.of(gated_mlp::Pinned::kDown);

  // Both or neither: the fast kernels of one read what those of the other wrote.
  const Sm90Plan* const gated_plan = find_sm90(gpu, gated);
  const Sm90Plan* const down_plan = find_sm90(gpu, down);
  if (gated_plan != nullptr && down_plan != nullptr) {
    const int32_t status = launch_sm90(gpu, gated, *gated_plan, {true, true}, call.stream, error);
    if (status != KILN_OK) return status;
    const bool early = starts_next_early(gated.shape, *gated_plan, facts_of(gpu));
    return launch_sm90(gpu, down, *down_plan, {true, early}, call.stream, error);
  }
  if (pins.any()) {
    const bool of_gated = gated.pinned != nullptr && gated_plan == nullptr;
    return fail_pinned(gpu, of_gated || down.pinned == nullptr ? gated : down, error);
  }
  const int32_t status = launch_portable(gpu, gated, call.stream, error);
  if (status != KILN_OK) return status;
  return launch_portable(gpu, down, call.stream, error);
}

int32_t pointwise(const PointwiseCall& call, kiln_error* error) {
  if (call.rows == 0 || call.columns == 0) return KILN_OK;
  sdk::OnDevice gpu;
  if (const int32_t status = gpu.enter(call.device, error); status != KILN_OK) return status;
  PointwiseLaunch launch = pointwise_launch(call);
  const PointwisePlan plan = plan_pointwise(launch.shape, facts_of(gpu));
  if (!plan.fits) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "%s: %lld rows of %lld elements need more CTAs than a grid has; "
                     "split the tensors into several calls",
                     call.op, static_cast<long long>(plan.rows),
                     static_cast<long long>(plan.columns));
  }
  launch.arguments.rows = plan.rows;
  launch.arguments.columns = plan.columns;
  launch.arguments.passing = plan.passing ? 1 : 0;
  void* pointers[] = {&launch.arguments};
  // A variant with kernels of SM 9.0 has the elementwise ones from the same compiler target: they
  // wait for the kernel ahead. In others they may be PTX of an older one, which does not.
  return gpu.launch(plan.kernel,
                    {.grid = {plan.grid_x, plan.grid_y, plan.grid_z},
                     .threads = gated_mlp::kPointwiseThreads,
                     .overlap = gpu.has(gated_mlp::kKernels)},
                    call.stream, pointers, error);
}

}  // namespace kiln::package
