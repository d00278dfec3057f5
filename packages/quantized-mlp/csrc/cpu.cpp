// SPDX-License-Identifier: Apache-2.0
//
// forward on the CPU; with AMX by cpu_amx.hpp and cpu_dots.hpp, else as follows. A line of 64 bytes
// of a packed tile has two rows, r and r + 8: of 4 bits all of the tile's columns, of int8 half of
// them; of e4m3 one row and all of its columns. Codes of whole numbers are multiplied as such
// (cpu_whole.hpp). Those of e4m3 become fp32: the 16 words of a line are vectors whose lanes are
// columns, x and h lie in memory in the order that makes those of one place in a word neighbours,
// and a scale is applied once a line.
//
//   workspace    x, then h: [tokens of a block][tiles of k], of 64 floats or a WholeTile, which is
//                as large; where there is a norm, x normed, as x is
//   an item      of the first region: a token of x; of the second: 16 columns of h; of the third:
//                128 columns of a token of h, put in the order that down wants; of the fourth: 16
//                of y
//
// An item's sums run through k in order, whoever computes it, and with whichever tokens: a row's
// bits depend on the row alone.
#include "cpu/gate.hpp"
#include "cpu/threads.hpp"
#include "cpu/vector.hpp"
#include "cpu_amx.hpp"
#include "cpu_dots.hpp"
#include "cpu_float8.hpp"
#include "cpu_lines.hpp"
#include "cpu_norm.hpp"
#include "cpu_whole.hpp"

namespace kiln::package {
namespace {

using namespace quantized_mlp::cpu;
using gated_mlp::Gate;
using quantized_mlp::check_mlp;
using quantized_mlp::Codes;
using quantized_mlp::e4m3_lane_byte;
using quantized_mlp::kFloat8Block;
using quantized_mlp::kLaneBytes;
using quantized_mlp::kStepBytes;
using quantized_mlp::kTileDepth;
using quantized_mlp::kTileRows;
using quantized_mlp::Matrix;
using quantized_mlp::Mlp;
using quantized_mlp::parts_of;
using quantized_mlp::Real;
using quantized_mlp::real_of;
using quantized_mlp::tile_bytes;

#if defined(__AMX_BF16__)
template <class T>
void run(const ForwardArguments& call, const Mlp& mlp) {
  if (is_for_dots(call)) {
    forward_by_dots<T>(call, mlp);
  } else {
    forward_by_amx<T>(call, mlp);
  }
}
#else
constexpr int64_t kBlock = 64;  // tokens that the workspace holds
// Tokens whose sums are in registers; of e4m3, whose codes take most of the time, more.
constexpr int kAtOnce = 4;
constexpr int kE4m3AtOnce = kLanes == 8 ? 4 : 8;
constexpr int kVectors = 16 / kLanes;  // of a line

// Of e4m3, two codes in each half of a word, which become numbers of float16: 2^-8 of their value,
// denormals alike. Lanes follow those of the halves.
inline Floats eighth_bits(Words halves, int part) {
  Halves numbers[2];
  memcpy(&numbers, &halves, sizeof(numbers));
  return __builtin_convertvector(numbers[part], Floats);
}

// The products of line r of a share with kTokens tokens, added to `total`. x[i]: the tile's of a
// token. scale[p]: of the lanes of the p-th half of a vector of words.
template <int kTokens>
inline void multiply_e4m3_line(const uint8_t* share, int r, const float* const (&x)[kTokens],
                               const Floats (&scale)[2], Floats (&total)[kTokens]) {
  constexpr int kPieces = kLanes / 4;  // of 16 bytes
  Floats sums[2][kTokens] = {};
#pragma clang loop unroll(full)
  for (int v = 0; v < kVectors; ++v) {
    Words words;
#pragma clang loop unroll(full)
    for (int i = 0; i < kPieces; ++i) {
      memcpy(reinterpret_cast<uint8_t*>(&words) + i * kLaneBytes,
             share + e4m3_lane_byte(r, v * kPieces + i), kLaneBytes);
    }
    constexpr uint32_t kSign = 0x80008000u;
    constexpr uint32_t kMagnitude = 0x3f803f80u;
    const Words of_pair[2] = {(words << 7 & kMagnitude) | (words << 8 & kSign),
                              (words >> 1 & kMagnitude) | (words & kSign)};
#pragma clang loop unroll(full)
    for (int pair = 0; pair < 2; ++pair) {
#pragma clang loop unroll(full)
      for (int part = 0; part < 2; ++part) {
        const Floats weight = eighth_bits(of_pair[pair], part);
#pragma clang loop unroll(full)
        for (int i = 0; i < kTokens; ++i) {
          sums[part][i] += weight * load(x[i] + pair * 32 + (2 * v + part) * kLanes);
        }
      }
    }
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < kTokens; ++i) total[i] += sums[0][i] * scale[0] + sums[1][i] * scale[1];
}

// Of the p-th half of a vector of words: the lanes whose words are of the second 32 columns.
inline Ints lanes_of_second_step(int part) {
  Ints mask = {};
  for (int lane = 0; lane < kLanes; ++lane) mask[lane] = ((part * kLanes + lane) & 4) != 0 ? -1 : 0;
  return mask;
}

// sums[i][r]: row r of the tile with token i of x, whose tokens lie `stride` floats apart.
template <int kTokens>
void multiply_e4m3(const Matrix& matrix, int64_t row_tile, const float* x, int64_t stride,
                   float (*sums)[kTileRows]) {
  const auto* const scales =
      reinterpret_cast<const float*>(matrix.scales) + row_tile * matrix.groups * kTileRows;
  Floats total[kGroupRows][2][kTokens] = {};
  for (int64_t tile = 0; tile < matrix.depth_tiles; ++tile) {
    const float* tokens[kTokens];
    for (int i = 0; i < kTokens; ++i) tokens[i] = x + i * stride + tile * kTileDepth;
    const uint8_t* const codes =
        matrix.codes + (row_tile * matrix.depth_tiles + tile) * tile_bytes(Codes::kE4m3);
    const float* const first = scales + group_of(matrix, tile * kTileDepth) * kTileRows;
    const float* const second = scales + group_of(matrix, tile * kTileDepth + 32) * kTileRows;
    for (int row = 0; row < kGroupRows; ++row) {
      for (int half = 0; half < 2; ++half) {
        const int place = 2 * row + half;
        Floats scale[2];
        for (int part = 0; part < 2; ++part) {
          scale[part] =
              select(lanes_of_second_step(part), broadcast(second[place]), broadcast(first[place]));
        }
        multiply_e4m3_line(codes + half * kStepBytes, row, tokens, scale, total[row][half]);
      }
    }
  }
  constexpr float kFromHalf = 256;
  for (int i = 0; i < kTokens; ++i) {
    add_lanes([&](int row) { return total[row % kGroupRows][row / kGroupRows][i] * kFromHalf; },
              sums[i]);
  }
}

struct Product {
  const Matrix& matrix;
  Real scales;

  // Of `tokens` tokens.
  void multiply(int64_t row_tile, const float* x, int64_t tokens, float (*sums)[kTileRows]) const {
    switch (matrix.kind) {
      case Codes::kInt4:
        return multiply_by<kAtOnce>(tokens, [&]<int kTokens>(int64_t first) {
          multiply_whole<Codes::kInt4, kTokens>(row_tile, x, first, sums);
        });
      case Codes::kInt8:
        return multiply_by<kAtOnce>(tokens, [&]<int kTokens>(int64_t first) {
          multiply_whole<Codes::kInt8, kTokens>(row_tile, x, first, sums);
        });
      case Codes::kE4m3:
        return multiply_by<kE4m3AtOnce>(tokens, [&]<int kTokens>(int64_t first) {
          multiply_e4m3<kTokens>(matrix, row_tile, x + first * floats(), floats(), sums + first);
        });
    }
  }

 private:
  int64_t floats() const { return matrix.depth_tiles * kTileDepth; }  // of a token

  // As many tokens at once as there are, up to kTokens, a power of two.
  template <int kTokens, class Function>
  static void multiply_by(int64_t tokens, const Function& function, int64_t first = 0) {
    for (; tokens - first >= kTokens; first += kTokens)
      function.template operator()<kTokens>(first);
    if constexpr (kTokens > 1) {
      if (first < tokens) multiply_by<kTokens / 2>(tokens, function, first);
    }
  }

  template <Codes kCodes, int kTokens>
  void multiply_whole(int64_t row_tile, const float* x, int64_t first,
                      float (*sums)[kTileRows]) const {
    const auto* const tiles = reinterpret_cast<const WholeTile*>(x + first * floats());
    const auto run = [&]<int kColumns, bool kVnni>() {
      WholeProduct<kCodes, kColumns, kVnni, kTokens>{matrix, scales, row_tile, tiles,
                                                     matrix.depth_tiles}
          .run(sums + first);
    };
    const auto run_by = [&]<bool kVnni>() {
      switch (matrix.shift) {
        case 5:
          return run.template operator()<32, kVnni>();
        case 6:
          return run.template operator()<64, kVnni>();
        default:
          return run.template operator()<128, kVnni>();
      }
    };
    return has_vnni() ? run_by.template operator()<true>() : run_by.template operator()<false>();
  }
};

// Up to two tiles of 64 floats, as the codes want them.
void arrange(Codes codes, float* values, int count) {
  switch (codes) {
    case Codes::kInt4:
      return make_whole<Codes::kInt4>(values, count);
    case Codes::kInt8:
      return make_whole<Codes::kInt8>(values, count);
    case Codes::kE4m3:
      constexpr Columns<Codes::kE4m3> kColumns;
      for (float* tile = values; tile < values + count; tile += kTileDepth) {
        float columns[kTileDepth];
        memcpy(columns, tile, sizeof(columns));
        for (int place = 0; place < kTileDepth; ++place) tile[place] = columns[kColumns.of[place]];
      }
  }
}

// Floats of a token of x and of h.
int64_t x_floats(const ForwardArguments& call) {
  return call.DK * kTileDepth;
}
int64_t h_floats(const ForwardArguments& call) {
  return call.HK * kTileDepth;
}
// Columns that are rounded together, from column k on.
constexpr int kBlockColumns = kUnitTiles * kTileDepth;
static_assert(kBlockColumns == kFloat8Block);
int columns_of(int64_t floats, int64_t k) {
  return floats - k < kBlockColumns ? static_cast<int>(floats - k) : kBlockColumns;
}
int64_t block_of(const ForwardArguments& call) {
  return call.M < kBlock ? call.M : kBlock;
}

// A block of tokens of one call.
template <class T>
struct Block {
  const ForwardArguments& call;
  const Mlp& mlp;
  int64_t first;
  int64_t tokens;
  float* x;
  float* h;
  T* normed;

  void read(int64_t token) const {
    const T* const from = row_of(call, first + token, normed + token * call.D);
    float* const to = x + token * x_floats(call);
    for (int64_t k = 0; k < x_floats(call); k += kLanes) {
      const int64_t left = call.D - k;
      store(to + k, left > 0 ? load_up_to(from + k, left) : Floats{});
    }
    for (int64_t k = 0; k < x_floats(call); k += kBlockColumns) {
      const int count = columns_of(x_floats(call), k);
      if (rounds_activations(call)) round_block<T>(to + k, count, kUnbounded);
      arrange(mlp.gate.kind, to + k, count);
    }
    // What exceeds the tiles of gate's rows.
    float* const end = h + (token + 1) * h_floats(call);
    for (float* at = end - (h_floats(call) > 0 ? kTileDepth : 0); at < end; ++at) *at = 0;
  }

  void compute_hidden(int64_t row_tile) const {
    float gate[kBlock][kTileRows];
    float up[kBlock][kTileRows];
    const Real scales = real_of(call.gate_scales.dtype);
    Product{mlp.gate, scales}.multiply(row_tile, x, tokens, gate);
    Product{mlp.up, scales}.multiply(row_tile, x, tokens, up);
    const int64_t column = row_tile * kTileRows;
    with_gate(mlp.gating.gate, [&]<Gate kGate>() {
      for (int64_t token = 0; token < tokens; ++token) {
        add_bias<T>(call.gate_bias, column, mlp.hidden, gate[token]);
        add_bias<T>(call.up_bias, column, mlp.hidden, up[token]);
        float* const to = h + token * h_floats(call) + column;
        for (int i = 0; i < kTileRows; i += kLanes) {
          store(to + i, gated<kGate>(load(gate[token] + i), load(up[token] + i), mlp.gating.limit));
        }
      }
    });
  }

  void arrange_hidden(int64_t token, int64_t block) const {
    const int64_t k = block * kBlockColumns;
    float* const from = h + token * h_floats(call) + k;
    const int count = columns_of(h_floats(call), k);
    if (rounds_activations(call)) round_block<T>(from, count, most_of_hidden<T>(mlp.gating));
    arrange(mlp.down.kind, from, count);
  }

  void compute_y(int64_t row_tile) const {
    float sums[kBlock][kTileRows];
    Product{mlp.down, real_of(call.down_scales.dtype)}.multiply(row_tile, h, tokens, sums);
    const int64_t column = row_tile * kTileRows;
    for (int64_t token = 0; token < tokens; ++token) {
      write_y<T>(call, first + token, column, sums[token]);
    }
  }
};

// Of x and h.
size_t block_bytes(const ForwardArguments& call) {
  return sizeof(float) * static_cast<size_t>(block_of(call) * (x_floats(call) + h_floats(call)));
}

template <class T>
void run(const ForwardArguments& call, const Mlp& mlp) {
  const int64_t items = call.HR > call.DR ? call.HR : call.DR;
  const int64_t blocks = parts_of(h_floats(call), kBlockColumns);
  auto* const x = static_cast<float*>(call.workspace);
  float* const h = x + block_of(call) * x_floats(call);
  auto* const normed =
      reinterpret_cast<T*>(static_cast<char*>(call.workspace) + normed_at(block_bytes(call)));
  run_team(threads_for(worth_of(call, kAtOnce), items, call.threads), [&](Team& team) {
    for (int64_t first = 0; first < call.M; first += kBlock) {
      const int64_t left = call.M - first;
      const Block<T> block{call, mlp, first, left < kBlock ? left : kBlock, x, h, normed};
      team.for_each_item(block.tokens, [&](int64_t token) { block.read(token); });
      team.for_each_item(call.HR, [&](int64_t tile) { block.compute_hidden(tile); });
      team.for_each_item(block.tokens * blocks,
                         [&](int64_t item) { block.arrange_hidden(item / blocks, item % blocks); });
      team.for_each_item(call.DR, [&](int64_t tile) { block.compute_y(tile); });
    }
  });
}
#endif

}  // namespace

size_t forward_workspace_bytes(const ForwardArguments& call) {
#if defined(__AMX_BF16__)
  return amx_workspace_bytes(call);
#else
  return with_normed(call, block_bytes(call), block_of(call));
#endif
}

int32_t forward(const ForwardArguments& call, kiln_error* error) {
  Mlp mlp;
  if (const int32_t status = check_mlp(call, &mlp, error)) return status;
  if (call.M == 0 || call.D == 0) return KILN_OK;
  if (call.x.dtype == sdk::DType::kBFloat16) {
    run<Bfloat16>(call, mlp);
  } else {
    run<Float16>(call, mlp);
  }
  return KILN_OK;
}

}  // namespace kiln::package
