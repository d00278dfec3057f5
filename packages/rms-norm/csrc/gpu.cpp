// SPDX-License-Identifier: Apache-2.0
//
// The host side of the GPU variants: what is launched, and how.
#include <kiln/sdk/device.hpp>

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "arguments.h"
#include "in_place.hpp"
#include "package.gen.hpp"

namespace kiln::sdk {

#define RMS_NORM_ROWS(NAME)                \
  {"smxx_rms_norm", "forward_" NAME, 0}, { \
    "smxx_rms_norm", "backward_" NAME, 0   \
  }
#define RMS_NORM_KERNELS(NAME)                                                       \
  RMS_NORM_ROWS(NAME "_64"), RMS_NORM_ROWS(NAME "_256"), RMS_NORM_ROWS(NAME "_512"), \
      RMS_NORM_ROWS(NAME "_1024"), RMS_NORM_ROWS(NAME "_elements"), {                \
    "smxx_rms_norm", "add_parts_" NAME, 0                                            \
  }

KernelList kernel_list() {
  static const KernelSpec kernels[] = {RMS_NORM_KERNELS("f32"), RMS_NORM_KERNELS("f16"),
                                       RMS_NORM_KERNELS("bf16")};
  return {kernels, static_cast<int>(std::size(kernels))};
}

}  // namespace kiln::sdk

namespace kiln::package {
namespace {

using rms_norm::kThreads;

constexpr int kWidths = static_cast<int>(std::size(kThreads));
constexpr int kAddParts = 2 * (kWidths + 1);  // among the kernels of a dtype
constexpr int64_t kMaxBlocks = 2147483647;    // of a grid's x

int64_t parts_of(int64_t extent, int64_t unit) {
  return (extent + unit - 1) / unit;
}

// The number of a kernel among those of all dtypes.
int kernel(int of_dtype, sdk::DType dtype) {
  const int number = dtype == sdk::DType::kFloat32 ? 0 : dtype == sdk::DType::kFloat16 ? 1 : 2;
  return number * (kAddParts + 1) + of_dtype;
}

// Whether the rows of a matrix, or a vector, are whole vectors of 16 bytes.
bool is_aligned(const sdk::Tensor& tensor, bool is_matrix) {
  const int64_t elements = tensor.dtype == sdk::DType::kFloat32 ? 4 : 8;
  const int64_t columns = tensor.shape[is_matrix ? 1 : 0];
  return !tensor.present ||
         (reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0 && columns % elements == 0 &&
          (!is_matrix || tensor.stride[0] % elements == 0));
}

// The first width that has so many columns, or kWidths.
int width_of(int64_t count) {
  int width = 0;
  while (width < kWidths && count > int64_t{kThreads[width]} * rms_norm::kElements) ++width;
  return width;
}

// The kernels of a dtype that compute a call: forward, and after it backward.
struct Rows {
  int kernel;
  uint32_t threads;
};
Rows rows_of(const sdk::Tensor& weight, std::initializer_list<const sdk::Tensor*> matrices) {
  const bool aligned =
      is_aligned(weight, false) && std::ranges::all_of(matrices, [](const sdk::Tensor* each) {
        return is_aligned(*each, true);
      });
  const int width = aligned ? width_of(weight.shape[0]) : kWidths;
  return {2 * width,
          static_cast<uint32_t>(width < kWidths ? kThreads[width] : rms_norm::kThreadsByElements)};
}

// Rows that a CTA of backward has, one after another: by the extents alone, as the workspace is.
int64_t rows_of_part(const BackwardArguments& call) {
  const int64_t parts = rms_norm::most_parts(kThreads[std::min(width_of(call.D), kWidths - 1)]);
  return call.grad_weight.present && call.M > parts ? parts_of(call.M, parts) : 1;
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
  const Rows rows = rows_of(call.weight, {&call.x, &call.residual, &call.y, &call.h_out});
  rms_norm::ForwardArguments arguments{.x = call.x.data,
                                       .residual = call.residual.data,
                                       .weight = call.weight.data,
                                       .y = call.y.data,
                                       .h_out = call.h_out.data,
                                       .x_stride = call.x.stride[0],
                                       .residual_stride = call.residual.stride[0],
                                       .y_stride = call.y.stride[0],
                                       .h_out_stride = call.h_out.stride[0],
                                       .count = call.D,
                                       .eps = static_cast<float>(call.eps),
                                       .offset = static_cast<float>(call.offset)};
  void* pointers[] = {&arguments};
  return device.launch(kernel(rows.kernel, call.x.dtype), {static_cast<uint32_t>(call.M)},
                       rows.threads, call.stream, pointers, error);
}

size_t backward_workspace_bytes(const BackwardArguments& call) {
  if (!call.grad_weight.present) return 0;
  return static_cast<size_t>(parts_of(call.M, rows_of_part(call)) * call.D) * sizeof(float);
}

int32_t backward(const BackwardArguments& call, kiln_error* error) {
  if (const int32_t status = check_rows("backward", call.M, error)) return status;
  if (const int32_t status = check_in_place(call, error)) return status;
  sdk::OnDevice device;
  if (const int32_t status = device.enter(call.device, error)) return status;
  if (call.D == 0) return KILN_OK;
  const bool sums = call.grad_weight.present;
  rms_norm::BackwardArguments arguments{
      .grad_y = call.grad_y.data,
      .h = call.h.data,
      .weight = call.weight.data,
      .grad_h = call.grad_h.data,
      .sums = sums ? static_cast<float*>(call.workspace) : nullptr,
      .grad_weight = call.grad_weight.data,
      .grad_y_stride = call.grad_y.stride[0],
      .h_stride = call.h.stride[0],
      .grad_h_stride = call.grad_h.stride[0],
      .rows = call.M,
      .rows_of_part = rows_of_part(call),
      .parts = parts_of(call.M, rows_of_part(call)),
      .count = call.D,
      .eps = static_cast<float>(call.eps),
      .offset = static_cast<float>(call.offset)};
  void* pointers[] = {&arguments};
  if (call.M > 0) {
    const Rows rows = rows_of(call.weight, {&call.grad_y, &call.h, &call.grad_h});
    const int32_t status = device.launch(kernel(rows.kernel + 1, call.h.dtype),
                                         {static_cast<uint32_t>(arguments.parts)}, rows.threads,
                                         call.stream, pointers, error);
    if (status != KILN_OK) return status;
  }
  if (!sums) return KILN_OK;
  return device.launch(kernel(kAddParts, call.h.dtype),
                       {static_cast<uint32_t>(parts_of(call.D, rms_norm::kAddColumns))},
                       rms_norm::kAddThreads, call.stream, pointers, error);
}

}  // namespace kiln::package
