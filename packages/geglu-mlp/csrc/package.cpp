// SPDX-License-Identifier: Apache-2.0
//
// Package: the GPU ops of geglu-mlp. The glue has checked the call against the schema; this file
// turns it into plans (plan.h) and launches them. No state of its own.
#include <kiln/sdk/device.hpp>
#include <kiln/sdk/types.hpp>

#include "arguments.h"
#include "package.gen.hpp"
#include "plan.h"

namespace kiln::package {
namespace {

using geglu_mlp::Element;
using geglu_mlp::GemmArguments;
using geglu_mlp::GemmPlan;
using geglu_mlp::GemmShape;
using geglu_mlp::GpuFacts;
using geglu_mlp::kTiles;
using geglu_mlp::PointwiseArguments;
using geglu_mlp::PointwisePlan;
using geglu_mlp::PointwiseShape;

// In the order of gemm_kernel() and pointwise_kernel().
#define KILN_TILES(prefix)                                        \
  {"smxx_gemm", prefix "_128x128x3", kTiles[0].shared_bytes},     \
      {"smxx_gemm", prefix "_128x128x4", kTiles[1].shared_bytes}, \
      {"smxx_gemm", prefix "_64x64", kTiles[2].shared_bytes},     \
      {"smxx_gemm", prefix "_32x32", kTiles[3].shared_bytes}, {   \
    "smxx_gemm", prefix "_64x64_any", kTiles[4].shared_bytes      \
  }
#define KILN_WIDTHS(prefix, width)       \
  {"smxx_pointwise", prefix width, 0}, { \
    "smxx_pointwise", prefix "x1", 0     \
  }

constexpr sdk::KernelSpec kKernelTable[] = {
    KILN_TILES("gated_bf16"),
    KILN_TILES("gated_f16"),
    KILN_TILES("plain_bf16"),
    KILN_TILES("plain_f16"),
    KILN_WIDTHS("geglu_f32", "x4"),
    KILN_WIDTHS("geglu_bf16", "x8"),
    KILN_WIDTHS("geglu_f16", "x8"),
    KILN_WIDTHS("geglu_backward_f32", "x4"),
    KILN_WIDTHS("geglu_backward_bf16", "x8"),
    KILN_WIDTHS("geglu_backward_f16", "x8"),
};
static_assert(sizeof(kKernelTable) / sizeof(kKernelTable[0]) == geglu_mlp::kKernels);
#undef KILN_TILES
#undef KILN_WIDTHS

Element element_of(sdk::DType dtype) {
  switch (dtype) {
    case sdk::DType::kFloat32:
      return Element::kFloat32;
    case sdk::DType::kFloat16:
      return Element::kFloat16;
    case sdk::DType::kBFloat16:
      return Element::kBFloat16;
  }
  return Element::kFloat32;
}

int64_t bytes_of(Element element) {
  return element == Element::kFloat32 ? 4 : geglu_mlp::kHalfBytes;
}

bool is_aligned(const void* address, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

GpuFacts facts_of(const sdk::OnDevice& gpu) {
  return {gpu.facts().multiprocessors, gpu.facts().shared_bytes_per_block};
}

const void* data_or_null(const sdk::Tensor& tensor) {
  return tensor.present ? tensor.data : nullptr;
}

int32_t launch_gemm(const sdk::OnDevice& gpu, const GemmShape& shape, GemmArguments arguments,
                    void* stream, kiln_error* error) {
  const GemmPlan plan = plan_gemm(shape, facts_of(gpu));
  if (!plan.fits) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "forward: %lld x %lld outputs need more than 2^31 - 1 tiles; "
                     "split x into several calls",
                     static_cast<long long>(shape.m), static_cast<long long>(shape.n));
  }
  if (plan.ctas == 0) return KILN_OK;
  arguments.m = shape.m;
  arguments.n = shape.n;
  arguments.k = shape.k;
  arguments.tiles_m = plan.tiles_m;
  arguments.tiles_n = plan.tiles_n;
  arguments.panel = plan.panel;
  arguments.paired_stores = shape.paired ? 1 : 0;
  void* pointers[] = {&arguments};
  return gpu.launch(plan.kernel, {plan.ctas}, geglu_mlp::kThreads, stream, pointers, error);
}

struct PointwiseCall {
  PointwiseShape shape;
  PointwiseArguments arguments;
};

// Takes one tensor into account: alignment and gaps.
void add_tensor(PointwiseCall& call, const sdk::Tensor& tensor) {
  const int64_t stride_bytes = tensor.stride[0] * bytes_of(call.shape.element);
  const bool one_row = call.shape.rows <= 1;
  call.shape.aligned =
      call.shape.aligned && is_aligned(tensor.data, 16) && (one_row || stride_bytes % 16 == 0);
  call.shape.compact = call.shape.compact && (one_row || tensor.stride[0] == call.shape.columns);
}

int32_t launch_pointwise(const sdk::Placement& placement, PointwiseCall& call, kiln_error* error) {
  if (call.shape.rows == 0 || call.shape.columns == 0) return KILN_OK;
  sdk::OnDevice gpu;
  if (const int32_t status = gpu.enter(placement.device, error); status != KILN_OK) return status;
  const PointwisePlan plan = plan_pointwise(call.shape, facts_of(gpu));
  call.arguments.rows = plan.rows;
  call.arguments.columns = plan.columns;
  void* pointers[] = {&call.arguments};
  return gpu.launch(plan.kernel, {plan.grid_x, plan.grid_y}, geglu_mlp::kPointwiseThreads,
                    placement.stream, pointers, error);
}

}  // namespace

size_t forward_workspace_bytes(const ForwardArguments& call) {
  // The intermediate h. A product that does not fit is a size that no caller can bring.
  size_t bytes = 0;
  const bool overflow =
      __builtin_mul_overflow(static_cast<size_t>(call.M), static_cast<size_t>(call.H), &bytes) ||
      __builtin_mul_overflow(bytes, static_cast<size_t>(geglu_mlp::kHalfBytes), &bytes);
  return overflow ? SIZE_MAX : bytes;
}

int32_t forward(const ForwardArguments& call, kiln_error* error) {
  const Element element = element_of(call.x.dtype);
  if (element == Element::kFloat32) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "forward: x is float32; on a GPU it takes bfloat16 or float16 "
                     "(convert, or use a CPU variant)");
  }
  if (call.M == 0 || call.D == 0) return KILN_OK;
  sdk::OnDevice gpu;
  if (const int32_t status = gpu.enter(call.device, error); status != KILN_OK) return status;

  void* h = call.workspace;
  const bool x_aligned = call.D % 8 == 0 && is_aligned(call.x.data, 16) &&
                         is_aligned(call.gate.data, 16) && is_aligned(call.up.data, 16);
  GemmArguments gated = {};
  gated.a = call.x.data;
  gated.b0 = call.gate.data;
  gated.b1 = call.up.data;
  gated.bias0 = data_or_null(call.gate_bias);
  gated.bias1 = data_or_null(call.up_bias);
  gated.out = h;
  gated.exact = call.approximate == ForwardArguments::Approximate::kNone ? 1 : 0;
  const GemmShape gated_shape = {true, element, call.M, call.H, call.D, x_aligned, call.H % 2 == 0};
  if (const int32_t status = launch_gemm(gpu, gated_shape, gated, call.stream, error);
      status != KILN_OK) {
    return status;
  }

  const bool h_aligned = call.H % 8 == 0 && is_aligned(call.down.data, 16);
  GemmArguments plain = {};
  plain.a = h;
  plain.b0 = call.down.data;
  plain.bias0 = data_or_null(call.down_bias);
  plain.out = call.y.data;
  const bool paired = call.D % 2 == 0 && is_aligned(call.y.data, 4);
  const GemmShape plain_shape = {false, element, call.M, call.D, call.H, h_aligned, paired};
  return launch_gemm(gpu, plain_shape, plain, call.stream, error);
}

size_t geglu_workspace_bytes(const GegluArguments&) {
  return 0;
}

int32_t geglu(const GegluArguments& call, kiln_error* error) {
  PointwiseCall pointwise = {};
  pointwise.shape = {false, element_of(call.gate.dtype), call.M, call.H, true, true};
  const sdk::Tensor* const tensors[] = {&call.gate, &call.up, &call.out};
  for (const sdk::Tensor* tensor : tensors) add_tensor(pointwise, *tensor);
  PointwiseArguments& arguments = pointwise.arguments;
  arguments.gate = call.gate.data;
  arguments.up = call.up.data;
  arguments.out0 = call.out.data;
  arguments.gate_stride = call.gate.stride[0];
  arguments.up_stride = call.up.stride[0];
  arguments.out0_stride = call.out.stride[0];
  arguments.exact = call.approximate == GegluArguments::Approximate::kNone ? 1 : 0;
  return launch_pointwise(call, pointwise, error);
}

size_t geglu_backward_workspace_bytes(const GegluBackwardArguments&) {
  return 0;
}

int32_t geglu_backward(const GegluBackwardArguments& call, kiln_error* error) {
  PointwiseCall pointwise = {};
  pointwise.shape = {true, element_of(call.gate.dtype), call.M, call.H, true, true};
  const sdk::Tensor* const tensors[] = {&call.grad_out, &call.gate, &call.up, &call.grad_gate,
                                        &call.grad_up};
  for (const sdk::Tensor* tensor : tensors) add_tensor(pointwise, *tensor);
  PointwiseArguments& arguments = pointwise.arguments;
  arguments.grad_out = call.grad_out.data;
  arguments.gate = call.gate.data;
  arguments.up = call.up.data;
  arguments.out0 = call.grad_gate.data;
  arguments.out1 = call.grad_up.data;
  arguments.grad_out_stride = call.grad_out.stride[0];
  arguments.gate_stride = call.gate.stride[0];
  arguments.up_stride = call.up.stride[0];
  arguments.out0_stride = call.grad_gate.stride[0];
  arguments.out1_stride = call.grad_up.stride[0];
  arguments.exact = call.approximate == GegluBackwardArguments::Approximate::kNone ? 1 : 0;
  return launch_pointwise(call, pointwise, error);
}

}  // namespace kiln::package

namespace kiln::sdk {

KernelList kernel_list() {
  return {package::kKernelTable, geglu_mlp::kKernels};
}

}  // namespace kiln::sdk
