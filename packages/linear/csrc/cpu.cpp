// SPDX-License-Identifier: Apache-2.0
//
// The CPU variants: dot products of packed rows of x with the weights, which are read where they
// are. A block of rows is packed once and shared by all threads.
#include "cpu/dot_tile.hpp"
#include "cpu/threads.hpp"
#include "cpu/tile.hpp"
#include "package.gen.hpp"

namespace kiln::package {
namespace {

using namespace gated_mlp::cpu;

constexpr int64_t kBlock = 96;    // rows that the workspace holds
constexpr int64_t kColumns = 16;  // weight rows of an item
static_assert(kBlock % kDotRows == 0 && kColumns % kDotColumns == 0 && kColumns % kLanes == 0);

int64_t padded(int64_t k) {
  return round_up(k, 2 * kLanes);
}

template <class T>
struct Block {
  using Packed = typename Dot<T>::Packed;

  const ForwardArguments& call;
  Packed* packed;  // panels of kDotRows rows, which take turns, a vector each
  int64_t first;
  int64_t rows;

  Packed* at(int64_t row, int64_t k) const {
    constexpr int64_t kStep = Dot<T>::kStep;
    const int64_t vector = (row / kDotRows * padded(call.K) + k / kStep * kStep) * kDotRows;
    return packed + vector + row % kDotRows * kStep + k % kStep;
  }

  void pack(int64_t row) const {
    const T* x = static_cast<const T*>(call.x.data) + (first + row) * call.x.stride[0];
    for (int64_t k = 0; k < call.K; k += kLanes) {
      store_up_to(at(row, k), load_up_to(x + k, call.K - k), call.K - k);
    }
    for (int64_t k = call.K; k < padded(call.K); ++k) *at(row, k) = {};
  }

  // Weight rows [column, column + kColumns) with all rows of the block.
  void multiply(int64_t column) const {
    alignas(64) float sums[kBlock][kColumns];
    const int64_t columns = smaller(call.N - column, kColumns);
    for (int64_t j = 0; j < columns; j += kDotColumns) {
      const T* weights[kDotColumns];
      for (int64_t i = 0; i < kDotColumns; ++i) {  // nobody reads the sums beyond the last column
        weights[i] = static_cast<const T*>(call.weight.data) +
                     (column + smaller(j + i, columns - 1)) * call.K;
      }
      for (int64_t row = 0; row < rows; row += kDotRows) {
        with_rows<kDotRows>(rows - row, [&]<int kRows>() {
          multiply_dots<kRows>(at(row, 0), weights, call.K, kDotColumns * call.K, false,
                               &sums[row][j], kColumns);
        });
      }
    }
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t j = 0; j < columns; j += kLanes) {
        write(first + row, column + j, load(&sums[row][j]), columns - j);
      }
    }
  }

  void write(int64_t row, int64_t column, Floats sum, int64_t count) const {
    if (call.bias.present) sum += load_up_to(static_cast<const T*>(call.bias.data) + column, count);
    store_up_to(static_cast<T*>(call.y.data) + row * call.y.stride[0] + column, sum, count);
  }
};

template <class T>
void run(const ForwardArguments& call) {
  const double weights = static_cast<double>(call.N) * static_cast<double>(call.K);
  const double worth = larger(2.0 * static_cast<double>(call.M) * weights / kFlopsPerThread,
                              sizeof(T) * weights / kBytesPerThread);
  const int64_t items = larger(parts_of(call.N, kColumns), smaller(call.M, kBlock));
  run_team(threads_for(worth, items, call.threads), [&](Team& team) {
    for (int64_t first = 0; first < call.M; first += kBlock) {
      const Block<T> block{call, static_cast<typename Dot<T>::Packed*>(call.workspace), first,
                           smaller(call.M - first, kBlock)};
      team.for_each_item(block.rows, [&](int64_t row) { block.pack(row); });
      team.for_each_item(parts_of(call.N, kColumns),
                         [&](int64_t item) { block.multiply(item * kColumns); });
    }
  });
}

}  // namespace

size_t forward_workspace_bytes(const ForwardArguments& call) {
  const int64_t rows = round_up(smaller(call.M, kBlock), kDotRows);
  return sizeof(float) * static_cast<size_t>(rows * padded(call.K));
}

int32_t forward(const ForwardArguments& call, kiln_error* error) {
  if (call.tile != ForwardArguments::Tile::kAuto) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "forward: a CPU has no tiles to choose from; leave tile out");
  }
  if (call.M == 0 || call.N == 0) return KILN_OK;
  if (call.x.dtype == sdk::DType::kBFloat16) {
    run<Bfloat16>(call);
  } else {
    run<Float16>(call);
  }
  return KILN_OK;
}

}  // namespace kiln::package
