// SPDX-License-Identifier: Apache-2.0
//
// The CPU variants: one thread, a row at a time. Sums are double, so that the order of summation
// does not show in fp32.
#include <math.h>
#include <string.h>

#include "in_place.hpp"
#include "package.gen.hpp"

namespace kiln::package {
namespace {

struct Bfloat16 {
  uint16_t bits;
};

float load(float value) {
  return value;
}
float load(_Float16 value) {
  return static_cast<float>(value);
}
float load(Bfloat16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float result;
  memcpy(&result, &bits, sizeof(result));
  return result;
}

void store(float* address, float value) {
  *address = value;
}
void store(_Float16* address, float value) {
  *address = static_cast<_Float16>(value);
}
// To nearest even; a NaN stays one.
void store(Bfloat16* address, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  address->bits = value != value ? static_cast<uint16_t>(bits >> 16 | 0x40)
                                 : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class T>
T* row(const sdk::Tensor& tensor, int64_t m) {
  return tensor.present ? static_cast<T*>(tensor.data) + m * tensor.stride[0] : nullptr;
}

double scale_of(double squares, int64_t count, double eps) {
  return 1 / sqrt(squares / static_cast<double>(count) + eps);
}

template <class T>
void forward_row(const ForwardArguments& call, int64_t m) {
  const T* x = row<const T>(call.x, m);
  const T* residual = row<const T>(call.residual, m);
  const auto* weight = static_cast<const T*>(call.weight.data);
  T* y = row<T>(call.y, m);
  T* h_out = row<T>(call.h_out, m);
  const auto h = [&](int64_t d) {
    if (residual == nullptr) return load(x[d]);
    T rounded;
    store(&rounded, load(x[d]) + load(residual[d]));
    return load(rounded);
  };
  double squares = 0;
  for (int64_t d = 0; d < call.D; ++d) squares += double{h(d)} * double{h(d)};
  const auto scale = static_cast<float>(scale_of(squares, call.D, call.eps));
  const auto offset = static_cast<float>(call.offset);
  for (int64_t d = 0; d < call.D; ++d) {
    const float value = h(d);  // before y is written, which may be x or residual
    if (h_out != nullptr) store(&h_out[d], value);
    store(&y[d], value * scale * (offset + load(weight[d])));
  }
}

template <class T>
void backward_row(const BackwardArguments& call, int64_t m, double* weight_sums) {
  const T* grad_y = row<const T>(call.grad_y, m);
  const T* h = row<const T>(call.h, m);
  const auto* weight = static_cast<const T*>(call.weight.data);
  T* grad_h = row<T>(call.grad_h, m);
  const auto offset = static_cast<float>(call.offset);
  double squares = 0;
  double products = 0;
  for (int64_t d = 0; d < call.D; ++d) {
    const double value = load(h[d]);
    squares += value * value;
    products += value * double{load(grad_y[d])} * double{offset + load(weight[d])};
  }
  const double scale = scale_of(squares, call.D, call.eps);
  const double pull = products * scale * scale / static_cast<double>(call.D);
  for (int64_t d = 0; d < call.D; ++d) {
    const double value = load(h[d]);
    const double grad = load(grad_y[d]);
    if (weight_sums != nullptr) weight_sums[d] += grad * value * scale;
    store(&grad_h[d],
          static_cast<float>(scale * (grad * double{offset + load(weight[d])} - value * pull)));
  }
}

template <class T>
void backward_rows(const BackwardArguments& call) {
  auto* sums = call.grad_weight.present ? static_cast<double*>(call.workspace) : nullptr;
  for (int64_t d = 0; sums != nullptr && d < call.D; ++d) sums[d] = 0;
  for (int64_t m = 0; m < call.M; ++m) backward_row<T>(call, m, sums);
  auto* grad_weight = static_cast<T*>(call.grad_weight.data);
  for (int64_t d = 0; sums != nullptr && d < call.D; ++d) {
    store(&grad_weight[d], static_cast<float>(sums[d]));
  }
}

// Calls `function` with a null pointer of the element type; the schema allows these three.
template <class Function>
void with_element(sdk::DType dtype, const Function& function) {
  switch (dtype) {
    case sdk::DType::kFloat16:
      return function(static_cast<_Float16*>(nullptr));
    case sdk::DType::kBFloat16:
      return function(static_cast<Bfloat16*>(nullptr));
    default:
      return function(static_cast<float*>(nullptr));
  }
}

}  // namespace

size_t forward_workspace_bytes(const ForwardArguments&) {
  return 0;
}

int32_t forward(const ForwardArguments& call, kiln_error*) {
  with_element(call.x.dtype, [&]<class T>(T*) {
    for (int64_t m = 0; m < call.M; ++m) forward_row<T>(call, m);
  });
  return KILN_OK;
}

size_t backward_workspace_bytes(const BackwardArguments& call) {
  return call.grad_weight.present ? static_cast<size_t>(call.D) * sizeof(double) : 0;
}

int32_t backward(const BackwardArguments& call, kiln_error* error) {
  if (const int32_t status = check_in_place(call, error)) return status;
  with_element(call.h.dtype, [&]<class T>(T*) { backward_rows<T>(call); });
  return KILN_OK;
}

}  // namespace kiln::package
