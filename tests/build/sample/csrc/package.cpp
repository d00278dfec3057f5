// SPDX-License-Identifier: Apache-2.0
//
// The sample package's own code: small enough that a test can say what every number must be.
#include <string.h>

#include <kiln/sdk/types.hpp>

#include "package.gen.hpp"

namespace kiln::package {

size_t mix_workspace_bytes(const MixArguments& arguments) {
  return static_cast<size_t>(arguments.M * arguments.H) * sizeof(float);
}

int32_t mix(const MixArguments& arguments, kiln_error* error) {
  if (arguments.x.dtype != sdk::DType::kFloat32) {
    return sdk::fail(error, KILN_UNSUPPORTED, "mix: computes float32 only");
  }
  const auto* x = static_cast<const float*>(arguments.x.data);
  const auto* w = static_cast<const float*>(arguments.w.data);
  const auto* bias = static_cast<const float*>(arguments.bias.data);
  auto* y = static_cast<float*>(arguments.y.data);
  auto* products = static_cast<float*>(arguments.workspace);
  for (int64_t i = 0; i < arguments.M * arguments.H; ++i) {
    const int64_t m = i / arguments.H;
    const int64_t h = i % arguments.H;
    products[i] = 0;
    for (int64_t d = 0; d < arguments.D; ++d) {
      products[i] += x[m * arguments.x.stride[0] + d] * w[h * arguments.w.stride[0] + d];
    }
    const double half = arguments.mode == MixArguments::Mode::kHalfUp ? 0.5 : 0.0;
    const double added = arguments.bias.present ? static_cast<double>(bias[h]) : 0.0;
    y[i] = static_cast<float>(arguments.scale * static_cast<double>(products[i]) + added +
                              static_cast<double>(arguments.shift) + half);
  }
  return KILN_OK;
}

size_t copy_rows_workspace_bytes(const CopyRowsArguments&) {
  return 0;
}

int32_t copy_rows(const CopyRowsArguments& arguments, kiln_error* error) {
  constexpr int64_t kMaxColumns = 100;
  if (arguments.N > kMaxColumns) {
    return sdk::fail(error, KILN_UNSUPPORTED, "copy_rows: has %lld columns; at most %lld",
                     static_cast<long long>(arguments.N), static_cast<long long>(kMaxColumns));
  }
  const auto* in = static_cast<const float*>(arguments.in.data);
  auto* out = static_cast<float*>(arguments.out.data);
  for (int64_t b = 0; b < arguments.B; ++b) {
    for (int64_t m = 0; m < arguments.M; ++m) {
      for (int64_t n = 0; n < arguments.N; ++n) {
        out[b * arguments.out.stride[0] + m * arguments.out.stride[1] + n] =
            in[b * arguments.in.stride[0] + m * arguments.in.stride[1] + n];
      }
    }
  }
  return KILN_OK;
}

size_t keep_workspace_bytes(const KeepArguments&) {
  return 0;
}

int32_t keep(const KeepArguments& arguments, kiln_error*) {
  const auto* x = static_cast<const char*>(arguments.x.data);
  const auto* mask = static_cast<const bool*>(arguments.mask.data);
  auto* out = static_cast<char*>(arguments.out.data);
  auto* kept = static_cast<int64_t*>(arguments.kept.data);
  const size_t item = sdk::dtype_bytes(arguments.x.dtype);
  const int64_t count = arguments.A * arguments.x.stride[0];
  *kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i) * item;
    if (mask[i]) {
      memcpy(out + at, x + at, item);
      ++*kept;
    } else {
      memset(out + at, 0, item);
    }
  }
  return KILN_OK;
}

}  // namespace kiln::package
