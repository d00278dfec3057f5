// SPDX-License-Identifier: Apache-2.0
//
// The host side of the GPU variants: what is launched, and how.
#include <kiln/sdk/device.hpp>

#include "in_place.hpp"
#include "package.gen.hpp"

namespace kiln::sdk {

KernelList kernel_list() {
  static const KernelSpec kernels[] = {{"smxx_rms_norm", "rms_norm_forward_f32", 0},
                                       {"smxx_rms_norm", "rms_norm_forward_f16", 0},
                                       {"smxx_rms_norm", "rms_norm_forward_bf16", 0},
                                       {"smxx_rms_norm", "rms_norm_backward_f32", 0},
                                       {"smxx_rms_norm", "rms_norm_backward_f16", 0},
                                       {"smxx_rms_norm", "rms_norm_backward_bf16", 0},
                                       {"smxx_rms_norm", "rms_norm_weight_gradient_f32", 0},
                                       {"smxx_rms_norm", "rms_norm_weight_gradient_f16", 0},
                                       {"smxx_rms_norm", "rms_norm_weight_gradient_bf16", 0}};
  return {kernels, 9};
}

}  // namespace kiln::sdk

namespace kiln::package {
namespace {

constexpr int64_t kThreads = 256;
constexpr int64_t kMaxBlocks = 2147483647;  // of a grid's x

// The first kernel of each kind in kernel_list(); the kinds' others follow in the order of dtypes.
enum Kind : int { kForward = 0, kBackward = 3, kWeightGradient = 6 };

int kernel(Kind kind, sdk::DType dtype) {
  return kind + (dtype == sdk::DType::kFloat32 ? 0 : dtype == sdk::DType::kFloat16 ? 1 : 2);
}

int32_t check_rows(const char* op, int64_t rows, kiln_error* error) {
  if (rows <= kMaxBlocks) return KILN_OK;
  return sdk::fail(error, KILN_UNSUPPORTED, "%s: M is %lld; at most %lld rows are computed", op,
                   static_cast<long long>(rows), static_cast<long long>(kMaxBlocks));
}

}  // namespace

size_t forward_workspace_bytes(const ForwardArguments&) {
  return 0;
}

int32_t forward(const ForwardArguments& call, kiln_error* error) {
  if (const int32_t status = check_rows("forward", call.M, error)) return status;
  sdk::OnDevice device;
  if (const int32_t status = device.enter(call.device, error)) return status;
  if (call.M == 0 || call.D == 0) return KILN_OK;
  const void* x = call.x.data;
  const void* weight = call.weight.data;
  const void* residual = call.residual.data;
  void* y = call.y.data;
  void* h_out = call.h_out.data;
  long long x_stride = call.x.stride[0];
  long long residual_stride = call.residual.stride[0];
  long long y_stride = call.y.stride[0];
  long long h_stride = call.h_out.stride[0];
  long long count = call.D;
  auto eps = static_cast<float>(call.eps);
  auto offset = static_cast<float>(call.offset);
  void* arguments[] = {&x,     &x_stride, &weight, &residual, &residual_stride, &y, &y_stride,
                       &h_out, &h_stride, &count,  &eps,      &offset};
  return device.launch(kernel(kForward, call.x.dtype), {static_cast<uint32_t>(call.M), 1, 1},
                       kThreads, call.stream, arguments, error);
}

size_t backward_workspace_bytes(const BackwardArguments& call) {
  return call.grad_weight.present ? static_cast<size_t>(call.M) * sizeof(float) : 0;
}

int32_t backward(const BackwardArguments& call, kiln_error* error) {
  if (const int32_t status = check_rows("backward", call.M, error)) return status;
  if (const int32_t status = check_in_place(call, error)) return status;
  sdk::OnDevice device;
  if (const int32_t status = device.enter(call.device, error)) return status;
  if (call.D == 0) return KILN_OK;
  const void* grad_y = call.grad_y.data;
  const void* h = call.h.data;
  const void* weight = call.weight.data;
  void* grad_h = call.grad_h.data;
  void* grad_weight = call.grad_weight.data;
  void* scales = call.grad_weight.present ? call.workspace : nullptr;
  long long grad_y_stride = call.grad_y.stride[0];
  long long h_stride = call.h.stride[0];
  long long grad_h_stride = call.grad_h.stride[0];
  long long rows = call.M;
  long long count = call.D;
  auto eps = static_cast<float>(call.eps);
  auto offset = static_cast<float>(call.offset);
  if (call.M > 0) {
    void* arguments[] = {&grad_y,        &grad_y_stride, &h,     &h_stride, &weight, &grad_h,
                         &grad_h_stride, &scales,        &count, &eps,      &offset};
    const int32_t status =
        device.launch(kernel(kBackward, call.h.dtype), {static_cast<uint32_t>(call.M), 1, 1},
                      kThreads, call.stream, arguments, error);
    if (status != KILN_OK) return status;
  }
  if (!call.grad_weight.present) return KILN_OK;
  void* arguments[] = {&grad_y, &grad_y_stride, &h,    &h_stride,
                       &scales, &grad_weight,   &rows, &count};
  const auto blocks = static_cast<uint32_t>((call.D + kThreads - 1) / kThreads);
  return device.launch(kernel(kWeightGradient, call.h.dtype), {blocks, 1, 1}, kThreads, call.stream,
                       arguments, error);
}

}  // namespace kiln::package
