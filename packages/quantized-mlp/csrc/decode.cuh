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
//                       and 4 that nobody uses | x normed |
//   grid                x: blocks of tokens, so that CTAs with the same weights run together
//                       y: CTAs that share out the row tiles
//
// The offset that the numbers keep is taken off with the sum of x, a third product: RawNumbers.
// Instructions are the limit of four bits. So the loop has a form without branches for what is
// common (kWhole): x aligned, k of whole pairs, and a pair's columns in one group.
//
// With a norm in front (kNormed) the gated product is of x normed: before the first row tile a CTA
// writes it, rounded once, to shared memory, while the first codes are on their way. It is read
// from there, and has the bits that norm_rows writes.
#pragma once

#include "dequantize.cuh"
#include "kernels.cuh"
#include "norm.cuh"
#include "outputs.cuh"
#include "overlap.cuh"

namespace quantized_mlp {

// Of 16 columns, one of each matrix and token tile: the sums of numbers times x, and those of x.
template <int kMatrices, int kTokenTiles>
struct GroupSums {
  float numbers[kMatrices][kTokenTiles][4] = {};
  float ones[kTokenTiles][4] = {};
};

// Keeps a value in its registers: the compiler would compute it anew in each turn.
__device__ __forceinline__ void keep(long long& value) {
  asm volatile("" : "+l"(value));
}
__device__ __forceinline__ void keep(unsigned& value) {
  asm volatile("" : "+r"(value));
}
__device__ __forceinline__ void prefetch(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

template <class Element, Codes kCodes, int kMatrices, int kTokenTiles, bool kNormed>
struct Decode {
  using Numbers = RawNumbers<Element, kCodes>;
  static constexpr int kBits = bits_of(kCodes);
  static constexpr int kStages =
      kNormed ? normed_stages(kBits) : decode_stages(kMatrices, kBits, kTokenTiles);
  using Copy = TileCopy<kCodes, kDecodeTiles>;
  static constexpr int kStageBytes = kMatrices * Copy::kBytes;
  static_assert(kStageBytes == stage_bytes(kDecodeTiles, kMatrices, kBits),
                "the host asks for as much");
  static constexpr int kTileBytes = tile_bytes(kCodes);
  static constexpr int kGroupBytes = kTileRows * scale_bytes(kCodes);
  // Whether x of the next pair is on its way, too: as registers allow.
  static constexpr bool kAhead = kMatrices * kTokenTiles < 4 || kCodes == Codes::kInt4;
  using X = uint4[kDecodeTiles][2][kTokenTiles];  // a lane's, of a pair: tile, 32 columns, token
  // From a warp's pair to its next, of a row tile.
  static constexpr int kTurn = kDecodeTiles * kDecodeWarps;

  const ProductArguments& p;
  int lane;
  int first_tile;    // of this warp in each row tile
  unsigned stages;   // this warp's
  unsigned to_read;  // the stage's place
  bool has_zeros;
  long long tokens[kTokenTiles];  // from a's first number to this lane's first
  unsigned normed;                // this lane's first of x, in shared memory
  X x;  // of the pair that is multiplied; what has been, is the next one's
  float sums[kMatrices][kTokenTiles][4];
  // What is copied next: into which stage, of which tile.
  unsigned to_fill;
  int row_tile;
  int tile;
  long long codes_at;       // bytes from a matrix's first to this lane's in the tile,
  long long scales_at;      // and to this lane's in the row tile's first group
  long long codes_to_next;  // from behind a row tile's last pair to the CTA's next row tile
  long long scales_to_next;

  // `room`: in shared memory, of what is normed.
  __device__ __forceinline__ Decode(const ProductArguments& a_p, unsigned shared, unsigned room,
                                    long long first_token)
      : p(a_p),
        lane(static_cast<int>(threadIdx.x) & 31),
        first_tile(static_cast<int>(threadIdx.x) / 32 * kDecodeTiles),
        stages(shared + threadIdx.x / 32 * (kStages * kStageBytes)),
        has_zeros(false),
        row_tile(static_cast<int>(blockIdx.y)),
        tile(first_tile),
        codes_at((static_cast<long long>(row_tile) * p.depth_tiles + tile) * kTileBytes +
                 lane_byte<kCodes>(lane)),
        scales_at(static_cast<long long>(row_tile) * p.groups * kGroupBytes +
                  lane / 4 * (2 * scale_bytes(kCodes))) {
    const int turns = (p.depth_tiles - first_tile + kTurn - 1) / kTurn;
    const auto distance = static_cast<long long>(gridDim.y);
    codes_to_next = (distance * p.depth_tiles - turns * kTurn) * kTileBytes;
    scales_to_next = distance * p.groups * kGroupBytes;
    keep(codes_to_next);
    keep(scales_to_next);
    keep(stages);
    to_read = to_fill = stages;
    if (first_tile >= p.depth_tiles) row_tile = p.row_tiles;  // this warp has nothing
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) has_zeros = has_zeros || p.b[j].zeros != nullptr;
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
      // A token beyond the last one is read as that: its sums are not stored.
      long long token = first_token + i * 8 + lane / 4;
      token = token < p.m ? token : p.m - 1;
      if constexpr (kNormed) {
        normed = room + static_cast<unsigned>((token - first_token) * normed_stride(p.k)) +
                 lane % 4 * 16u;
        keep(normed);
      } else {
        tokens[i] = token * p.k + lane % 4 * 8;
        keep(tokens[i]);
      }
    }
  }

  __device__ __forceinline__ void step_stage(unsigned& place) const {
    place += kStageBytes;
    if (place == stages + kStages * kStageBytes) place = stages;
  }
  __device__ __forceinline__ static unsigned place_of(unsigned stage, int matrix) {
    return stage + static_cast<unsigned>(matrix * Copy::kBytes);
  }

  // The next pair of tiles, into the next stage; one group of copies, also where there is none.
  template <bool kWhole>
  __device__ __forceinline__ void fill() {
    const bool is_there = row_tile < p.row_tiles;
    const bool has_second = kWhole || tile + 1 < p.depth_tiles;
    const int group = kWhole ? (tile * kTileDepth) >> p.shift : group_at(p, tile, lane);
    const long long scales = scales_at + group * static_cast<long long>(kGroupBytes);
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) {
      const unsigned to = place_of(to_fill, j);
      Copy::copy_codes(to, lane, p.b[j].codes + codes_at, is_there, has_second);
      Copy::copy_scales(to, lane, p.b[j].scales + scales, is_there);
    }
    if (Numbers::kHasOffset && has_zeros) {
      const long long zeros = scales >> 1 & ~3ll;  // half of the bytes; a word is of two row pairs
#pragma unroll
      for (int j = 0; j < kMatrices; ++j) {
        Copy::copy_zeros(place_of(to_fill, j), lane, p.b[j].zeros + zeros,
                         is_there && p.b[j].zeros != nullptr);
      }
    }
    tile += kTurn;
    codes_at += kTurn * kTileBytes;
    if (tile >= p.depth_tiles) {
      tile = first_tile;
      row_tile += static_cast<int>(gridDim.y);
      codes_at += codes_to_next;
      scales_at += scales_to_next;
    }
    commit_copies();
    step_stage(to_fill);
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
    float2 less[kMatrices];
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) {
      less[j].x = less[j].y = Numbers::kHasOffset ? Numbers::kBase + middle_of(kCodes) : 0;
    }
    if (Numbers::kHasOffset && has_zeros) {
#pragma unroll
      for (int j = 0; j < kMatrices; ++j) {
        if (p.b[j].zeros == nullptr) continue;
        const uint2 zeros = Copy::zeros_of(place_of(to_read, j), lane, step);
        less[j] = {Numbers::kBase + static_cast<float>(zeros.x),
                   Numbers::kBase + static_cast<float>(zeros.y)};
      }
    }
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) {
      const float2 scale = groups[j].scale(step, p.bfloat16_scales);
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float whole = group.numbers[j][i][c] * Numbers::kUnits[c / 2];
          if constexpr (Numbers::kHasOffset) {
            whole = fmaf(c < 2 ? -less[j].x : -less[j].y, group.ones[i][c % 2], whole);
          }
          sums[j][i][c] = fmaf(c < 2 ? scale.x : scale.y, whole, sums[j][i][c]);
        }
      }
    }
  }

  // Where 32 columns of a tile are, of what is normed.
  __device__ __forceinline__ unsigned normed_at(int of_tile, int step) const {
    return normed + static_cast<unsigned>(of_tile * (2 * kTileDepth) + step * 64);
  }

  // x of a tile.
  template <bool kWhole>
  __device__ __forceinline__ void load_x(uint4 (&x)[2][kTokenTiles], int of_tile) const {
    if constexpr (kNormed) {
      static_assert(kTokenTiles == 1);
#pragma unroll
      for (int step = 0; step < 2; ++step) x[step][0] = load_shared(normed_at(of_tile, step));
    } else {
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) {
        const auto* const from = static_cast<const unsigned short*>(p.a) + tokens[i] +
                                 static_cast<long long>(of_tile) * kTileDepth;
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          if constexpr (kWhole) {
            x[step][i] = *reinterpret_cast<const uint4*>(from + step * 32);
          } else {
            const int left =
                static_cast<int>(p.k) - of_tile * kTileDepth - step * 32 - lane % 4 * 8;
            x[step][i] = load_token(from + step * 32, left, p.aligned != 0);
          }
        }
      }
    }
  }
  // Columns of one group end with step 0 and 2 where groups are of 32, with 1 up to 64, and with 3.
  __device__ __forceinline__ bool ends_group(int step) const {
    return step == 3 || p.shift == 5 || (step == 1 && p.shift == 6);
  }

  // A pair, which is in stage to_read. `following`: the pair after it, in this row tile or the
  // next.
  template <bool kWhole>
  __device__ __forceinline__ void multiply_pair(int first, int following) {
    GroupWords<kCodes> groups[kMatrices];
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) groups[j] = Copy::groups(place_of(to_read, j), lane, false);
    GroupSums<kMatrices, kTokenTiles> group;
#pragma unroll
    for (int half = 0; half < kDecodeTiles; ++half) {
      if constexpr (!kAhead) load_x<kWhole>(x[half], first + half);
      uint4 codes[kMatrices];
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        if (kBits == 8 || step == 0) {
#pragma unroll
          for (int j = 0; j < kMatrices; ++j) {
            codes[j] =
                Copy::codes(place_of(to_read, j), lane, half * Copy::kLoads + step % Copy::kLoads);
          }
        }
        multiply_step(codes, x[half][step], 2 * half + step, group);
        if (kWhole ? half == 1 && step == 1 : ends_group(2 * half + step)) {
          add(groups, 2 * half + step, group);
          group = {};
        }
      }
      if constexpr (kAhead) load_x<kWhole>(x[half], following + half);
    }
  }

  // The first pairs' codes, from memory into the L2 cache, where the kernel may have to wait.
  __device__ __forceinline__ void prefetch_first() const {
#if __CUDA_ARCH__ >= 900
    if (row_tile >= p.row_tiles) return;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
#pragma unroll
      for (int half = 0; half < kDecodeTiles; ++half) {
        if (tile + i * kTurn + half >= p.depth_tiles) return;
#pragma unroll
        for (int j = 0; j < kMatrices; ++j) {
          const unsigned char* const codes =
              p.b[j].codes + codes_at + (i * kTurn + half) * kTileBytes;
#pragma unroll
          for (int load = 0; load < Copy::kLoads; ++load) prefetch(codes + load * kStepBytes);
        }
      }
    }
#endif
  }

  // One row tile after the other. `take` gets their sums. `begin` starts copies of x, a group, and
  // `norm` norms it.
  template <bool kWhole, class Begin, class NormX, class Take>
  __device__ __forceinline__ void run(Begin begin, NormX norm, Take take) {
    // What pack may be writing is read after it; the second product's weights it has then written.
    constexpr bool kMayBeWritten = kMatrices == 2;
    if constexpr (kMayBeWritten) {
      prefetch_first();
      gated_mlp::wait_for_previous_kernel();
    }
    begin();
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fill<kWhole>();
    if constexpr (!kMayBeWritten) gated_mlp::wait_for_previous_kernel();
    gated_mlp::let_next_kernel_start();
    if constexpr (kNormed) norm();
    if (kAhead && first_tile < p.depth_tiles) {
#pragma unroll
      for (int half = 0; half < kDecodeTiles; ++half) load_x<kWhole>(x[half], first_tile + half);
    }
    for (int row = static_cast<int>(blockIdx.y); row < p.row_tiles;
         row += static_cast<int>(gridDim.y)) {
#pragma unroll
      for (int i = 0; i < kMatrices * kTokenTiles * 4; ++i) {
        sums[i / 4 / kTokenTiles][i / 4 % kTokenTiles][i % 4] = 0.0f;
      }
#pragma unroll 1
      for (int first = first_tile; first < p.depth_tiles; first += kTurn) {
        wait_copies<kStages - 2>();
        __syncwarp();
        fill<kWhole>();
        multiply_pair<kWhole>(first, first + kTurn < p.depth_tiles ? first + kTurn : first_tile);
        step_stage(to_read);
      }
      take(row);
    }
  }
};

// What a CTA does before its first row tile, of the norm: thread t has vectors t, t + 256, ... of
// eight columns of each token, also of zeros beyond the last.
template <class Element>
struct NormPrologue {
  const ProductArguments& p;
  const NormArguments& norm;
  unsigned room;
  int vectors;

  __device__ __forceinline__ NormPrologue(const ProductArguments& a_p, const NormArguments& a_norm,
                                          unsigned a_room)
      : p(a_p), norm(a_norm), room(a_room), vectors(static_cast<int>(normed_columns(p.k) / 8)) {}

  template <class Use>
  __device__ __forceinline__ void each_vector(Use use) const {
#pragma unroll
    for (int i = 0; i < kNormVectors; ++i) {
      const int vector = static_cast<int>(threadIdx.x) + i * 32 * kDecodeWarps;
      if (vector < vectors) use(i, vector);
    }
  }
  __device__ __forceinline__ int left_of(int vector) const {
    return static_cast<int>(p.k) - vector * 8;
  }
  __device__ __forceinline__ void load_weights(uint4 (&weights)[kNormVectors]) const {
    each_vector([&](int i, int vector) {
      weights[i] = load_token(static_cast<const unsigned short*>(norm.weight) + vector * 8,
                              left_of(vector), norm.aligned != 0);
    });
  }
  __device__ __forceinline__ unsigned place_of(int token, int vector) const {
    return room + static_cast<unsigned>(token * normed_stride(p.k)) +
           static_cast<unsigned>(vector * 16);
  }

  // The CTA's tokens, all of the call's, as they are.
  __device__ __forceinline__ void copy_x() const {
    const auto* const x = static_cast<const unsigned short*>(p.a);
    for (int token = 0; token < static_cast<int>(p.m); ++token) {
      each_vector([&](int, int vector) {
        const unsigned short* const from = x + token * p.k + vector * 8;
        const unsigned to = place_of(token, vector);
        if (p.aligned != 0) {
          const bool in_range = left_of(vector) > 0;
          copy_async(to, in_range ? from : x, in_range);
        } else {
          store_shared(to, load_token(from, left_of(vector), false));
        }
      });
    }
    commit_copies();
  }

  // Normed, after a thread's own copies. `sums`: of each token and warp.
  __device__ __forceinline__ void norm_x(float* sums) const {
    const auto tokens = static_cast<int>(p.m);
    uint4 weights[kNormVectors];
    load_weights(weights);
    for (int token = 0; token < tokens; ++token) {
      float sum = 0.0f;
      each_vector([&](int, int vector) {
        sum = plus_squares<Element>(sum, load_shared(place_of(token, vector)));
      });
      sum = sum_of_warp(sum);
      if (threadIdx.x % 32 == 0) sums[token * kDecodeWarps + threadIdx.x / 32] = sum;
    }
    __syncthreads();
    for (int token = 0; token < tokens; ++token) {
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < kDecodeWarps; ++w) sum += sums[token * kDecodeWarps + w];
      const float factor = factor_of(sum, p.k, norm.eps);
      each_vector([&](int i, int vector) {
        const unsigned at = place_of(token, vector);
        store_shared(at, each_of<Element>(load_shared(at), weights[i], [&](float x, float weight) {
                       return x * factor * (norm.offset + weight);
                     }));
      });
    }
    __syncthreads();
  }
};

template <class Element, Codes kCodes, bool kGated, int kTokenTiles, bool kNormed>
__device__ __forceinline__ void decode(const ProductArguments& p, const NormArguments& norm) {
  constexpr int kMatrices = kGated ? 2 : 1;
  constexpr int kTokens = 8 * kTokenTiles;
  constexpr int kStride = kTileRows + 4;  // floats from one token to the next: no bank conflicts
  extern __shared__ __align__(128) unsigned char memory[];
  using Sums = float[kMatrices][kTokens][kStride];
  static_assert(kDecodeWarps * sizeof(Sums) == decode_sum_bytes(kMatrices, kTokenTiles));
  using Decode = quantized_mlp::Decode<Element, kCodes, kMatrices, kTokenTiles, kNormed>;
  constexpr int kStageMemory = kDecodeWarps * Decode::kStages * Decode::kStageBytes;
  constexpr int kRoomAt = kStageMemory + kDecodeWarps * static_cast<int>(sizeof(Sums));
  static_assert(!kNormed || kRoomAt == normed_room_at(bits_of(kCodes)));
  Sums* const shared = reinterpret_cast<Sums*>(memory + kStageMemory);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const long long first_token = static_cast<long long>(blockIdx.x) * kTokens;
  const auto place = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  Decode one(p, place, place + kRoomAt, first_token);
  const NormPrologue<Element> prologue(p, norm, place + kRoomAt);
  const auto take = [&](int row_tile) {
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
    if (token >= kTokens || first_token + token >= p.m) return;
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
  };
  const auto begin = [&] {
    if constexpr (kNormed) prologue.copy_x();
  };
  const auto norm_x = [&] {
    if constexpr (kNormed) {
      wait_copies<Decode::kStages - 1>();  // those of x, of this thread
      prologue.norm_x(&shared[0][0][0][0]);
    }
  };
  if (p.whole_pairs != 0) {
    one.template run<true>(begin, norm_x, take);
  } else {
    one.template run<false>(begin, norm_x, take);
  }
}

template <class Element, Codes kCodes, bool kGated, int kTokenTiles>
__device__ __forceinline__ void decode(const ProductArguments& p) {
  decode<Element, kCodes, kGated, kTokenTiles, false>(p, {});
}

}  // namespace quantized_mlp
