// SPDX-License-Identifier: Apache-2.0
//
// The two products of the MLP for more tokens than smxx_decode.cu takes, for every SM from 8.0 on:
// a ring of stages of shared memory that cp.async fills, and codes that become numbers in the main
// loop, once for 64 tokens. A CTA has 64 tokens and 16 row tiles: gated, 8 of gate and the same 8
// of up. Where few CTAs would have work, the plain product's k is split, and `finish` adds the
// parts in their order.
//
//   threads of a CTA    role
//   all 256             copy two chunks of 16 bytes of x a stage
//   warp w              copies and reads the codes of two row tiles of its own; multiplies them
//                       with all tokens
//
//   a stage is filled   by the copies that each thread commits, two tiles of k ahead
//   it is read          after wait_copies, for a thread's own copies, and __syncthreads
//   it is free          at the next __syncthreads
//
//   a stage             | x: 64 tokens x 64 k, chunk c of row r at c ^ 4 (r % 2) |
//                       | of each warp, of each of its two row tiles: a tile of k, as TileCopy
//                       has it |
#include "dequantize.cuh"
#include "float8.h"
#include "kernels.cuh"
#include "norm.cuh"
#include "outputs.cuh"
#include "overlap.cuh"

namespace quantized_mlp {

// Where chunk `chunk` of token `row` lies in a stage: two rows that one phase reads differ in their
// banks.
__device__ __forceinline__ unsigned chunk_place(int row, int chunk) {
  return static_cast<unsigned>(row * (2 * kTileDepth) + ((chunk ^ (row % 2 * 4)) << 4));
}

template <class Element, Codes kCodes, bool kGated>
struct Tiled {
  static constexpr int kPanels = 2;
  static constexpr int kBits = bits_of(kCodes);
  static constexpr int kTokenTiles = kTiledTokens / 8;
  static constexpr int kAtOnce = 2;  // token tiles whose products run at once
  static constexpr int kLoads = kBits / 4;
  static constexpr int kPanelBytes = TileCopy<kCodes, 1>::kBytes;
  static constexpr int kXBytes = kTiledTokens * kTileDepth * 2;
  static constexpr int kStageBytes = kXBytes + kTiledWarps * kPanels * kPanelBytes;
  static_assert(kStageBytes == tiled_stage_bytes(kBits), "the host asks for as much");

  const ProductArguments& p;
  unsigned shared;
  int lane;
  int warp;
  long long first_token;
  int row_tiles[kPanels];
  RowTile<kCodes> rows[kPanels];  // beyond the last one, that: it is not stored
  float sums[kPanels][kTokenTiles][4] = {};

  __device__ __forceinline__ Tiled(const ProductArguments& a_p, unsigned a_shared)
      : p(a_p),
        shared(a_shared),
        lane(static_cast<int>(threadIdx.x) & 31),
        warp(static_cast<int>(threadIdx.x) >> 5),
        first_token(static_cast<long long>(blockIdx.x) * kTiledTokens) {
    const int block = static_cast<int>(blockIdx.y) * kTiledWarps + warp;
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
      const int tile = kGated ? block : block * kPanels + i;
      row_tiles[i] = tile;
      rows[i] = {p, p.b[kGated ? i : 0], tile < p.row_tiles ? tile : p.row_tiles - 1};
    }
  }

  __device__ __forceinline__ unsigned panel_place(int panel) const {
    return static_cast<unsigned>(kXBytes + (warp * kPanels + panel) * kPanelBytes);
  }

  __device__ __forceinline__ void copy_x(unsigned stage, int tile) const {
#pragma unroll
    for (int i = 0; i < kTiledTokens * 8 / (32 * kTiledWarps); ++i) {
      const int number = static_cast<int>(threadIdx.x) + i * 32 * kTiledWarps;
      const int row = number / 8;
      const int chunk = number % 8;
      const long long token = first_token + row;
      const long long k = static_cast<long long>(tile) * kTileDepth + chunk * 8;
      const unsigned to = stage + chunk_place(row, chunk);
      const bool is_there = token < p.m && k < p.k;
      const unsigned short* const from =
          static_cast<const unsigned short*>(p.a) + (is_there ? token * p.k + k : 0);
      if (p.aligned != 0) {
        copy_async(to, from, is_there);
        continue;
      }
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const unsigned low = is_there && k + 2 * j < p.k ? from[2 * j] : 0u;
        const unsigned high = is_there && k + 2 * j + 1 < p.k ? from[2 * j + 1] : 0u;
        words[j] = low | high << 16;
      }
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]),
                   "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    }
  }

  __device__ __forceinline__ void copy(int tile, int slot) const {
    const unsigned stage = shared + static_cast<unsigned>(slot * kStageBytes);
    copy_x(stage, tile);
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
      rows[i].copy(p, tile, stage + panel_place(i), lane);
    }
  }

  __device__ __forceinline__ void multiply_step(unsigned stage, int step) {
    unsigned a[kPanels][2][4];
    float2 scale[kPanels];
    const int half = p.shift == 5 ? step : 0;
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
      const unsigned from = stage + panel_place(i);
      const GroupWords<kCodes> groups =
          TileCopy<kCodes, 1>::groups(from, lane, p.b[kGated ? i : 0].zeros != nullptr);
      const Dequantizer<Element, kCodes> codes(groups.zero(half));
      scale[i] = groups.scale(half, p.bfloat16_scales);
      const uint4 words = TileCopy<kCodes, 1>::codes(from, lane, kBits == 8 ? step : 0);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        codes.run(words, kBits == 4 ? 2 * step + part : part, a[i][part]);
      }
    }
#pragma unroll
    for (int first = 0; first < kTokenTiles; first += kAtOnce) {
      uint4 x[kAtOnce];
      float group[kAtOnce][kPanels][4] = {};
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        x[n] = load_shared(stage + chunk_place((first + n) * 8 + lane / 4, step * 4 + lane % 4));
      }
#pragma unroll
      for (int part = 0; part < 2; ++part) {
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
#pragma unroll
          for (int i = 0; i < kPanels; ++i) {
            multiply_add(group[n][i], a[i][part], part == 0 ? x[n].x : x[n].z,
                         part == 0 ? x[n].y : x[n].w, group[n][i], Element{});
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
#pragma unroll
        for (int i = 0; i < kPanels; ++i) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            sums[i][first + n][c] =
                fmaf(c < 2 ? scale[i].x : scale[i].y, group[n][i][c], sums[i][first + n][c]);
          }
        }
      }
    }
  }

  // Tiles of k [first, last).
  __device__ __forceinline__ void multiply(int first, int last) {
#pragma unroll
    for (int i = 0; i < kTiledStages - 1; ++i) {
      if (first + i < last) copy(first + i, i);
      commit_copies();
    }
    for (int tile = first; tile < last; ++tile) {
      wait_copies<kTiledStages - 2>();
      __syncthreads();
      const int ahead = tile + kTiledStages - 1;
      if (ahead < last) copy(ahead, (ahead - first) % kTiledStages);
      commit_copies();
      const unsigned stage =
          shared + static_cast<unsigned>((tile - first) % kTiledStages * kStageBytes);
#pragma unroll
      for (int step = 0; step < 2; ++step) multiply_step(stage, step);
    }
  }

  __device__ __forceinline__ void store(int part) const {
    const bool odd_row = lane / 4 % 2 != 0;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float2 both[kPanels];
#pragma unroll
        for (int i = 0; i < kPanels; ++i) {
          both[i] = turned(sums[i][n][half * 2], sums[i][n][half * 2 + 1], odd_row);
        }
        const long long token = first_token + n * 8 + lane % 4 * 2 + (odd_row ? 1 : 0);
        const int row = half * 8 + lane / 8 * 2;
        if constexpr (kGated) {
          if (row_tiles[0] >= p.row_tiles) continue;
          finish<Element, true>(p, token, static_cast<long long>(row_tiles[0]) * kTileRows + row,
                                both[0], both[1]);
        } else {
#pragma unroll
          for (int i = 0; i < kPanels; ++i) {
            if (p.splits > 1) {
              if (row_tiles[i] >= p.row_tiles) continue;
              store_part(p, part, token, static_cast<long long>(row_tiles[i]) * kTileRows + row,
                         both[i]);
            } else if (row_tiles[i] < p.row_tiles) {
              finish<Element, false>(
                  p, token, static_cast<long long>(row_tiles[i]) * kTileRows + row, both[i], {});
            }
          }
        }
      }
    }
  }
};

template <class Element, Codes kCodes, bool kGated>
__device__ __forceinline__ void tiled(const ProductArguments& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  gated_mlp::wait_for_previous_kernel();
  gated_mlp::let_next_kernel_start();
  const int part = static_cast<int>(blockIdx.z);
  const int tiles = (p.depth_tiles + p.splits - 1) / p.splits;
  const int first = part * tiles;
  const int last = first + tiles < p.depth_tiles ? first + tiles : p.depth_tiles;
  Tiled<Element, kCodes, kGated> one(p, static_cast<unsigned>(__cvta_generic_to_shared(memory)));
  one.multiply(first, last);
  one.store(part);
}

// y of the parts of its sums, in their order: two columns a thread.
template <class Element>
__device__ __forceinline__ void add_parts(const ProductArguments& p) {
  gated_mlp::wait_for_previous_kernel();
  gated_mlp::let_next_kernel_start();
  const long long pairs = (p.n + 1) / 2;
  const long long number = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  const long long token = number / pairs;
  const long long column = number % pairs * 2;
  if (token >= p.m) return;
  float2 total = {};
  for (int part = 0; part < p.splits; ++part) {
    const float* const from = p.parts + (part * p.m + token) * p.n + column;
    total.x += from[0];
    if (column + 1 < p.n) total.y += from[1];
  }
  finish<Element, false>(p, token, column, total, {});
}

// [m, k] of x's dtype -> the numbers that float8.h rounds them to, a warp a block of 128 columns.
// Of those beyond what x's dtype has, as 65536 of float16, each is the largest that it has.
template <class Element>
__device__ __forceinline__ void round8(const ArrangeArguments& p) {
  gated_mlp::wait_for_previous_kernel();
  gated_mlp::let_next_kernel_start();
  const long long blocks = (p.k + kFloat8Block - 1) / kFloat8Block;
  const long long block = (static_cast<long long>(blockIdx.x) * 256 + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (block >= p.m * blocks) return;  // whole warps
  const long long first = block % blocks * kFloat8Block + lane;
  const Element* const from = static_cast<const Element*>(p.x) + block / blocks * p.k;
  Element* const to = static_cast<Element*>(p.to) + block / blocks * p.k;
  float values[4] = {};
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i * 32 < p.k) values[i] = gated_mlp::load_float(from[first + i * 32]);
    largest = larger_finite(largest, __float_as_uint(values[i]));
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    largest = larger_finite(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  const int exponent = float8_exponent(largest, float8_least(!kIsSame<Element, Bfloat16>));
  const float scale = __uint_as_float(power_bits(exponent));
  const float by_scale = __uint_as_float(power_bits(-exponent));
  const float most = __uint_as_float(kIsSame<Element, Bfloat16> ? 0x7f7f0000u : 0x477fe000u);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i * 32 >= p.k) continue;
    const unsigned bits = float8_rounded(__float_as_uint(values[i] * by_scale));
    const float rounded = fminf(fmaxf(__uint_as_float(bits) * scale, -most), most);
    gated_mlp::store_float(to + first + i * 32, is_finite(__float_as_uint(values[i]))
                                                    ? rounded
                                                    : __uint_as_float(0x7fc00000u));
  }
}

// A row of x normed, for kernels that do not norm it, a CTA each. Read twice, the second time from
// a cache; its sum of squares is added in one order.
template <class Element>
__device__ __forceinline__ void norm_row(const NormRowsArguments& p) {
  __shared__ float sums[8];
  gated_mlp::wait_for_previous_kernel();
  gated_mlp::let_next_kernel_start();
  const bool aligned = p.aligned != 0;
  const long long at = static_cast<long long>(blockIdx.x) * p.k;
  const auto* const from = static_cast<const unsigned short*>(p.x) + at;
  auto* const to = static_cast<unsigned short*>(p.to) + at;
  const auto* const weight = static_cast<const unsigned short*>(p.norm.weight);
  const auto left_of = [&](long long k) { return p.k - k < 8 ? static_cast<int>(p.k - k) : 8; };
  const long long first = static_cast<long long>(threadIdx.x) * 8;
  float sum = 0.0f;
  for (long long k = first; k < p.k; k += 256 * 8) {
    sum = plus_squares<Element>(sum, load_token(from + k, left_of(k), aligned));
  }
  sum = sum_of_warp(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.0f;
#pragma unroll
  for (int w = 0; w < 8; ++w) sum += sums[w];
  const float factor = factor_of(sum, p.k, p.norm.eps);
  for (long long k = first; k < p.k; k += 256 * 8) {
    const int left = left_of(k);
    const uint4 normed =
        each_of<Element>(load_token(from + k, left, aligned), load_token(weight + k, left, aligned),
                         [&](float x, float w) { return x * factor * (p.norm.offset + w); });
    if (aligned) {
      *reinterpret_cast<uint4*>(to + k) = normed;
      continue;
    }
    const unsigned words[4] = {normed.x, normed.y, normed.z, normed.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < left) to[k + i] = static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16));
    }
  }
}

}  // namespace quantized_mlp

#define KILN_TILED(name, Element, gated)                                   \
  KILN_PRODUCT(tiled, (256, 1), name##_int4, Element, Codes::kInt4, gated) \
  KILN_PRODUCT(tiled, (256, 1), name##_int8, Element, Codes::kInt8, gated) \
  KILN_PRODUCT(tiled, (256, 1), name##_e4m3, Element, Codes::kE4m3, gated)
KILN_TILED(tiled_gated_bf16, Bfloat16, true)
KILN_TILED(tiled_gated_f16, Float16, true)
KILN_TILED(tiled_plain_bf16, Bfloat16, false)
KILN_TILED(tiled_plain_f16, Float16, false)

KILN_PRODUCT(add_parts, (256), finish_bf16, Bfloat16)
KILN_PRODUCT(add_parts, (256), finish_f16, Float16)

extern "C" __global__ void __launch_bounds__(256)
    round8_bf16(const __grid_constant__ quantized_mlp::ArrangeArguments p) {
  quantized_mlp::round8<quantized_mlp::Bfloat16>(p);
}
extern "C" __global__ void __launch_bounds__(256)
    round8_f16(const __grid_constant__ quantized_mlp::ArrangeArguments p) {
  quantized_mlp::round8<quantized_mlp::Float16>(p);
}

extern "C" __global__ void __launch_bounds__(256)
    norm_rows_bf16(const __grid_constant__ quantized_mlp::NormRowsArguments p) {
  quantized_mlp::norm_row<quantized_mlp::Bfloat16>(p);
}
extern "C" __global__ void __launch_bounds__(256)
    norm_rows_f16(const __grid_constant__ quantized_mlp::NormRowsArguments p) {
  quantized_mlp::norm_row<quantized_mlp::Float16>(p);
}
