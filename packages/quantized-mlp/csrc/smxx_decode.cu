// SPDX-License-Identifier: Apache-2.0
//
// The two products of the MLP for a few tokens, for every SM from 8.0 on, where reading the weights
// is the work. The weights are the 16 rows of mma.sync, tokens its 8 columns. A CTA takes one row
// tile of each matrix after the other, 16 outputs, and all of k; its eight warps take turns along
// k, a pair of tiles each, and add their sums through shared memory in the order of their numbers:
// the same bits each time, whatever M is and however many CTAs there are. While a row tile's sums
// are added up, the first codes of the next one are on their way.
//
//   threads of a CTA    role
//   warp w              pairs w, w + 8, ... of tiles of k: copies codes, scales and zeros, makes
//                       numbers of the codes, multiplies, adds scale times sum
//   lane                rows lane / 4 and 8 below; 8 of each 32 of k, as layout.h says; the same
//                       of token lane / 4 of each 8
//   then a thread       adds up two columns of a token of all warps and finishes them
//                       (outputs.cuh)
//
//   a stage             of a warp: a pair of tiles of each matrix, as TileCopy has it
//   it is filled        by cp.async, kStages - 1 pairs ahead, also over the end of a row tile
//   it is read          after wait_copies, for a lane's own copies, and __syncwarp, for the others'
//   it is free          at the next __syncwarp
//   sums                registers -> shared memory, between two __syncthreads
//
//   shared memory       | stages of each warp | sums of each warp, matrix and token: 16 floats,
//                       and 4 that nobody uses |
//   grid                x: blocks of tokens, so that CTAs with the same weights run together
//                       y: CTAs that share out the row tiles
//
// The offset that the numbers keep is taken off with the sum of x, a third product: RawNumbers.
#include "dequantize.cuh"
#include "kernels.cuh"
#include "outputs.cuh"
#include "overlap.cuh"

namespace quantized_mlp {

// Eight neighbouring k of a token; zeros beyond the last one.
__device__ __forceinline__ uint4 load_token(const unsigned short* row, int k,
                                            const ProductArguments& p) {
  const int end = static_cast<int>(p.k);
  if (p.aligned != 0) {
    return k < end ? *reinterpret_cast<const uint4*>(row + k) : uint4{};
  }
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned low = k + 2 * i < end ? row[k + 2 * i] : 0u;
    const unsigned high = k + 2 * i + 1 < end ? row[k + 2 * i + 1] : 0u;
    words[i] = low | high << 16;
  }
  return {words[0], words[1], words[2], words[3]};
}

// Of 16 columns, one of each matrix and token tile: the sums of numbers times x, and those of x.
template <int kMatrices, int kTokenTiles>
struct GroupSums {
  float numbers[kMatrices][kTokenTiles][4] = {};
  float ones[kTokenTiles][4] = {};
};

template <class Element, Codes kCodes, int kMatrices, int kTokenTiles>
struct Decode {
  using Numbers = RawNumbers<Element, kCodes>;
  static constexpr int kBits = bits_of(kCodes);
  static constexpr int kStages = decode_stages(kMatrices, kBits, kTokenTiles);
  using Copy = TileCopy<kCodes, kDecodeTiles>;
  static constexpr int kStageBytes = kMatrices * Copy::kBytes;
  static_assert(kStageBytes == stage_bytes(kDecodeTiles, kMatrices, kBits),
                "the host asks for as much");
  // Whether x of the next tile is on its way, too: as registers allow.
  static constexpr bool kAhead = kMatrices * kTokenTiles < 4;

  const ProductArguments& p;
  int lane;
  int warp;
  int distance;     // from a row tile of this CTA to its next
  unsigned stages;  // this warp's
  const unsigned short* tokens[kTokenTiles];
  float sums[kMatrices][kTokenTiles][4];
  // What is copied next: into which stage, of which tile.
  RowTile<kCodes> rows[kMatrices];
  int to_fill = 0;
  int row_tile;
  int tile;

  __device__ __forceinline__ Decode(const ProductArguments& a_p, unsigned shared,
                                    long long first_token)
      : p(a_p),
        lane(static_cast<int>(threadIdx.x) & 31),
        warp(static_cast<int>(threadIdx.x) >> 5),
        distance(static_cast<int>(gridDim.y)),
        stages(shared + static_cast<unsigned>(warp * kStages * kStageBytes)),
        row_tile(static_cast<int>(blockIdx.y)),
        tile(first_tile()) {
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) rows[j] = {p, p.b[j], row_tile};
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
      // A token beyond the last one is read as that: its sums are not stored.
      long long token = first_token + i * 8 + lane / 4;
      token = token < p.m ? token : p.m - 1;
      tokens[i] = static_cast<const unsigned short*>(p.a) + token * p.k;
    }
  }

  // Of this warp in each row tile; the next ones lie kTurn further on.
  static constexpr int kTurn = kDecodeTiles * kDecodeWarps;
  __device__ __forceinline__ int first_tile() const {
    return warp * kDecodeTiles;
  }

  __device__ __forceinline__ unsigned place(int stage, int matrix) const {
    return stages + static_cast<unsigned>(stage * kStageBytes + matrix * Copy::kBytes);
  }

  // The next pair of tiles, into the next stage; one group of copies, also where there is none.
  __device__ __forceinline__ void fill() {
    if (row_tile < p.row_tiles && tile < p.depth_tiles) {
#pragma unroll
      for (int j = 0; j < kMatrices; ++j) {
        rows[j].template copy<kDecodeTiles>(p, tile, place(to_fill, j), lane);
      }
      tile += kTurn;
      if (tile >= p.depth_tiles) {
        tile = first_tile();
        row_tile += distance;
#pragma unroll
        for (int j = 0; j < kMatrices; ++j) rows[j].move(p, distance);
      }
    }
    commit_copies();
    to_fill = to_fill + 1 == kStages ? 0 : to_fill + 1;
  }

  __device__ __forceinline__ void fill_first() {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fill();
  }

  // 32 columns: two instructions for each matrix and token tile.
  __device__ __forceinline__ void multiply_step(const uint4 (&codes)[kMatrices],
                                                const uint4 (&x)[kTokenTiles], int step,
                                                GroupSums<kMatrices, kTokenTiles>& group) {
    constexpr unsigned kOne = kIsSame<Element, Bfloat16> ? 0x3f803f80u : 0x3c003c00u;
    const unsigned ones[4] = {kOne, kOne, kOne, kOne};
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      unsigned a[kMatrices][4];
#pragma unroll
      for (int j = 0; j < kMatrices; ++j) {
        Numbers::run(codes[j], kBits == 4 ? step % 2 * 2 + part : part, a[j]);
      }
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) {
        const unsigned b0 = part == 0 ? x[i].x : x[i].z;
        const unsigned b1 = part == 0 ? x[i].y : x[i].w;
        if constexpr (Numbers::kHasOffset) {
          multiply_add(group.ones[i], ones, b0, b1, group.ones[i], Element{});
        }
#pragma unroll
        for (int j = 0; j < kMatrices; ++j) {
          multiply_add(group.numbers[j][i], a[j], b0, b1, group.numbers[j][i], Element{});
        }
      }
    }
  }

  // The sums of columns of one group, with their scales.
  __device__ __forceinline__ void add(const GroupWords<kCodes> (&groups)[kMatrices], int step,
                                      const GroupSums<kMatrices, kTokenTiles>& group) {
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) {
      const float2 scale = groups[j].scale(step, p.bfloat16_scales);
      float2 less = {};
      if constexpr (Numbers::kHasOffset) {
        const uint2 zeros = groups[j].zero(step);
        less = {Numbers::kBase + static_cast<float>(zeros.x),
                Numbers::kBase + static_cast<float>(zeros.y)};
      }
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float whole = group.numbers[j][i][c] * Numbers::kUnits[c / 2];
          if constexpr (Numbers::kHasOffset) {
            whole = fmaf(c < 2 ? -less.x : -less.y, group.ones[i][c % 2], whole);
          }
          sums[j][i][c] = fmaf(c < 2 ? scale.x : scale.y, whole, sums[j][i][c]);
        }
      }
    }
  }

  __device__ __forceinline__ void load_x(uint4 (&x)[2][kTokenTiles], int of_tile) const {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int k = of_tile * kTileDepth + step * 32 + lane % 4 * 8;
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) x[step][i] = load_token(tokens[i], k, p);
    }
  }

  // Columns of one group end with step 0 and 2 where groups are of 32, with 1 up to 64, and with 3.
  __device__ __forceinline__ bool ends_group(int step) const {
    return step == 3 || p.shift == 5 || (step == 1 && p.shift == 6);
  }

  // One row tile, whose first tiles are on their way. `stage`: the one to read.
  __device__ __forceinline__ void multiply(int& stage) {
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) {
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[j][i][c] = 0.0f;
      }
    }
    uint4 next[2][kTokenTiles];
    if (kAhead && first_tile() < p.depth_tiles) load_x(next, first_tile());
    for (int first = first_tile(); first < p.depth_tiles; first += kTurn) {
      wait_copies<kStages - 2>();
      __syncwarp();
      fill();
      GroupWords<kCodes> groups[kMatrices];
#pragma unroll
      for (int j = 0; j < kMatrices; ++j) {
        groups[j] = Copy::groups(place(stage, j), lane, p.b[j].zeros != nullptr);
      }
      GroupSums<kMatrices, kTokenTiles> group;
#pragma unroll
      for (int half = 0; half < kDecodeTiles; ++half) {
        uint4 x[2][kTokenTiles];
        if constexpr (kAhead) {
#pragma unroll
          for (int step = 0; step < 2; ++step) {
#pragma unroll
            for (int i = 0; i < kTokenTiles; ++i) x[step][i] = next[step][i];
          }
          load_x(next, half == 0 ? first + 1 : first + kTurn);  // zeros beyond the last one
        } else {
          load_x(x, first + half);
        }
        uint4 codes[kMatrices];
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          if (kBits == 8 || step == 0) {
#pragma unroll
            for (int j = 0; j < kMatrices; ++j) {
              codes[j] =
                  Copy::codes(place(stage, j), lane, half * Copy::kLoads + step % Copy::kLoads);
            }
          }
          multiply_step(codes, x[step], 2 * half + step, group);
          if (ends_group(2 * half + step)) {
            add(groups, 2 * half + step, group);
            group = {};
          }
        }
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
  }
};

template <class Element, Codes kCodes, bool kGated, int kTokenTiles>
__device__ __forceinline__ void decode(const ProductArguments& p) {
  constexpr int kMatrices = kGated ? 2 : 1;
  constexpr int kBits = bits_of(kCodes);
  constexpr int kTokens = 8 * kTokenTiles;
  constexpr int kStride = kTileRows + 4;  // floats from one token to the next: no bank conflicts
  extern __shared__ __align__(128) unsigned char memory[];
  using Sums = float[kMatrices][kTokens][kStride];
  static_assert(kDecodeWarps * sizeof(Sums) == decode_sum_bytes(kMatrices, kTokenTiles));
  constexpr int kStageMemory = kDecodeWarps * decode_stages(kMatrices, kBits, kTokenTiles) *
                               stage_bytes(kDecodeTiles, kMatrices, kBits);
  Sums* const shared = reinterpret_cast<Sums*>(memory + kStageMemory);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const long long first_token = static_cast<long long>(blockIdx.x) * kTokens;
  Decode<Element, kCodes, kMatrices, kTokenTiles> one(
      p, static_cast<unsigned>(__cvta_generic_to_shared(memory)), first_token);
  // What pack may be writing is read after it; the second product's weights it has then written.
  if constexpr (kGated) gated_mlp::wait_for_previous_kernel();
  one.fill_first();
  if constexpr (!kGated) gated_mlp::wait_for_previous_kernel();
  gated_mlp::let_next_kernel_start();
  int stage = 0;
  for (int row_tile = static_cast<int>(blockIdx.y); row_tile < p.row_tiles;
       row_tile += static_cast<int>(gridDim.y)) {
    one.multiply(stage);
    __syncthreads();  // the last row tile's sums have been read
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) {
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          shared[warp][j][i * 8 + lane % 4 * 2 + c % 2][lane / 4 + c / 2 * 8] = one.sums[j][i][c];
        }
      }
    }
    __syncthreads();
    const int token = static_cast<int>(threadIdx.x) / (kTileRows / 2);
    const int row = static_cast<int>(threadIdx.x) % (kTileRows / 2) * 2;
    if (token >= kTokens || first_token + token >= p.m) continue;
    float2 totals[2] = {};
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) {
#pragma unroll
      for (int w = 0; w < kDecodeWarps; ++w) {
        const float2 both = *reinterpret_cast<const float2*>(&shared[w][j][token][row]);
        totals[j] = {totals[j].x + both.x, totals[j].y + both.y};
      }
    }
    finish<Element, kGated>(p, first_token + token,
                            static_cast<long long>(row_tile) * kTileRows + row, totals[0],
                            totals[1]);
  }
}

}  // namespace quantized_mlp

KILN_PRODUCTS(decode, (256, quantized_mlp::kDecodeCtas))
