// SPDX-License-Identifier: Apache-2.0
//
// The two GEMMs of the MLP for a few tokens, for every SM from 8.0 on, where reading the weights is
// the work. A CTA has eight columns of the output and all of k; its four or eight warps take turns
// along k, load weights from memory into the registers that mma.sync takes them from, and add their
// sums through shared memory in the order of their numbers: the same bits each time, whatever M is.
//
// The sum does not depend on the order of k as long as both operands have the same: a thread takes
// 8 neighbouring elements, 16 bytes, where mma.sync's own layout has 2. Four threads read 64 bytes
// of a row at once, and the other 64 of the line at the next load.
//
//   threads of a CTA    role
//   warp w              the turns w, w + kWarps, ... of 64 of k: loads them, multiplies, adds up
//   lane                row lane / 4 of the weights and of the tokens, and the token 8 below; 8 of
//                       each 32 of k
//   then 4 a token      add up two columns of all warps, add biases, apply the gate, store
//
//   weights             memory -> registers, 8 / kMatrices turns at once; no stage, no barrier
//   sums                registers -> shared memory, then one __syncthreads
//   shared memory       | of each warp: of each matrix: kDecodeTokens x kDecodeColumns floats |
#include "element.cuh"
#include "gate.cuh"
#include "portable/arguments.h"
#include "portable/smxx_mma.cuh"
#include "portable/smxx_outputs.cuh"
#include "tile.h"

namespace gated_mlp {

// 16 bytes that are read once, past the L1 cache; zeros beyond k.
__device__ __forceinline__ uint4 load_weights(const unsigned short* address, bool in_range) {
  uint4 words = {};
  if (in_range) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(address));
  }
  return words;
}
__device__ __forceinline__ uint4 load_tokens(const unsigned short* address, bool in_range) {
  return in_range ? *reinterpret_cast<const uint4*>(address) : uint4{};
}

// Where this thread reads of a matrix [rows, k]. A row beyond the last one is read as that: its
// sums are not stored, and no other row's depend on them.
__device__ __forceinline__ const unsigned short* row_of(const void* matrix, long long row,
                                                        long long rows, long long k) {
  row = row < rows ? row : rows - 1;
  return static_cast<const unsigned short*>(matrix) + row * k;
}

template <class Element, int kMatrices>
struct DecodeSums {
  float sums[kMatrices][4] = {};

  // Of 32 k: two products, of the first and the second half of each thread's elements.
  __device__ __forceinline__ void multiply_into(const uint4 (&weights)[kMatrices], uint4 low,
                                                uint4 high) {
    const unsigned first[4] = {low.x, high.x, low.y, high.y};
    const unsigned second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
    for (int i = 0; i < kMatrices; ++i) {
      multiply(sums[i], first, weights[i].x, weights[i].y, Element{});
      multiply(sums[i], second, weights[i].z, weights[i].w, Element{});
    }
  }
};

template <class Element, int kMatrices, int kWarps>
__device__ __forceinline__ DecodeSums<Element, kMatrices> multiply_turns(const GemmArguments& p,
                                                                         long long column) {
  constexpr int kStep = 64;                 // k of a warp's turn: a line of each row
  constexpr int kInFlight = 8 / kMatrices;  // turns whose weights are loaded at once
  constexpr int kNext = kWarps * kStep;     // from one turn to the next
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const int group = lane >> 2;
  const unsigned short* const low = row_of(p.a, group, p.m, p.k);
  const unsigned short* const high = row_of(p.a, group + 8, p.m, p.k);
  const bool has_high = p.m > 8;
  const unsigned short* rows[kMatrices] = {row_of(p.b0, column + group, p.n, p.k)};
  if constexpr (kMatrices == 2) rows[1] = row_of(p.b1, column + group, p.n, p.k);

  DecodeSums<Element, kMatrices> sums;
  for (long long k = warp * kStep + (lane & 3) * 8; k - (lane & 3) * 8 < p.k;
       k += kInFlight * kNext) {
    uint4 weights[kInFlight][2][kMatrices];
#pragma unroll
    for (int turn = 0; turn < kInFlight; ++turn) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const long long at = k + turn * kNext + half * 32;
#pragma unroll
        for (int i = 0; i < kMatrices; ++i) {
          weights[turn][half][i] = load_weights(rows[i] + at, at < p.k);
        }
      }
    }
#pragma unroll
    for (int turn = 0; turn < kInFlight; ++turn) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const long long at = k + turn * kNext + half * 32;
        sums.multiply_into(weights[turn][half], load_tokens(low + at, at < p.k),
                           load_tokens(high + at, has_high && at < p.k));
      }
    }
  }
  return sums;
}

// The sums of all warps, in shared memory.
template <int kMatrices, int kWarps>
struct SharedSums {
  float sums[kWarps][kMatrices][kDecodeTokens][kDecodeColumns];

  // Of two neighbouring columns, in the order of the warps.
  __device__ __forceinline__ float2 total(int matrix, int token, int column) const {
    float2 total = {};
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      total.x += sums[warp][matrix][token][column];
      total.y += sums[warp][matrix][token][column + 1];
    }
    return total;
  }
};

template <class Element, bool kGated, int kWarps>
__device__ __forceinline__ void decode(const GemmArguments& p) {
  constexpr int kMatrices = kGated ? 2 : 1;
  __shared__ SharedSums<kMatrices, kWarps> shared;
  const long long first_column = static_cast<long long>(blockIdx.x) * kDecodeColumns;
  const auto own = multiply_turns<Element, kMatrices, kWarps>(p, first_column);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
#pragma unroll
  for (int i = 0; i < kMatrices; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const to = &shared.sums[warp][i][lane / 4 + half * 8][lane % 4 * 2];
      *reinterpret_cast<float2*>(to) = {own.sums[i][half * 2], own.sums[i][half * 2 + 1]};
    }
  }
  __syncthreads();
  const int token = static_cast<int>(threadIdx.x) / (kDecodeColumns / 2);
  if (token >= p.m) return;
  const int pair = static_cast<int>(threadIdx.x) % (kDecodeColumns / 2) * 2;
  const long long column = first_column + pair;
  float2 out = shared.total(0, token, pair);
  out.x += bias_at<Element>(p.bias0, column, p.n);
  out.y += bias_at<Element>(p.bias0, column + 1, p.n);
  if constexpr (kGated) {
    float2 up = shared.total(1, token, pair);
    up.x += bias_at<Element>(p.bias1, column, p.n);
    up.y += bias_at<Element>(p.bias1, column + 1, p.n);
    if (p.gate_out != nullptr) {
      store_pair<Element, true>(p, p.gate_out, token, column, pack_pair(out.x, out.y, Element{}));
      store_pair<Element, true>(p, p.up_out, token, column, pack_pair(up.x, up.y, Element{}));
    }
    with_gate(p.gating, [&](auto unit) { out = {unit.of(out.x, up.x), unit.of(out.y, up.y)}; });
  } else if (p.residual != nullptr) {
    const float2 residual = unpack_pair<Element>(residual_pair<Element, true>(p, token, column));
    out = {out.x + residual.x, out.y + residual.y};
  }
  unsigned both = pack_pair(out.x, out.y, Element{});
  if constexpr (kGated) both = bound_pair(both, p.gating.greatest, Element{});
  store_pair<Element, true>(p, p.out, token, column, both);
}

}  // namespace gated_mlp

// As many CTAs on a multiprocessor as leave a thread 128 registers.
#define KILN_DECODE(name, Element, gated, warps)                       \
  extern "C" __global__ void __launch_bounds__(32 * warps, 16 / warps) \
      name(const gated_mlp::GemmArguments arguments) {                 \
    gated_mlp::decode<gated_mlp::Element, gated, warps>(arguments);    \
  }
#define KILN_DECODES(kind, gated)                      \
  KILN_DECODE(kind##_bf16_decode4, Bfloat16, gated, 4) \
  KILN_DECODE(kind##_bf16_decode8, Bfloat16, gated, 8) \
  KILN_DECODE(kind##_f16_decode4, Float16, gated, 4)   \
  KILN_DECODE(kind##_f16_decode8, Float16, gated, 8)

KILN_DECODES(gated, true)
KILN_DECODES(plain, false)
