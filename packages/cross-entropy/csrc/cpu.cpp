// SPDX-License-Identifier: Apache-2.0
//
// The CPU variants: a thread a row. Sums are double.
#include <float.h>
#include <math.h>

#include "../../rows/element.hpp"
#include "../../rows/parallel.hpp"
#include "package.gen.hpp"

namespace kiln::package {
namespace {

using rows::load;
using rows::row;
using rows::store;

// The target of row m: -1 where the row is ignored, V where there is no such logit.
template <class Call>
int64_t target_of(const Call& call, int64_t m) {
  const int64_t target = call.targets.dtype == sdk::DType::kInt64
                             ? static_cast<const int64_t*>(call.targets.data)[m]
                             : static_cast<const int32_t*>(call.targets.data)[m];
  if (target == call.ignore_index) return -1;
  return target >= 0 && target < call.V ? target : call.V;
}

float* values(const sdk::Tensor& tensor) {
  return static_cast<float*>(tensor.data);
}

// log(sum(exp(z))), in two parts, so that differences of large logits are exact: -inf of a row that
// is -inf, NaN of one that has +inf or NaN.
struct Lse {
  double greatest;
  double rest;
  double value() const { return greatest + rest; }
  double less(double logit) const { return greatest - logit + rest; }
};

template <class T>
Lse lse_of(const T* z, int64_t count) {
  float greatest = -FLT_MAX;  // finite, so that a logit of -inf is 0 in units of it
  for (int64_t v = 0; v < count; ++v) greatest = load(z[v]) > greatest ? load(z[v]) : greatest;
  double sum = 0;
  for (int64_t v = 0; v < count; ++v) sum += double{expf(load(z[v]) - greatest)};
  return {double{greatest}, log(sum)};
}

template <class T, class Call>
double loss_of(const Call& call, const T* z, int64_t target, const Lse& lse) {
  if (target < 0) return 0;
  if (target == call.V) return NAN;
  double loss = lse.less(double{load(z[target])});
  if (call.label_smoothing > 0) {
    double total = 0;
    for (int64_t v = 0; v < call.V; ++v) total += lse.less(double{load(z[v])});
    loss = (1 - call.label_smoothing) * loss +
           call.label_smoothing * total / static_cast<double>(call.V);
  }
  return loss + call.z_loss * lse.value() * lse.value();
}

// grad may be z.
template <class T, class Call>
void write_gradient(const Call& call, const T* z, int64_t target, const Lse& lse, double weight,
                    T* grad) {
  const double factor = 1 + 2 * call.z_loss * lse.value();
  const double rest = call.label_smoothing / static_cast<double>(call.V);
  for (int64_t v = 0; v < call.V; ++v) {
    const double share = double{expf(static_cast<float>(-lse.less(double{load(z[v])})))};
    const double hit = v == target ? 1 - call.label_smoothing : 0;
    const double value = weight * (share * factor - rest - hit);
    store(&grad[v], target < 0 ? 0 : target == call.V ? NAN : static_cast<float>(value));
  }
}

template <class T>
void compute_row(const ForwardArguments& call, int64_t m) {
  const T* z = row<const T>(call.logits, m);
  const Lse lse = lse_of(z, call.V);
  values(call.lse)[m] = static_cast<float>(lse.value());
  values(call.loss)[m] = static_cast<float>(loss_of(call, z, target_of(call, m), lse));
}

template <class T>
void compute_row(const BackwardArguments& call, int64_t m) {
  write_gradient(call, row<const T>(call.logits, m), target_of(call, m),
                 {double{values(call.lse)[m]}, 0}, double{values(call.grad_loss)[m]},
                 row<T>(call.grad_logits, m));
}

template <class T>
void compute_row(const ForwardBackwardArguments& call, int64_t m) {
  const T* z = row<const T>(call.logits, m);
  const int64_t target = target_of(call, m);
  const Lse lse = lse_of(z, call.V);
  values(call.loss)[m] = static_cast<float>(loss_of(call, z, target, lse));
  write_gradient(call, z, target, lse, double{values(call.grad_loss)[m]},
                 row<T>(call.grad_logits, m));
}

template <class Call>
int32_t compute(const Call& call) {
  rows::with_element(call.logits.dtype, [&]<class T>(T*) {
    rows::for_each(call.M, call.M * call.V, call.threads,
                   [&](int64_t m) { compute_row<T>(call, m); });
  });
  return KILN_OK;
}

}  // namespace

size_t forward_workspace_bytes(const ForwardArguments&) {
  return 0;
}
int32_t forward(const ForwardArguments& call, kiln_error*) {
  return compute(call);
}

size_t backward_workspace_bytes(const BackwardArguments&) {
  return 0;
}
int32_t backward(const BackwardArguments& call, kiln_error*) {
  return compute(call);
}

size_t forward_backward_workspace_bytes(const ForwardBackwardArguments&) {
  return 0;
}
int32_t forward_backward(const ForwardBackwardArguments& call, kiln_error*) {
  return compute(call);
}

}  // namespace kiln::package
