// SPDX-License-Identifier: Apache-2.0
//
// The CPU variants: a thread a row.
#include <math.h>

#include "../../rows/element.hpp"
#include "../../rows/parallel.hpp"
#include "package.gen.hpp"

namespace kiln::package {
namespace {

using rows::load;
using rows::row;
using rows::store;

int64_t position_of(const RotateArguments& call, int64_t n) {
  return call.positions.dtype == sdk::DType::kInt64
             ? static_cast<const int64_t*>(call.positions.data)[n]
             : static_cast<const int32_t*>(call.positions.data)[n];
}

// One head; cos and sin are of its row's position, null of one that is not in the tables. out may
// be x.
template <class T>
void rotate_head(const RotateArguments& call, const T* x, const float* cos, const float* sin,
                 T* out) {
  const bool interleaved = call.interleaved == RotateArguments::Interleaved::kYes;
  const float sign = call.inverse == RotateArguments::Inverse::kYes ? -1.0F : 1.0F;
  for (int64_t f = 0; f < call.F; ++f) {
    const int64_t first = interleaved ? 2 * f : f;
    const int64_t second = interleaved ? 2 * f + 1 : f + call.F;
    const float a = load(x[first]);
    const float b = load(x[second]);
    const float c = cos == nullptr ? NAN : cos[f];
    const float s = sin == nullptr ? NAN : sign * sin[f];
    store(&out[first], a * c - b * s);
    store(&out[second], b * c + a * s);
  }
  for (int64_t d = 2 * call.F; d < call.head_dim; ++d) out[d] = x[d];
}

template <class T>
void rotate_row(const RotateArguments& call, int64_t n) {
  const int64_t position = position_of(call, n);
  const bool known = position >= 0 && position < call.P;
  const auto* cos = static_cast<const float*>(call.cos.data);
  const auto* sin = static_cast<const float*>(call.sin.data);
  for (int64_t begin = 0; begin < call.W; begin += call.head_dim) {
    rotate_head(call, row<const T>(call.x, n) + begin, known ? cos + position * call.F : nullptr,
                known ? sin + position * call.F : nullptr, row<T>(call.out, n) + begin);
  }
}

int32_t check(const RotateArguments& call, kiln_error* error) {
  if (call.head_dim < 1 || call.W % call.head_dim != 0) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "rotate: W is %lld; expected a multiple of head_dim, which is %lld",
                     static_cast<long long>(call.W), static_cast<long long>(call.head_dim));
  }
  if (2 * call.F > call.head_dim) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "rotate: cos has F = %lld columns; expected at most half of head_dim, %lld",
                     static_cast<long long>(call.F), static_cast<long long>(call.head_dim));
  }
  return KILN_OK;
}

}  // namespace

size_t rotate_workspace_bytes(const RotateArguments&) {
  return 0;
}

int32_t rotate(const RotateArguments& call, kiln_error* error) {
  if (const int32_t status = check(call, error)) return status;
  rows::with_element(call.x.dtype, [&]<class T>(T*) {
    rows::for_each(call.N, call.N * call.W, call.threads,
                   [&](int64_t n) { rotate_row<T>(call, n); });
  });
  return KILN_OK;
}

size_t tables_workspace_bytes(const TablesArguments&) {
  return 0;
}

int32_t tables(const TablesArguments& call, kiln_error*) {
  const auto* frequencies = static_cast<const double*>(call.frequencies.data);
  rows::for_each(call.P, 16 * call.P * call.F, call.threads, [&](int64_t p) {
    for (int64_t f = 0; f < call.F; ++f) {
      const double angle = static_cast<double>(p) * frequencies[f];
      row<float>(call.cos, p)[f] = static_cast<float>(cos(angle) * call.scale);
      row<float>(call.sin, p)[f] = static_cast<float>(sin(angle) * call.scale);
    }
  });
  return KILN_OK;
}

}  // namespace kiln::package
