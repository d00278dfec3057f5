// SPDX-License-Identifier: Apache-2.0
//
// Arguments: what the host passes to the device kernels, and what both count with. Included by both
// sides.
#pragma once

namespace rms_norm {

// A CTA has a row at a time, 16 elements to each of its threads, which stay in registers: as many
// threads as the width wants. Rows that are wider, or no whole vectors of 16 bytes, are read twice,
// by elements.
constexpr int kElements = 16;
constexpr int kThreads[] = {64, 256, 512, 1024};
constexpr int kThreadsByElements = 256;

// The gradient of weight is a sum of at most so many parts, each of neighbouring rows: as many CTAs
// as run at once on a large GPU, and as many on every other one.
constexpr long long most_parts(long long threads) {
  return 131072 / threads;
}

// A CTA of add_parts has 8 columns, and a thread every 128th part of one.
constexpr int kAddColumns = 8;
constexpr int kAddThreads = 1024;

// Strides in elements.
struct ForwardArguments {
  const void* x;
  const void* residual;  // or null
  const void* weight;
  void* y;
  void* h_out;  // or null
  long long x_stride;
  long long residual_stride;
  long long y_stride;
  long long h_out_stride;
  long long count;  // of columns
  float eps;
  float offset;
};

struct BackwardArguments {
  const void* grad_y;
  const void* h;
  const void* weight;
  void* grad_h;
  float* sums;  // [parts, count] for grad_weight, or null
  void* grad_weight;
  long long grad_y_stride;
  long long h_stride;
  long long grad_h_stride;
  long long rows;
  long long rows_of_part;
  long long parts;
  long long count;
  float eps;
  float offset;
};

}  // namespace rms_norm
