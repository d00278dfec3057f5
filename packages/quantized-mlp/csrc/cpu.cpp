// SPDX-License-Identifier: Apache-2.0
//
// forward on the CPU; with AMX by cpu_amx.hpp and cpu_dots.hpp, else as follows. A line of 64 bytes
// of a packed tile has two rows, r and r + 8: of 4 bits all of the tile's columns, of int8 half of
// them; of e4m3 one row and all of its columns. Its 16 words are vectors whose lanes are columns; x
// and h lie in memory in the order that makes those of one code position neighbours
// (place_in_line). So a code costs a shift, a mask, a subtraction, a conversion and a
// multiplication for each token, and a scale is applied once a line: the sums of a group are of
// whole numbers, or of those of e4m3, times x, in fp32.
//
//   workspace    x, then h: fp32, [tokens of a block][tiles of k][64]; where there is a norm, x
//                normed, as x is
//   an item      of the first region: a token of x; of the second: 16 columns of h; of the third:
//                16 of y
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

namespace kiln::package {
namespace {

using namespace quantized_mlp::cpu;
using gated_mlp::Gate;
using quantized_mlp::bits_of;
using quantized_mlp::check_mlp;
using quantized_mlp::Codes;
using quantized_mlp::e4m3_lane_byte;
using quantized_mlp::kLaneBytes;
using quantized_mlp::kStepBytes;
using quantized_mlp::kTileDepth;
using quantized_mlp::kTileRows;
using quantized_mlp::Matrix;
using quantized_mlp::middle_of;
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
constexpr int64_t kBlock = 64;              // tokens that the workspace holds
constexpr int kMost = kLanes == 8 ? 2 : 4;  // tokens whose sums are in registers
constexpr int kVectors = 16 / kLanes;       // of a line

// Where column k of a tile lies in the 64 floats of a token: by the code's number in a word, then
// by the word.
int place_in_line(Codes codes, int k) {
  const int word = k % 32 / 8 * 4;
  const int step = k / 32;
  const int part = k % 8 / 4;
  const int pair = k % 4 / 2;
  const int odd = k % 2;
  return codes == Codes::kInt8 ? (2 * step + odd) * 16 + word + 2 * part + pair
                               : (pair + 2 * odd) * 16 + word + 2 * step + part;
}

struct Places {
  explicit Places(Codes codes) {
    for (int k = 0; k < kTileDepth; ++k) of[k] = place_in_line(codes, k);
  }
  int of[kTileDepth];
};

inline Words load_words(const uint8_t* address) {
  Words words;
  memcpy(&words, address, sizeof(words));
  return words;
}

inline Ints second_steps() {
  Ints mask = {};
  for (int lane = 0; lane < kLanes; ++lane) mask[lane] = (lane & 2) != 0 ? -1 : 0;
  return mask;
}

// What a line's codes are taken less, and their sums times; of 4 bits the lanes may be of two
// groups.
struct Group {
  Ints zero[2];
  Floats scale[2];
};

// Rows r and r + 8 of group `group`.
template <Real kReal>
Group group_at(const Matrix& matrix, int64_t row_tile, int64_t group, int row) {
  const int64_t at = (row_tile * matrix.groups + group) * kTileRows + 2 * row;
  Group one;
  for (int half = 0; half < 2; ++half) {
    one.scale[half] = broadcast(scale_at<kReal>(matrix.scales, at + half));
    one.zero[half] =
        Ints{} + (matrix.zeros != nullptr ? matrix.zeros[at + half] : middle_of(matrix.kind));
  }
  return one;
}

// Of codes of e4m3. No product is of a denormal, which a program may have told its CPU to flush:
// 2^-6 more than such a number is a normal one.
inline Floats values_of(Words codes) {
  const Words magnitude = codes & 0x7fu;
  const Ints is_small = magnitude < 8u;
  const Words bits = (magnitude << 20) + (120u << 23) - (bits_as<Words>(is_small) << 23);
  const Floats excess = bits_as<Floats>(is_small & (121 << 23));
  const Floats size = bits_as<Floats>(bits) - excess;
  return bits_as<Floats>(bits_as<Words>(size) | (codes & 0x80u) << 24);
}

// The products of a line's codes with kTokens tokens, added to `total` with their scales. x[i] is
// of the first code position of this line.
template <Codes kCodes, int kTokens>
inline void multiply_line(const uint8_t* line, const float* const (&x)[kTokens], const Group& group,
                          Floats (*total)[kMost]) {
  constexpr int kBits = bits_of(kCodes);
  Floats sums[2][kTokens] = {};
#pragma clang loop unroll(full)
  for (int v = 0; v < kVectors; ++v) {
    const Words words = load_words(line + v * kVectorBytes);
#pragma clang loop unroll(full)
    for (int code = 0; code < 32 / kBits; ++code) {
      // layout.h: of 4 bits n = half + 2 pair + 4 odd, of int8 n = half + 2 odd.
      const int half = code % 2;
      const int position = code / 2;
      const Words found = words >> (code * kBits) & ((1u << kBits) - 1u);
      const Floats weight =
          __builtin_convertvector(bits_as<Ints>(found) - group.zero[half], Floats);
#pragma clang loop unroll(full)
      for (int i = 0; i < kTokens; ++i) {
        sums[half][i] += weight * load(x[i] + position * 16 + v * kLanes);
      }
    }
  }
#pragma clang loop unroll(full)
  for (int half = 0; half < 2; ++half) {
#pragma clang loop unroll(full)
    for (int i = 0; i < kTokens; ++i) total[half][i] += sums[half][i] * group.scale[half];
  }
}

// The same of a line of e4m3, row r of a share.
template <int kTokens>
inline void multiply_e4m3_line(const uint8_t* share, int r, const float* const (&x)[kTokens],
                               Floats scale, Floats (&total)[kMost]) {
  constexpr int kPieces = kLanes / 4;  // of 16 bytes
  Floats sums[kTokens] = {};
#pragma clang loop unroll(full)
  for (int v = 0; v < kVectors; ++v) {
    Words words;
#pragma clang loop unroll(full)
    for (int i = 0; i < kPieces; ++i) {
      memcpy(reinterpret_cast<uint8_t*>(&words) + i * kLaneBytes,
             share + e4m3_lane_byte(r, v * kPieces + i), kLaneBytes);
    }
#pragma clang loop unroll(full)
    for (int code = 0; code < 4; ++code) {
      const Floats weight = values_of(words >> (code * 8) & 0xffu);
#pragma clang loop unroll(full)
      for (int i = 0; i < kTokens; ++i) sums[i] += weight * load(x[i] + code * 16 + v * kLanes);
    }
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < kTokens; ++i) total[i] += sums[i] * scale;
}

template <Codes kCodes, Real kReal, int kTokens>
inline void multiply_tile(const Matrix& matrix, int64_t row_tile, int64_t tile,
                          const float* const (&x)[kTokens], Floats (*total)[2][kMost]) {
  const uint8_t* codes = matrix.codes + (row_tile * matrix.depth_tiles + tile) * tile_bytes(kCodes);
  const int64_t first = tile * kTileDepth >> matrix.shift;
  const int64_t second = (tile * kTileDepth + 32) >> matrix.shift;
  const bool differ = second != first && second < matrix.groups;
  const Ints is_second = second_steps();
  for (int row = 0; row < kGroupRows; ++row) {
    Group group = group_at<kReal>(matrix, row_tile, first, row);
    if constexpr (kCodes != Codes::kInt8) {
      if (differ) {
        const Group other = group_at<kReal>(matrix, row_tile, second, row);
        for (int half = 0; half < 2; ++half) {
          group.scale[half] = select(is_second, other.scale[half], group.scale[half]);
          group.zero[half] = (is_second & other.zero[half]) | (~is_second & group.zero[half]);
        }
      }
    }
    if constexpr (kCodes == Codes::kInt4) {
      multiply_line<kCodes>(codes + row * kLineBytes, x, group, total[row]);
    } else if constexpr (kCodes == Codes::kE4m3) {
      for (int half = 0; half < 2; ++half) {
        multiply_e4m3_line(codes + half * kStepBytes, row, x, group.scale[half], total[row][half]);
      }
    } else {
      multiply_line<kCodes>(codes + row * kLineBytes, x, group, total[row]);
      if (differ) group = group_at<kReal>(matrix, row_tile, second, row);
      const float* later[kTokens];
      for (int i = 0; i < kTokens; ++i) later[i] = x[i] + 2 * 16;
      multiply_line<kCodes>(codes + kGroupRows * kLineBytes + row * kLineBytes, later, group,
                            total[row]);
    }
  }
}

inline float sum_of(Floats lanes) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}

// sums[i][r]: row r of the tile with token i of x, whose tokens lie `stride` floats apart.
template <Codes kCodes, Real kReal, int kTokens>
void multiply_row_tile(const Matrix& matrix, int64_t row_tile, const float* x, int64_t stride,
                       float (*sums)[kTileRows]) {
  Floats total[kGroupRows][2][kMost] = {};
  for (int64_t tile = 0; tile < matrix.depth_tiles; ++tile) {
    const float* tokens[kTokens];
    for (int i = 0; i < kTokens; ++i) tokens[i] = x + i * stride + tile * kTileDepth;
    multiply_tile<kCodes, kReal, kTokens>(matrix, row_tile, tile, tokens, total);
  }
  for (int row = 0; row < kTileRows; ++row) {
    for (int i = 0; i < kTokens; ++i) {
      sums[i][row] = sum_of(total[row % kGroupRows][row / kGroupRows][i]);
    }
  }
}

template <Codes kCodes, Real kReal>
void multiply_tokens(const Matrix& matrix, int64_t row_tile, const float* x, int64_t stride,
                     int64_t tokens, float (*sums)[kTileRows]) {
  for (; tokens >= kMost; tokens -= kMost, x += kMost * stride, sums += kMost) {
    multiply_row_tile<kCodes, kReal, kMost>(matrix, row_tile, x, stride, sums);
  }
  for (; tokens > 0; --tokens, x += stride, ++sums) {
    multiply_row_tile<kCodes, kReal, 1>(matrix, row_tile, x, stride, sums);
  }
}

struct Product {
  const Matrix& matrix;
  Real scales;

  // Of `tokens` tokens.
  void multiply(int64_t row_tile, const float* x, int64_t tokens, float (*sums)[kTileRows]) const {
    const int64_t stride = matrix.depth_tiles * kTileDepth;
    const auto run = [&]<Codes kCodes, Real kReal>() {
      multiply_tokens<kCodes, kReal>(matrix, row_tile, x, stride, tokens, sums);
    };
    const bool is_bfloat16 = scales == Real::kBfloat16;
    switch (matrix.kind) {
      case Codes::kInt4:
        return is_bfloat16 ? run.template operator()<Codes::kInt4, Real::kBfloat16>()
                           : run.template operator()<Codes::kInt4, Real::kFloat16>();
      case Codes::kInt8:
        return is_bfloat16 ? run.template operator()<Codes::kInt8, Real::kBfloat16>()
                           : run.template operator()<Codes::kInt8, Real::kFloat16>();
      case Codes::kE4m3:
        return run.template operator()<Codes::kE4m3, Real::kFloat32>();
    }
  }
};

// Floats of a token of x and of h.
int64_t x_floats(const ForwardArguments& call) {
  return call.DK * kTileDepth;
}
int64_t h_floats(const ForwardArguments& call) {
  return call.HK * kTileDepth;
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
    const Places place(mlp.gate.kind);
    const T* const from = row_of(call, first + token, normed + token * call.D);
    float* to = x + token * x_floats(call);
    for (int64_t k = 0; k < x_floats(call); k += kLanes) {
      const int64_t left = call.D - k;
      const Floats values = left > 0 ? load_up_to(from + k, left) : Floats{};
      for (int i = 0; i < kLanes; ++i) {
        to[k / kTileDepth * kTileDepth + place.of[k % kTileDepth + i]] = values[i];
      }
    }
    if (rounds_activations(call)) round_row<T>(to, x_floats(call), kUnbounded);
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
    const Places place(mlp.down.kind);
    const int64_t column = row_tile * kTileRows;
    float* const to = h + column / kTileDepth * kTileDepth;
    with_gate(mlp.gating.gate, [&]<Gate kGate>() {
      for (int64_t token = 0; token < tokens; ++token) {
        add_bias<T>(call.gate_bias, column, mlp.hidden, gate[token]);
        add_bias<T>(call.up_bias, column, mlp.hidden, up[token]);
        for (int i = 0; i < kTileRows; i += kLanes) {
          const Floats out =
              gated<kGate>(load(gate[token] + i), load(up[token] + i), mlp.gating.limit);
          for (int lane = 0; lane < kLanes; ++lane) {
            to[token * h_floats(call) + place.of[column % kTileDepth + i + lane]] = out[lane];
          }
        }
      }
    });
  }

  void round_hidden(int64_t token) const {
    round_row<T>(h + token * h_floats(call), h_floats(call), most_of_hidden<T>(mlp.gating));
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
  auto* const x = static_cast<float*>(call.workspace);
  float* const h = x + block_of(call) * x_floats(call);
  auto* const normed =
      reinterpret_cast<T*>(static_cast<char*>(call.workspace) + normed_at(block_bytes(call)));
  run_team(threads_for(worth_of(call, kMost), items, call.threads), [&](Team& team) {
    for (int64_t first = 0; first < call.M; first += kBlock) {
      const int64_t left = call.M - first;
      const Block<T> block{call, mlp, first, left < kBlock ? left : kBlock, x, h, normed};
      team.for_each_item(block.tokens, [&](int64_t token) { block.read(token); });
      team.for_each_item(call.HR, [&](int64_t tile) { block.compute_hidden(tile); });
      if (rounds_activations(call)) {
        team.for_each_item(block.tokens, [&](int64_t token) { block.round_hidden(token); });
      }
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
