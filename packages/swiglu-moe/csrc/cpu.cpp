// SPDX-License-Identifier: Apache-2.0
//
// The CPU variants: the products in fp32, a thread a block of an expert's rows of weights. Each
// row of weights is read once for up to kRows tokens. Only y is rounded, and in FP8 what the
// products read.
#include <math.h>
#include <string.h>

#include "../../rows/element.hpp"
#include "../../rows/parallel.hpp"
#include "package.gen.hpp"

namespace kiln::package {
namespace {

using rows::load;
using rows::row;
using rows::store;

constexpr int64_t kRows = 4;          // tokens whose sums are in registers
constexpr int64_t kColumns = 32;      // of a block
constexpr int kLanes = 16;            // partial sums of a product
constexpr int64_t kScaleBlock = 128;  // weights, or columns of a row, that share a scale

int64_t blocks_of(int64_t extent, int64_t size) {
  return (extent + size - 1) / size;
}

// Sign, four bits of exponent around 7, three of mantissa; the last magnitude is a NaN.
struct Float8 {
  uint8_t bits;
};
struct Float8Values {
  constexpr Float8Values() : of{} {
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15;
      const int steps = exponent == 0 ? code & 7 : (8 + (code & 7)) << (exponent - 1);
      const float size = static_cast<float>(steps) / 512;
      of[code] = (code & 127) == 127 ? __builtin_nanf("") : code < 128 ? size : -size;
    }
  }
  float of[256];
};
constexpr Float8Values kFloat8Values;
float load(Float8 value) {
  return kFloat8Values.of[value.bits];
}

// To the nearest of Float8's values, of two the even one; up to 448.
float rounded_to_float8(float value) {
  if (fabsf(value) < 0.015625F) return nearbyintf(value * 512) / 512;
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  bits = (bits + 0x7ffffU + (bits >> 20 & 1U)) & ~0xfffffU;
  memcpy(&value, &bits, sizeof(bits));
  return value;
}

// A row becomes what its numbers are as float8_e4m3fn: their values, and of each block the scale.
void round_row(float* values, int64_t count) {
  for (int64_t from = 0; from < count; from += kScaleBlock) {
    const int64_t end = from + kScaleBlock < count ? from + kScaleBlock : count;
    float most = 0;
    bool finite = true;
    for (int64_t i = from; i < end; ++i) {
      most = fabsf(values[i]) > most ? fabsf(values[i]) : most;
      finite = finite && isfinite(values[i]);
    }
    int exponent;  // of most / 448, rounded up: 448 is 0.875 times 2^9
    const float part = frexpf(most, &exponent);
    exponent -= part <= 0.875F ? 9 : 8;
    if (most == 0 || exponent < -100) exponent = -100;
    for (int64_t i = from; i < end; ++i) {
      values[i] = finite ? ldexpf(rounded_to_float8(ldexpf(values[i], -exponent)), exponent) : NAN;
    }
  }
}

// The slots of each expert, side by side.
struct Order {
  int64_t* slots;
  int64_t* first;  // of an expert, and behind the last one all
};

template <class Call>
int64_t expert_of(const Call& call, int64_t slot) {
  return call.experts.dtype == sdk::DType::kInt64
             ? static_cast<const int64_t*>(call.experts.data)[slot]
             : static_cast<const int32_t*>(call.experts.data)[slot];
}

template <class Call>
void sort_slots(const Call& call, const Order& order) {
  const auto is_there = [&](int64_t expert) { return expert >= 0 && expert < call.E; };
  memset(order.first, 0, sizeof(int64_t) * static_cast<size_t>(call.E + 1));
  for (int64_t slot = 0; slot < call.M * call.K; ++slot) {
    const int64_t expert = expert_of(call, slot);
    if (is_there(expert)) ++order.first[expert];
  }
  int64_t next = 0;
  for (int64_t expert = 0; expert < call.E; ++expert) {
    const int64_t count = order.first[expert];
    order.first[expert] = next;
    next += count;
  }
  for (int64_t slot = 0; slot < call.M * call.K; ++slot) {
    const int64_t expert = expert_of(call, slot);
    if (is_there(expert)) order.slots[order.first[expert]++] = slot;
  }
  for (int64_t expert = call.E; expert > 0; --expert) order.first[expert] = order.first[expert - 1];
  order.first[0] = 0;
}

// The products of a row of weights with kCount rows of x. In FP8 `scales` has one a block.
template <class T, int64_t kCount>
void multiply(const T* weights, const float* scales, const float* const* x, int64_t count,
              float* sums) {
  for (int64_t i = 0; i < kCount; ++i) sums[i] = 0;
  const int64_t step = scales == nullptr ? count : kScaleBlock;
  for (int64_t from = 0; from < count; from += step) {
    const int64_t end = from + step < count ? from + step : count;
    float lanes[kCount][kLanes] = {};
    int64_t k = from;
    for (; k + kLanes <= end; k += kLanes) {
      float values[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) values[lane] = load(weights[k + lane]);
      for (int64_t i = 0; i < kCount; ++i) {
        for (int lane = 0; lane < kLanes; ++lane) lanes[i][lane] += values[lane] * x[i][k + lane];
      }
    }
    for (; k < end; ++k) {
      for (int64_t i = 0; i < kCount; ++i) lanes[i][0] += load(weights[k]) * x[i][k];
    }
    const float scale = scales == nullptr ? 1 : scales[from / kScaleBlock];
    for (int64_t i = 0; i < kCount; ++i) {
      float sum = 0;
      for (const float lane : lanes[i]) sum += lane;
      sums[i] += scale * sum;
    }
  }
}

// Calls use(i, sum) for rows x[0] to x[count - 1].
template <class T, class Use>
void multiply_all(const T* weights, const float* scales, const float* const* x, int64_t count,
                  int64_t depth, const Use& use) {
  float sums[kRows];
  int64_t i = 0;
  for (; i + kRows <= count; i += kRows) {
    multiply<T, kRows>(weights, scales, x + i, depth, sums);
    for (int64_t j = 0; j < kRows; ++j) use(i + j, sums[j]);
  }
  for (; i < count; ++i) {
    multiply<T, 1>(weights, scales, x + i, depth, sums);
    use(i, sums[0]);
  }
}

struct Weights {
  const void* data;
  const float* scales;  // or null
};

// Row n of expert `expert`, whose matrices have `count` rows of `depth`.
template <class T>
const T* weights_row(const Weights& weights, int64_t expert, int64_t count, int64_t depth,
                     int64_t n) {
  return static_cast<const T*>(weights.data) + (expert * count + n) * depth;
}
// `block_rows`: of blocks, of an expert; `block`: of them.
const float* scales_row(const Weights& weights, int64_t expert, int64_t block_rows, int64_t depth,
                        int64_t block) {
  if (weights.scales == nullptr) return nullptr;
  return weights.scales + (expert * block_rows + block) * blocks_of(depth, kScaleBlock);
}

// Where the workspace's parts begin.
struct Parts {
  size_t slots;  // 0
  size_t first;
  size_t rows;  // pointers to rows of x or of hidden, for each place of the order
  size_t x;
  size_t hidden;  // by the order
  size_t parts;   // by slots
  size_t end;
};

template <class Call>
Parts parts_of(const Call& call) {
  const auto bytes = [](int64_t count, size_t size) { return static_cast<size_t>(count) * size; };
  const int64_t slots = call.M * call.K;
  Parts at = {};
  at.first = at.slots + bytes(slots, sizeof(int64_t));
  at.rows = at.first + bytes(call.E + 1, sizeof(int64_t));
  at.x = at.rows + bytes(slots, sizeof(const float*));
  at.hidden = at.x + bytes(call.M * call.D, sizeof(float));
  at.parts = at.hidden + bytes(slots * call.H, sizeof(float));
  at.end = at.parts + bytes(slots * call.D, sizeof(float));
  return at;
}

template <class T, class Call>
T* at_byte(const Call& call, size_t byte) {
  return reinterpret_cast<T*>(static_cast<char*>(call.workspace) + byte);
}

// T: x's and y's, W: the weights'.
template <class T, class W, class Call>
void compute(const Call& call, const Weights& gate_up, const Weights& down) {
  const Parts at = parts_of(call);
  const Order order{at_byte<int64_t>(call, at.slots), at_byte<int64_t>(call, at.first)};
  const auto** const rows_of = at_byte<const float*>(call, at.rows);
  auto* const x = at_byte<float>(call, at.x);
  auto* const hidden = at_byte<float>(call, at.hidden);
  auto* const parts = at_byte<float>(call, at.parts);
  const bool is_float8 = gate_up.scales != nullptr;
  const uint32_t threads = call.threads;
  sort_slots(call, order);
  const int64_t slots = order.first[call.E];
  rows::for_each(call.M, call.M * call.D, threads, [&](int64_t m) {
    const T* from = row<const T>(call.x, m);
    float* const to = x + m * call.D;
    for (int64_t k = 0; k < call.D; ++k) to[k] = load(from[k]);
    if (is_float8) round_row(to, call.D);
  });
  for (int64_t i = 0; i < slots; ++i) {
    rows_of[i] = x + order.slots[i] / call.K * call.D;
  }
  const int64_t columns = blocks_of(call.H, kColumns);
  const int64_t row_blocks = blocks_of(call.H, kScaleBlock);
  rows::for_each(call.E * columns, slots * 2 * call.H * call.D, threads, [&](int64_t item) {
    const int64_t expert = item / columns;
    const int64_t first = order.first[expert];
    const int64_t count = order.first[expert + 1] - first;
    const int64_t end = (item % columns + 1) * kColumns;
    for (int64_t n = item % columns * kColumns; count > 0 && n < end && n < call.H; ++n) {
      const auto product = [&](int64_t which, const auto& use) {
        multiply_all(weights_row<W>(gate_up, expert, call.W, call.D, which * call.H + n),
                     scales_row(gate_up, expert, 2 * row_blocks, call.D,
                                which * row_blocks + n / kScaleBlock),
                     rows_of + first, count, call.D, use);
      };
      float* const to = hidden + first * call.H + n;
      product(0, [&](int64_t i, float sum) { to[i * call.H] = sum / (1 + expf(-sum)); });
      product(1, [&](int64_t i, float sum) { to[i * call.H] *= sum; });
    }
  });
  if (is_float8) {
    rows::for_each(slots, slots * call.H, threads,
                   [&](int64_t i) { round_row(hidden + i * call.H, call.H); });
  }
  for (int64_t i = 0; i < slots; ++i) rows_of[i] = hidden + i * call.H;
  const int64_t outputs = blocks_of(call.D, kColumns);
  const auto* const factors = static_cast<const float*>(call.weights.data);
  rows::for_each(call.E * outputs, slots * call.H * call.D, threads, [&](int64_t item) {
    const int64_t expert = item / outputs;
    const int64_t first = order.first[expert];
    const int64_t count = order.first[expert + 1] - first;
    const int64_t end = (item % outputs + 1) * kColumns;
    for (int64_t n = item % outputs * kColumns; count > 0 && n < end && n < call.D; ++n) {
      multiply_all(
          weights_row<W>(down, expert, call.D, call.H, n),
          scales_row(down, expert, blocks_of(call.D, kScaleBlock), call.H, n / kScaleBlock),
          rows_of + first, count, call.H, [&](int64_t i, float sum) {
            const int64_t slot = order.slots[first + i];
            parts[slot * call.D + n] = sum * factors[slot];
          });
    }
  });
  rows::for_each(call.M, call.M * call.K * call.D, threads, [&](int64_t m) {
    float* const sums = x + m * call.D;  // nothing reads this row of x again
    for (int64_t n = 0; n < call.D; ++n) sums[n] = 0;
    for (int64_t slot = m * call.K; slot < (m + 1) * call.K; ++slot) {
      const int64_t expert = expert_of(call, slot);
      if (expert < 0 || expert >= call.E) continue;
      for (int64_t n = 0; n < call.D; ++n) sums[n] += parts[slot * call.D + n];
    }
    T* const to = row<T>(call.y, m);
    for (int64_t n = 0; n < call.D; ++n) store(&to[n], sums[n]);
  });
}

template <class Call>
size_t workspace_of(const Call& call) {
  return parts_of(call).end;
}

int32_t refuse(const char* op, const char* expected, kiln_error* error) {
  return sdk::fail(error, KILN_INVALID_ARGUMENT, "%s: expected %s", op, expected);
}

}  // namespace

size_t forward_workspace_bytes(const ForwardArguments& call) {
  return workspace_of(call);
}
int32_t forward(const ForwardArguments& call, kiln_error* error) {
  if (call.W != 2 * call.H) return refuse("forward", "gate_up of 2 H rows", error);
  const Weights gate_up{call.gate_up.data, nullptr};
  const Weights down{call.down.data, nullptr};
  if (call.x.dtype == sdk::DType::kFloat16) {
    compute<_Float16, _Float16>(call, gate_up, down);
  } else {
    compute<rows::Bfloat16, rows::Bfloat16>(call, gate_up, down);
  }
  return KILN_OK;
}

size_t forward_float8_workspace_bytes(const ForwardFloat8Arguments& call) {
  return workspace_of(call);
}
int32_t forward_float8(const ForwardFloat8Arguments& call, kiln_error* error) {
  const int64_t width = blocks_of(call.D, kScaleBlock);
  const int64_t hidden = blocks_of(call.H, kScaleBlock);
  if (call.W != 2 * call.H || call.WB != 2 * hidden || call.DB != width || call.HB != hidden) {
    return refuse("forward_float8",
                  "W = 2 H, WB = 2 ceil(H / 128), DB = ceil(D / 128), HB = ceil(H / 128)", error);
  }
  compute<rows::Bfloat16, Float8>(
      call, {call.gate_up.data, static_cast<const float*>(call.gate_up_scales.data)},
      {call.down.data, static_cast<const float*>(call.down_scales.data)});
  return KILN_OK;
}

}  // namespace kiln::package
