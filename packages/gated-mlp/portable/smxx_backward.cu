// SPDX-License-Identifier: Apache-2.0
//
// What backward does between its products. The GEMM kernels want both operands with k side by side
// in memory, so that weights, tokens and gradients are transposed first; the gated unit's
// gradients are written both ways by the kernel that computes them. Sums run in an order that
// depends on nothing but the number of columns.
//
//   kernel              what it does
//   transpose           a matrix and, if asked for, its copy
//   gated_backward      g, u, dh -> [dg, du], [dg, du]^T and h^T
//   row_sums            the biases' gradients, from the transposed ones: a warp a row
//
//   threads of a CTA    role, in the first two
//   all                 load squares of two rows by two columns of a tile; then, after one
//                       __syncthreads, store words of two rows of a column
//
//   shared memory       of each transposed matrix: | of each column: 32 words of two rows | a gap |
#include "element.cuh"
#include "gate.cuh"
#include "overlap.cuh"
#include "portable/arguments.h"

namespace gated_mlp {

constexpr int kPairs = kTransposeTile / 2;  // of rows or of columns
constexpr int kPairsOfThread = kTransposeTile * kPairs / 2 / kBackwardThreads;

// Two neighbours of a row, the first in the low half; what lies outside is 0. `address` is that of
// the first, `left` the number of elements from there to the end of the row.
__device__ __forceinline__ unsigned load_two(const void* data, long long at, long long left,
                                             bool paired) {
  const auto* address = static_cast<const unsigned short*>(data) + at;
  if (left <= 0) return 0;
  if (paired) return *reinterpret_cast<const unsigned*>(address);
  const unsigned low = address[0];
  return left > 1 ? low | static_cast<unsigned>(address[1]) << 16 : low;
}

__device__ __forceinline__ void store_two(void* data, long long at, long long left, bool paired,
                                          unsigned both) {
  auto* address = static_cast<unsigned short*>(data) + at;
  if (left <= 0) return;
  if (paired && left > 1) {
    *reinterpret_cast<unsigned*>(address) = both;
    return;
  }
  address[0] = static_cast<unsigned short>(both & 0xffffu);
  if (left > 1) address[1] = static_cast<unsigned short>(both >> 16);
}

// A tile on its way to its transposed place: word [column][pair] holds rows 2 pair and 2 pair + 1.
struct TransposedTile {
  unsigned words[kTransposeTile][kPairs + 1];

  // The 2 x 2 elements of rows 2 row_pair and the next one, of columns 2 column_pair and the next.
  __device__ __forceinline__ void put(int row_pair, int column_pair, unsigned upper,
                                      unsigned lower) {
    words[2 * column_pair][row_pair] = __byte_perm(upper, lower, 0x5410);
    words[2 * column_pair + 1][row_pair] = __byte_perm(upper, lower, 0x7632);
  }

  // To rows `column` and on of a matrix of `columns` rows with `stride` elements each, of which
  // this tile begins at number `row`; up to element `rows`.
  __device__ __forceinline__ void store(void* to, long long stride, long long row, long long rows,
                                        long long column, long long columns, bool paired) const {
    const int pair = static_cast<int>(threadIdx.x) % kPairs;
    for (int line = static_cast<int>(threadIdx.x) / kPairs; line < kTransposeTile;
         line += kBackwardThreads / kPairs) {
      if (column + line >= columns) break;
      const long long at = row + 2 * pair;
      store_two(to, (column + line) * stride + at, rows - at, paired, words[line][pair]);
    }
  }
};

// Where this CTA's tile begins.
__device__ __forceinline__ long long tile_row(unsigned tiles_across) {
  return static_cast<long long>(blockIdx.x / tiles_across) * kTransposeTile;
}
__device__ __forceinline__ long long tile_column(unsigned tiles_across) {
  return static_cast<long long>(blockIdx.x % tiles_across) * kTransposeTile;
}

// Calls function(row_pair, column_pair) for this thread's 2 x 2 elements of a tile: a warp has a
// pair of whole rows.
template <class Function>
__device__ __forceinline__ void each_two_by_two(const Function& function) {
  const int column_pair = static_cast<int>(threadIdx.x) % kPairs;
#pragma unroll
  for (int i = 0; i < kPairsOfThread; ++i) {
    function(static_cast<int>(threadIdx.x) / kPairs + i * (kBackwardThreads / kPairs), column_pair);
  }
}

__device__ __forceinline__ void transpose(const TransposeArguments& p) {
  __shared__ TransposedTile tile;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const long long row = tile_row(p.tiles_across);
  const long long column = tile_column(p.tiles_across);
  const bool paired = p.paired_loads != 0;
  each_two_by_two([&](int row_pair, int column_pair) {
    const long long at = column + 2 * column_pair;
    unsigned both[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const long long from = row + 2 * row_pair + i;
      const long long left = from < p.rows ? p.columns - at : 0;
      both[i] = load_two(p.source, from * p.columns + at, left, paired);
      if (p.copy != nullptr) store_two(p.copy, from * p.columns + at, left, paired, both[i]);
    }
    tile.put(row_pair, column_pair, both[0], both[1]);
  });
  if (p.transposed == nullptr) return;
  __syncthreads();
  tile.store(p.transposed, p.transposed_stride, row, p.padded_rows, column, p.columns,
             p.paired_stores != 0);
}

// Two neighbours of a row: the gated unit's output and the gradients of its inputs.
struct GatedTwo {
  unsigned hidden;
  unsigned grad_gate;
  unsigned grad_up;
};

template <class Element, class Unit>
__device__ __forceinline__ GatedTwo gated_two(Unit unit, unsigned gate, unsigned up,
                                              unsigned grad) {
  const float2 g = unpack_pair<Element>(gate);
  const float2 u = unpack_pair<Element>(up);
  const float2 from = unpack_pair<Element>(grad);
  const GatedGradients first = unit.gradients(g.x, u.x, from.x);
  const GatedGradients second = unit.gradients(g.y, u.y, from.y);
  return {unit.pack(first.hidden, second.hidden, Element{}),
          pack_pair(first.gate, second.gate, Element{}), pack_pair(first.up, second.up, Element{})};
}

template <class Element>
__device__ __forceinline__ void gated_backward(const GatedBackwardArguments& p) {
  __shared__ TransposedTile hidden;
  __shared__ TransposedTile grad_gate;
  __shared__ TransposedTile grad_up;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const long long row = tile_row(p.tiles_across);
  const long long column = tile_column(p.tiles_across);
  const bool paired = p.paired != 0;
  with_gate(p.gating, [&](auto unit) {
    each_two_by_two([&](int row_pair, int column_pair) {
      const long long at = column + 2 * column_pair;
      GatedTwo two[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const long long from = row + 2 * row_pair + i;
        const long long left = p.columns - at;
        two[i] = {};
        if (from >= p.rows || left <= 0) continue;
        const unsigned gate = load_two(p.gate_out, from * p.out_stride + at, left, paired);
        const unsigned up = load_two(p.up_out, from * p.out_stride + at, left, paired);
        const unsigned grad = p.grad_hidden == nullptr
                                  ? 0
                                  : load_two(p.grad_hidden, from * p.columns + at, left, paired);
        two[i] = gated_two<Element>(unit, gate, up, grad);
        const long long to = from * 2 * p.columns + at;
        store_two(p.gradients, to, left, paired, two[i].grad_gate);
        store_two(p.gradients, to + p.columns, left, paired, two[i].grad_up);
      }
      hidden.put(row_pair, column_pair, two[0].hidden, two[1].hidden);
      grad_gate.put(row_pair, column_pair, two[0].grad_gate, two[1].grad_gate);
      grad_up.put(row_pair, column_pair, two[0].grad_up, two[1].grad_up);
    });
  });
  __syncthreads();
  const auto store = [&](const TransposedTile& tile, void* to, long long first_line) {
    if (to == nullptr) return;
    auto* lines = static_cast<unsigned short*>(to) + first_line * p.padded_rows;
    tile.store(lines, p.padded_rows, row, p.padded_rows, column, p.columns, true);
  };
  store(grad_gate, p.transposed_gradients, 0);
  store(grad_up, p.transposed_gradients, p.columns);
  store(hidden, p.transposed_hidden, 0);
}

// A warp a row.
template <class Element>
__device__ __forceinline__ void row_sums(const RowSumsArguments& p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const long long row = static_cast<long long>(blockIdx.x) * (kBackwardThreads / 32) +
                        static_cast<int>(threadIdx.x) / 32;
  if (row >= p.rows) return;
  const auto* source = static_cast<const uint4*>(p.source) + row * (p.columns / 8);
  float sum = 0.0f;
  for (long long at = static_cast<int>(threadIdx.x) % 32; at < p.columns / 8; at += 32) {
    const uint4 eight = source[at];
    const unsigned words[] = {eight.x, eight.y, eight.z, eight.w};
    float part = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = unpack_pair<Element>(words[i]);
      part += two.x + two.y;
    }
    sum += part;
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  if (threadIdx.x % 32 == 0) store_sum<Element>(p.sums, row, sum, p.adds != 0);
}

}  // namespace gated_mlp

#define KILN_BACKWARD_KERNEL(name, Arguments, function)                     \
  extern "C" __global__ void __launch_bounds__(gated_mlp::kBackwardThreads) \
      name(const gated_mlp::Arguments arguments) {                          \
    gated_mlp::function(arguments);                                         \
  }
KILN_BACKWARD_KERNEL(backward_transpose, TransposeArguments, transpose)
KILN_BACKWARD_KERNEL(backward_gated_bf16, GatedBackwardArguments,
                     gated_backward<gated_mlp::Bfloat16>)
KILN_BACKWARD_KERNEL(backward_gated_f16, GatedBackwardArguments, gated_backward<gated_mlp::Float16>)
KILN_BACKWARD_KERNEL(backward_row_sums_bf16, RowSumsArguments, row_sums<gated_mlp::Bfloat16>)
KILN_BACKWARD_KERNEL(backward_row_sums_f16, RowSumsArguments, row_sums<gated_mlp::Float16>)
