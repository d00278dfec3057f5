// SPDX-License-Identifier: Apache-2.0
//
// Arguments: what the host passes to the device kernels. Included by both sides; NVRTC has no
// <stdint.h>, hence the plain types.
#pragma once

#include "gate.h"

namespace gated_mlp {

// out[m, n] = epilogue(a[m, k] b^T). Gated: b0 is the gate weight, b1 the up weight and
// out = gated(a b0^T + bias0, a b1^T + bias1) (gate.h). Plain: b0 and bias0 only.
// All row-major and compact; a missing bias is null. A plain one may have a residual [m, n], which
// is added like a bias, or null. One that `adds` has neither: it adds a b0^T to an out of float32.
struct GemmArguments {
  const void* a;
  const void* b0;
  const void* b1;
  const void* bias0;
  const void* bias1;
  const void* residual;
  void* out;
  void* gate_out;  // gated: the two sums too, rounded; or null, as up_out
  void* up_out;
  long long m;
  long long n;
  long long k;
  unsigned tiles_m;
  unsigned tiles_n;
  unsigned panel;  // tiles in a column panel: CTAs that run together share weights and rows in L2
  Gating gating;
  int adds;  // plain, not of decode
};

constexpr unsigned kPointwiseThreads = 256;

// Row r of a tensor starts at data + r * stride; strides in elements.
struct PointwiseArguments {
  const void* grad_out;  // backward only
  const void* gate;
  const void* up;
  void* out0;  // out, or grad_gate
  void* out1;  // grad_up, backward only
  long long grad_out_stride;
  long long gate_stride;
  long long up_stride;
  long long out0_stride;
  long long out1_stride;
  long long rows;
  long long columns;
  Gating gating;
  int passing;  // stores of 16 bytes: the L2 cache gives up first what they write
};

// The elementwise kernels in the order of pointwise_kernel(): X(kind, backward, type, Element,
// width). Kernel pointwise_<kind>_<type>x<width> takes `width` elements a thread.
#define KILN_WIDE(X)                   \
  X(forward, false, f32, Float32, 4)   \
  X(forward, false, bf16, Bfloat16, 8) \
  X(forward, false, f16, Float16, 8)
#define KILN_NARROW(X, kind, backward) \
  X(kind, backward, f32, Float32, 2)   \
  X(kind, backward, f32, Float32, 1)   \
  X(kind, backward, bf16, Bfloat16, 4) \
  X(kind, backward, bf16, Bfloat16, 1) \
  X(kind, backward, f16, Float16, 4)   \
  X(kind, backward, f16, Float16, 1)
#define KILN_POINTWISES(X) \
  KILN_WIDE(X) KILN_NARROW(X, forward, false) KILN_NARROW(X, backward, true)

// The kernels of backward beside its products. Their grids are flat, in tiles of kTransposeTile
// squared elements, the tiles of a row side by side.
constexpr unsigned kBackwardThreads = 256;
constexpr int kTransposeTile = 64;

// transposed[column * transposed_stride + row] = source[row, column]; rows from `rows` to
// `padded_rows` are zero. The source is compact. `copy` gets it unchanged. Either may be null.
struct TransposeArguments {
  const void* source;
  void* transposed;
  void* copy;
  long long rows;
  long long columns;
  long long padded_rows;
  long long transposed_stride;
  unsigned tiles_across;
  int paired_loads;   // columns is even; source and copy are 4-byte aligned
  int paired_stores;  // transposed_stride is even and transposed is 4-byte aligned
};

// The gradients of gate_out and up_out [rows, columns], side by side in a compact matrix, which may
// hold gate_out and up_out themselves. The two transposed ones have padded_rows elements a row,
// zero from `rows` on: gradients [2 columns] or null, h [columns] or null.
struct GatedBackwardArguments {
  const void* gate_out;
  const void* up_out;
  long long out_stride;     // of both
  const void* grad_hidden;  // null: zeros
  void* gradients;
  void* transposed_gradients;
  void* transposed_hidden;
  long long rows;
  long long columns;
  long long padded_rows;
  unsigned tiles_across;
  int paired;  // columns is even; gate_out and up_out are 4-byte aligned
  Gating gating;
};

// sums[row] of a compact source [rows, columns]; columns is a multiple of 8, the source is 16-byte
// aligned.
struct RowSumsArguments {
  const void* source;
  void* sums;
  long long rows;
  long long columns;
  int adds;  // to sums of float32
};

// Of compact matrices. A grid has a warp for each kPaddedColumns of a row that is written, counted
// from the last address before it that is a multiple of 16; those of a row side by side, one matrix
// after the other.
constexpr unsigned kPaddedThreads = 256;
constexpr long long kPaddedColumns = 1024;
constexpr int kMostPadded = 16;

struct PaddedCopy {
  const void* from;
  void* to;
  long long from_rows;
  long long from_columns;
  long long to_rows;
  long long to_columns;
  long long first_part;
  long long parts_of_row;
};
struct PaddedArguments {
  PaddedCopy copies[kMostPadded];
  int count;
};

}  // namespace gated_mlp
