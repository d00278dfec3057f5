// SPDX-License-Identifier: Apache-2.0
//
// forward of one token by the instruction that multiplies pairs of bfloat16 (cpu_operands.hpp): a
// line's numbers stay in registers. A group's products are added in fp32, and times its scale to
// the sums of the row. An item is a row tile, of gate and up or of down. Two tokens already take as
// long as the 16 of a tile register.
//
//   x, h         [part of the value][operand][pair of columns]
#pragma once

#if defined(__AVX512BF16__)
#include "cpu/gate.hpp"
#include "cpu/threads.hpp"
#include "cpu_float8.hpp"
#include "cpu_norm.hpp"
#include "cpu_operands.hpp"

namespace quantized_mlp::cpu {

inline constexpr int kAtOnce = 4;  // operands: two tiles, a whole group of any size

// x or h, in the order of `codes`.
struct DotToken {
  uint32_t* data;
  int64_t operands;
  int parts;
  Codes codes;

  static int64_t words(int64_t operands, int parts) { return operands * kPairs * parts; }

  // The 16 columns from k on, a multiple of 16.
  void write(int64_t k, Floats values) const {
    write_part(data, k, values);
    if (parts == 2) write_part(data + operands * kPairs, k, rest_of(values));
  }

  template <class T>
  void round(float most) const {
    round_pairs<T>({reinterpret_cast<Bfloat16*>(data), 2, kDepth, operands * kDepth}, operands,
                   most);
  }

 private:
  void write_part(uint32_t* part, int64_t k, Floats values) const {
    alignas(64) Bfloat16 rounded[kLanes];
    store(rounded, values);
    for (int i = 0; i < kLanes / 2; ++i) {
      const int row = row_of_pair(codes, static_cast<int>(k % kDepth / 2) + i);
      memcpy(part + k / kDepth * kPairs + row, rounded + 2 * i, sizeof(*part));
    }
  }
};

// Groups have kGroup operands; a whole row counts as groups of one scale.
template <Codes kCodes, int kGroup>
void multiply_dots(const RowTile& rows, const DotToken& token, float* sums) {
  const Making<kCodes> making;
  const __m512i middle = making.less(middle_of(kCodes));
  Floats total[kTileRows] = {};
  for (int64_t from = 0; from < token.operands; from += kAtOnce) {
    const int64_t left = token.operands - from;
    alignas(64) float scales[kAtOnce / kGroup][kTileRows];
    for (int i = 0; i < kAtOnce / kGroup; ++i) {
      store(scales[i], rows.scales_of(from + i * kGroup));
    }
    for (int r = 0; r < kGroupRows; ++r) {
      Two line[kAtOnce] = {};
      rows.make_line(making, middle, from, r, line);
      if (left > 2) rows.make_line(making, middle, from + 2, r, line + 2);
#pragma clang loop unroll(full)
      for (int group = 0; group < kAtOnce / kGroup; ++group) {
        Floats low = {};
        Floats high = {};
        for (int part = 0; part < token.parts; ++part) {
          const uint32_t* const x = token.data + (part * token.operands + from) * kPairs;
#pragma clang loop unroll(full)
          for (int i = group * kGroup; i < (group + 1) * kGroup; ++i) {
            // The last tile's columns again, times zeros.
            const int there = i < left ? i : i - 2;
            const auto pairs = bits_as<__m512bh>(_mm512_loadu_si512(x + there * kPairs));
            low = _mm512_dpbf16_ps(low, bits_as<__m512bh>(line[i].low), pairs);
            high = _mm512_dpbf16_ps(high, bits_as<__m512bh>(line[i].high), pairs);
          }
        }
        total[r] += low * scales[group][r];
        total[r + kGroupRows] += high * scales[group][r + kGroupRows];
      }
    }
  }
  for (int row = 0; row < kTileRows; ++row) sums[row] = _mm512_reduce_add_ps(total[row]);
}

inline void multiply_dots(const RowTile& rows, const DotToken& token, float* sums) {
  with_codes(rows.matrix.kind, [&]<Codes kCodes>() {
    switch (rows.matrix.shift) {
      case 5:
        return multiply_dots<kCodes, 1>(rows, token, sums);
      case 6:
        return multiply_dots<kCodes, 2>(rows, token, sums);
      default:
        return multiply_dots<kCodes, kAtOnce>(rows, token, sums);
    }
  });
}

template <class T>
struct DotCall {
  const ForwardArguments& call;
  const Mlp& mlp;
  DotToken x;
  DotToken h;
  T* normed;

  void read() const {
    const T* const from = row_of(call, 0, normed);
    for (int64_t k = 0; k < x.operands * kDepth; k += kLanes) {
      x.write(k, k < call.D ? load_up_to(from + k, call.D - k) : Floats{});
    }
    if (rounds_activations(call)) x.template round<T>(kUnbounded);
    for (int64_t k = mlp.hidden; k < h.operands * kDepth; k += kLanes) h.write(k, Floats{});
  }

  void compute_hidden(int64_t tile) const {
    alignas(64) float gate[kTileRows];
    alignas(64) float up[kTileRows];
    const Real scales = real_of(call.gate_scales.dtype);
    multiply_dots({mlp.gate, tile, scales}, x, gate);
    multiply_dots({mlp.up, tile, scales}, x, up);
    const int64_t column = tile * kTileRows;
    add_bias<T>(call.gate_bias, column, mlp.hidden, gate);
    add_bias<T>(call.up_bias, column, mlp.hidden, up);
    with_gate(mlp.gating.gate, [&]<Gate kGate>() {
      h.write(column, gated<kGate>(load(gate), load(up), mlp.gating.limit));
    });
  }

  void compute_y(int64_t tile) const {
    alignas(64) float sums[kTileRows];
    multiply_dots({mlp.down, tile, real_of(call.down_scales.dtype)}, h, sums);
    write_y<T>(call, 0, tile * kTileRows, sums);
  }
};

inline bool is_for_dots(const ForwardArguments& call) {
  return call.M == 1 && call.batch_invariant == ForwardArguments::BatchInvariant::kNo;
}

// The workspace is that of other calls, which is larger.
template <class T>
void forward_by_dots(const ForwardArguments& call, const Mlp& mlp) {
  auto* const data = static_cast<uint32_t*>(call.workspace);
  const DotToken x = {data, x_operands(call), kParts<T>, mlp.gate.kind};
  const DotToken h = {data + DotToken::words(x.operands, kParts<T>), h_operands(call), kParts<T>,
                      mlp.down.kind};
  const int64_t words = DotToken::words(x.operands + h.operands, kParts<T>);
  auto* const normed = reinterpret_cast<T*>(
      reinterpret_cast<char*>(data) + normed_at(sizeof(uint32_t) * static_cast<size_t>(words)));
  const DotCall<T> all = {call, mlp, x, h, normed};
  const int64_t items = call.HR > call.DR ? call.HR : call.DR;
  run_team(threads_for(worth_of(call, 1), items, call.threads), [&](Team& team) {
    team.for_each_item(1, [&](int64_t) { all.read(); });
    team.for_each_item(call.HR, [&](int64_t tile) { all.compute_hidden(tile); });
    if (rounds_activations(call)) {
      team.for_each_item(1, [&](int64_t) { h.template round<T>(most_of_hidden<T>(mlp.gating)); });
    }
    team.for_each_item(call.DR, [&](int64_t tile) { all.compute_y(tile); });
  });
}

}  // namespace quantized_mlp::cpu
#endif
