// SPDX-License-Identifier: Apache-2.0
//
// The CPU variants: a thread a row, or a part of the rows where sums over all of them are asked
// for. A row's sums are double; its variance is that of the differences from its mean.
#include <math.h>

#include "../../rows/element.hpp"
#include "../../rows/parallel.hpp"
#include "package.gen.hpp"
#include "parts.hpp"

namespace kiln::package {
namespace {

using rows::load;
using rows::row;
using rows::store;

struct Moments {
  double mean;
  double scale;  // 1 / sqrt(variance + eps)
};

// Of h(0), …, h(count - 1).
template <class Value>
Moments moments_of(int64_t count, double eps, const Value& h) {
  double sum = 0;
  for (int64_t d = 0; d < count; ++d) sum += double{h(d)};
  const double mean = sum / static_cast<double>(count);
  double squares = 0;
  for (int64_t d = 0; d < count; ++d) {
    const double apart = double{h(d)} - mean;
    squares += apart * apart;
  }
  return {mean, 1 / sqrt(squares / static_cast<double>(count) + eps)};
}

// h(d) of row m, which is kept in h_out unless that is null; y may be what h reads.
template <class T, class Call, class Value>
void normalise(const Call& call, int64_t m, const Value& h, T* h_out) {
  const auto* weight = static_cast<const T*>(call.weight.data);
  const auto* bias = static_cast<const T*>(call.bias.data);
  T* y = row<T>(call.y, m);
  const Moments moments = moments_of(call.D, call.eps, h);
  for (int64_t d = 0; d < call.D; ++d) {
    const float value = h(d);
    if (h_out != nullptr) store(&h_out[d], value);
    const double shift = bias == nullptr ? 0 : double{load(bias[d])};
    const double normal = (double{value} - moments.mean) * moments.scale;
    store(&y[d], static_cast<float>(normal * double{load(weight[d])} + shift));
  }
}

template <class T>
void forward_row(const ForwardArguments& call, int64_t m) {
  const T* x = row<const T>(call.x, m);
  normalise<T>(
      call, m, [&](int64_t d) { return load(x[d]); }, nullptr);
}

template <class T>
void forward_row(const ForwardResidualArguments& call, int64_t m) {
  const T* x = row<const T>(call.x, m);
  const T* residual = row<const T>(call.residual, m);
  const auto rounded_sum = [&](int64_t d) {
    T rounded;
    store(&rounded, load(x[d]) + load(residual[d]));
    return load(rounded);
  };
  normalise<T>(call, m, rounded_sum, row<T>(call.h, m));
}

template <class Call>
int32_t forward_rows(const Call& call) {
  rows::with_element(call.x.dtype, [&]<class T>(T*) {
    rows::for_each(call.M, call.M * call.D, call.threads,
                   [&](int64_t m) { forward_row<T>(call, m); });
  });
  return KILN_OK;
}

// The sums over rows are null where they are not asked for.
template <class T>
void backward_row(const BackwardArguments& call, int64_t m, float* weight_sums, float* bias_sums) {
  const T* grad_y = row<const T>(call.grad_y, m);
  const T* h = row<const T>(call.h, m);
  const T* grad_h_more = row<const T>(call.grad_h_more, m);
  const auto* weight = static_cast<const T*>(call.weight.data);
  T* grad_h = row<T>(call.grad_h, m);
  const Moments moments = moments_of(call.D, call.eps, [&](int64_t d) { return load(h[d]); });
  const auto normal = [&](int64_t d) {
    return (double{load(h[d])} - moments.mean) * moments.scale;
  };
  const auto grad = [&](int64_t d) { return double{load(grad_y[d])} * double{load(weight[d])}; };
  double sum = 0;
  double product = 0;
  for (int64_t d = 0; d < call.D; ++d) {
    sum += grad(d);
    product += grad(d) * normal(d);
  }
  const auto count = static_cast<double>(call.D);
  for (int64_t d = 0; d < call.D; ++d) {
    if (weight_sums != nullptr) {
      weight_sums[d] += static_cast<float>(double{load(grad_y[d])} * normal(d));
    }
    if (bias_sums != nullptr) bias_sums[d] += load(grad_y[d]);
    const double added = grad_h_more == nullptr ? 0 : double{load(grad_h_more[d])};
    const double pulled = grad(d) - sum / count - normal(d) * product / count;
    store(&grad_h[d], static_cast<float>(moments.scale * pulled + added));
  }
}

template <class T>
void backward_part(const BackwardArguments& call, int64_t part, float* weight_sums,
                   float* bias_sums) {
  float* const both[] = {weight_sums, bias_sums};
  for (float* sums : both) {
    for (int64_t d = 0; sums != nullptr && d < call.D; ++d) sums[d] = 0;
  }
  const int64_t rows = rows_of_a_part(call.M);
  const int64_t end = (part + 1) * rows < call.M ? (part + 1) * rows : call.M;
  for (int64_t m = part * rows; m < end; ++m) backward_row<T>(call, m, weight_sums, bias_sums);
}

// sums: [parts, D].
template <class T>
void add_parts(const sdk::Tensor& gradient, const float* sums, int64_t parts) {
  if (!gradient.present) return;
  const int64_t columns = gradient.shape[0];
  for (int64_t d = 0; d < columns; ++d) {
    double total = 0;
    for (int64_t part = 0; part < parts; ++part) total += double{sums[part * columns + d]};
    store(&static_cast<T*>(gradient.data)[d], static_cast<float>(total));
  }
}

template <class T>
void backward_all(const BackwardArguments& call) {
  const int64_t parts = parts_of(call.M);
  auto* weight_sums = static_cast<float*>(call.workspace);
  float* bias_sums = weight_sums + parts * call.D;
  rows::for_each(parts, call.M * call.D, call.threads, [&](int64_t part) {
    backward_part<T>(call, part, call.grad_weight.present ? weight_sums + part * call.D : nullptr,
                     call.grad_bias.present ? bias_sums + part * call.D : nullptr);
  });
  add_parts<T>(call.grad_weight, weight_sums, parts);
  add_parts<T>(call.grad_bias, bias_sums, parts);
}

}  // namespace

size_t forward_workspace_bytes(const ForwardArguments&) {
  return 0;
}

int32_t forward(const ForwardArguments& call, kiln_error*) {
  return forward_rows(call);
}

size_t forward_residual_workspace_bytes(const ForwardResidualArguments&) {
  return 0;
}

int32_t forward_residual(const ForwardResidualArguments& call, kiln_error*) {
  return forward_rows(call);
}

size_t backward_workspace_bytes(const BackwardArguments& call) {
  return scratch_bytes(call);
}

int32_t backward(const BackwardArguments& call, kiln_error*) {
  rows::with_element(call.h.dtype, [&]<class T>(T*) { backward_all<T>(call); });
  return KILN_OK;
}

}  // namespace kiln::package
