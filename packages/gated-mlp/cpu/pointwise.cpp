// SPDX-License-Identifier: Apache-2.0
#include "cpu/pointwise.hpp"

#include "cpu/threads.hpp"
#include "cpu/vector.hpp"

namespace gated_mlp::cpu {
namespace {

constexpr int64_t kItemColumns = 8192;      // an item is a run of one row
constexpr int64_t kThreadElements = 65536;  // below, calling a thread costs more than it saves

// Calls function(row, column, count) for vectors of `count` <= kLanes elements.
template <class Function>
void for_each_vector(int64_t rows, int64_t columns, uint32_t threads, const Function& function) {
  if (rows == 0 || columns == 0) return;
  const int64_t runs = (columns + kItemColumns - 1) / kItemColumns;
  const int64_t items = rows * runs;
  const auto worth = static_cast<double>(rows * columns / kThreadElements + 1);
  run_team(threads_for(worth, items, threads), [&](Team& team) {
    team.for_each_item(items, [&](int64_t item) {
      const int64_t row = item / runs;
      const int64_t first = item % runs * kItemColumns;
      const int64_t end = first + kItemColumns < columns ? first + kItemColumns : columns;
      for (int64_t column = first; column < end; column += kLanes) {
        function(row, column, end - column < kLanes ? end - column : kLanes);
      }
    });
  });
}

}  // namespace

template <class T>
void pointwise(const Pointwise<T>& call) {
  with_gate(call.gating.gate, [&]<Gate kGate>() {
    const auto by_vectors = [&](int64_t row, int64_t column, int64_t count) {
      const Floats gate = load_up_to(call.gate.data + row * call.gate.stride + column, count);
      const Floats up = load_up_to(call.up.data + row * call.up.stride + column, count);
      store_up_to(call.out.data + row * call.out.stride + column,
                  gated<kGate>(gate, up, call.gating.limit), count);
    };
    for_each_vector(call.rows, call.columns, call.threads, by_vectors);
  });
}

template <class T>
void pointwise_backward(const PointwiseBackward<T>& call) {
  with_gate(call.gating.gate, [&]<Gate kGate>() {
    const auto by_vectors = [&](int64_t row, int64_t column, int64_t count) {
      const Floats grad =
          load_up_to(call.grad_out.data + row * call.grad_out.stride + column, count);
      const Floats gate = load_up_to(call.gate.data + row * call.gate.stride + column, count);
      const Floats up = load_up_to(call.up.data + row * call.up.stride + column, count);
      const WithSlope activated = activate<kGate>(gate, call.gating.limit);
      const WithSlope multiplier = factor<kGate>(up, call.gating.limit);
      store_up_to(call.grad_gate.data + row * call.grad_gate.stride + column,
                  grad * multiplier.value * activated.slope, count);
      store_up_to(call.grad_up.data + row * call.grad_up.stride + column,
                  grad * activated.value * multiplier.slope, count);
    };
    for_each_vector(call.rows, call.columns, call.threads, by_vectors);
  });
}

template void pointwise(const Pointwise<float>&);
template void pointwise(const Pointwise<Bfloat16>&);
template void pointwise(const Pointwise<Float16>&);
template void pointwise_backward(const PointwiseBackward<float>&);
template void pointwise_backward(const PointwiseBackward<Bfloat16>&);
template void pointwise_backward(const PointwiseBackward<Float16>&);

}  // namespace gated_mlp::cpu
