// SPDX-License-Identifier: Apache-2.0
//
// The two GEMMs of the MLP for every SM from 8.0 on: cp.async into a ring of shared-memory stages,
// ldmatrix, mma.sync m16n8k16, fp32 accumulation. Every thread of a CTA copies and multiplies. One
// mainloop and one epilogue serve both: smxx_gated.cu writes what gate.h makes of
// x gate^T + gate_bias and x up^T + up_bias; smxx_plain.cu writes h down^T + down_bias and knows no
// gate. Every output is one accumulator that runs through k in order, 16 at a time, in every tile
// shape: the result of a row does not depend on how many rows there are. Device only.
//
//   threads of a CTA    role
//   all kThreads        copy a chunk of 16 bytes of each kRowsPerPass-th row; multiply
//   warp (i, j)         of 2 x 2, or 4 x 2: the sums of the i-th part of the rows by the j-th part
//                       of the columns
//
//   a stage is filled   by the copies that each thread commits, kStages - 1 blocks of k ahead
//   it is read          after wait_copies, for a thread's own copies, and __syncthreads, for the
//                       others'
//   it is free          at the __syncthreads in its last step: every warp has then read it
//
//   a stage             | a: kRows x kDepth | b: kColumns x kDepth; gated: gate, then up |
//   a row of it         kChunks chunks, each at the place that chunk_offset (tile.h) says
#pragma once

#include "element.cuh"
#include "portable/arguments.h"
#include "portable/smxx_mma.cuh"
#include "portable/smxx_outputs.cuh"
#include "tile.h"

namespace gated_mlp {

// Rows, columns and k beyond the tensors are filled with zeros in both operands: a NaN or an
// infinity next to them must not leak through 0 * NaN.
__device__ __forceinline__ void copy_chunk(unsigned shared, const void* global, bool in_range) {
  const int bytes = in_range ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}

// first or second, without a branch: for `?:` the compiler takes all copies of a stage out of the
// loop's straight line, away from the multiplications that they should run among.
__device__ __forceinline__ const void* select(bool condition, const void* first,
                                              const void* second) {
  const void* chosen;
  asm("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nselp.b64 %0, %1, %2, p;\n}"
      : "=l"(chosen)
      : "l"(first), "l"(second), "r"(static_cast<int>(condition)));
  return chosen;
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&fragment)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(shared)
               : "memory");
}

// One thread's share of copying kRows rows of a [rows, k] matrix, starting at row `first`: a chunk
// of each kRowsPerPass-th row. The swizzle repeats after that many rows, so that the places in
// shared memory lie at constant distances.
template <class T, int kRows, bool kAligned>
struct RowCopy {
  static constexpr int kPasses = kRows / T::kRowsPerPass;
  static_assert(T::kRowsPerPass % 8 == 0, "the swizzle repeats after 8 rows");
  const unsigned short* source;  // of pass 0, in the block of k that comes next
  unsigned rows_in_range;        // one bit a pass

  __device__ __forceinline__ RowCopy(const void* matrix, long long rows, long long k,
                                     long long first) {
    const int row = static_cast<int>(threadIdx.x) / T::kChunks;
    const int chunk = static_cast<int>(threadIdx.x) % T::kChunks;
    source = static_cast<const unsigned short*>(matrix) + (first + row) * k + chunk * 8;
    rows_in_range = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (first + row + pass * T::kRowsPerPass < rows) rows_in_range |= 1u << pass;
    }
  }

  // Copies the next block of k to `shared`, this thread's place of pass 0. `left`: elements of k
  // from this thread's chunk on. `valid`: an address for copies that read nothing.
  __device__ __forceinline__ void copy(unsigned shared, const void* valid, long long pass_stride,
                                       long long left) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const bool row_in_range = (rows_in_range >> pass & 1u) != 0;
      const unsigned short* from = source + pass * pass_stride;
      const unsigned to = shared + pass * T::kRowsPerPass * T::kRowBytes;
      if constexpr (kAligned) {
        const bool in_range = row_in_range && left > 0;  // k is a multiple of 8
        copy_chunk(to, select(in_range, from, valid), in_range);
      } else {
        copy_elements(to, from, row_in_range, left);
      }
    }
    source += T::kDepth;
  }

  // The same for matrices whose rows are not 16-byte aligned: eight guarded loads.
  __device__ __forceinline__ static void copy_elements(unsigned shared, const unsigned short* from,
                                                       bool row_in_range, long long left) {
    unsigned word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned low = row_in_range && 2 * i < left ? from[2 * i] : 0u;
      const unsigned high = row_in_range && 2 * i + 1 < left ? from[2 * i + 1] : 0u;
      word[i] = low | high << 16;
    }
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(word[0]),
                 "r"(word[1]), "r"(word[2]), "r"(word[3])
                 : "memory");
  }
};

// The copies of one block of k after the other: A, then B, whose two halves are gate and up in a
// gated kernel.
template <class T, bool kGated, bool kAligned>
struct StageCopy {
  RowCopy<T, T::kRows, kAligned> a;
  RowCopy<T, T::kColumns / 2, kAligned> b0;
  RowCopy<T, T::kColumns / 2, kAligned> b1;
  const void* valid;  // a kernel argument, so that it needs no register
  long long pass_stride;
  long long left;
  unsigned place;

  __device__ __forceinline__ StageCopy(const GemmArguments& p, long long row, long long column)
      : a(p.a, p.m, p.k, row),
        b0(p.b0, p.n, p.k, column),
        b1(kGated ? p.b1 : p.b0, p.n, p.k, kGated ? column : column + T::kColumns / 2),
        valid(p.a),
        pass_stride(T::kRowsPerPass * p.k),
        left(p.k - static_cast<int>(threadIdx.x) % T::kChunks * 8),
        place(chunk_offset<T>(static_cast<int>(threadIdx.x) / T::kChunks,
                              static_cast<int>(threadIdx.x) % T::kChunks)) {}

  __device__ __forceinline__ void copy_next(unsigned stage) {
    const unsigned to = stage + place;
    a.copy(to, valid, pass_stride, left);
    b0.copy(to + T::kOperandBytes, valid, pass_stride, left);
    b1.copy(to + T::kOperandBytes + T::kColumns / 2 * T::kRowBytes, valid, pass_stride, left);
    left -= T::kDepth;
  }
};

template <class T>
using Sums = float[T::kRowBlocks][T::kColumnBlocks][4];

// What a warp multiplies in one step of 16 k.
template <class T>
struct Fragments {
  unsigned a[T::kRowBlocks][4];
  unsigned b[T::kColumnBlocks / 2][4];

  // sums += A B^T over the 16 k.
  template <class Element>
  __device__ __forceinline__ void multiply_into(Sums<T>& sums) const {
#pragma unroll
    for (int i = 0; i < T::kRowBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < T::kColumnBlocks; ++j) {
        multiply(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], Element{});
      }
    }
  }
};

// Where a thread reads them from: one place a step, and constant distances from there, since blocks
// are 8 rows and the swizzle repeats after those.
template <class T, bool kGated>
struct FragmentPlaces {
  static constexpr int kSteps = T::kDepth / 16;
  static_assert(T::kColumnBlocks == 2 || T::kColumnBlocks % 4 == 0,
                "a pair of blocks is gate and up, or lies within one of them");
  unsigned a[kSteps];
  unsigned b[kSteps];

  __device__ __forceinline__ FragmentPlaces() {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int warp = static_cast<int>(threadIdx.x) >> 5;
    const int row = warp / T::kWarpColumns * (T::kRows / T::kWarpRows) + a_lane_row(lane);
    const int column =
        column_block_row<T, kGated>(warp % T::kWarpColumns, b_lane_block(lane)) + b_lane_row(lane);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      a[step] = chunk_offset<T>(row, step * 2 + a_lane_chunk(lane));
      b[step] = T::kOperandBytes + chunk_offset<T>(column, step * 2 + b_lane_chunk(lane));
    }
  }

  __device__ __forceinline__ void read(Fragments<T>& into, unsigned stage, int step) const {
#pragma unroll
    for (int i = 0; i < T::kRowBlocks; ++i) {
      load_matrices(into.a[i], stage + a[step] + i * 16 * T::kRowBytes);
    }
#pragma unroll
    for (int j = 0; j < T::kColumnBlocks; j += 2) {
      constexpr int kFirst = column_block_row<T, kGated>(0, 0);
      const int distance = column_block_row<T, kGated>(0, j) - kFirst;
      load_matrices(into.b[j / 2], stage + b[step] + distance * T::kRowBytes);
    }
  }
};

// In the accumulator of m16n8 a thread holds rows lane / 4 and lane / 4 + 8, columns
// 2 (lane % 4) and the next one.
template <class T, bool kGated>
struct SumPlaces {
  long long row;    // of the output, of its first sums
  long long first;  // column of the tile, and of the lane
  int warp_column;
  __device__ __forceinline__ SumPlaces(long long tile_row, long long tile_column) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int warp = static_cast<int>(threadIdx.x) >> 5;
    row = tile_row + warp / T::kWarpColumns * (T::kRows / T::kWarpRows) + lane / 4;
    first = tile_column + lane % 4 * 2;
    warp_column = warp % T::kWarpColumns;
  }
  __device__ __forceinline__ long long column_of(int block) const {
    return first + column_block_row<T, kGated>(warp_column, block);
  }
};

// The fragments of a step are read while the ones before are multiplied, also across the end of a
// stage: the tensor cores do not wait for shared memory.
template <class T, class Element, bool kGated, bool kAligned>
__device__ __forceinline__ void mainloop(Sums<T>& sums, const GemmArguments& p, long long row,
                                         long long column) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
  constexpr int kSteps = T::kDepth / 16;
  static_assert(kSteps % 2 == 0, "a stage begins with the first of the two fragments");
  StageCopy<T, kGated, kAligned> copies(p, row, column);
  const FragmentPlaces<T, kGated> places;
  const long long blocks = (p.k + T::kDepth - 1) / T::kDepth;
#pragma unroll
  for (int stage = 0; stage < T::kStages - 1; ++stage) {
    if (stage < blocks) copies.copy_next(shared + stage * T::kStageBytes);
    commit_copies();
  }
  const auto after = [](unsigned stage) {
    return stage + T::kStageBytes == T::kSharedBytes ? 0 : stage + T::kStageBytes;
  };
  unsigned read_stage = 0;
  unsigned write_stage = (T::kStages - 1) * T::kStageBytes;
  Fragments<T> fragments[2];
  wait_copies<T::kStages - 2>();
  __syncthreads();
  places.read(fragments[0], shared, 0);
  for (long long block = 0; block < blocks; ++block) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps - 1) {
        wait_copies<T::kStages - 2>();
        // The next stage is complete, and all warps have read the whole of this one. After the last
        // stage nothing is: what is read then is not multiplied.
        __syncthreads();
        read_stage = after(read_stage);
      }
      places.read(fragments[(step + 1) % 2], shared + read_stage, (step + 1) % kSteps);
      if (step == 0) {
        if (block + T::kStages - 1 < blocks) copies.copy_next(shared + write_stage);
        commit_copies();  // also when empty: wait_copies counts groups
        write_stage = after(write_stage);
      }
      fragments[step % 2].template multiply_into<Element>(sums);
    }
  }
}

template <class T, class Element, bool kGated, bool kAligned, class Unit>
__device__ __forceinline__ void epilogue(const Sums<T>& sums, const GemmArguments& p, Unit unit,
                                         long long row, long long column) {
  constexpr int kBlocks = kGated ? T::kColumnBlocks / 2 : T::kColumnBlocks;
  constexpr int kTogether = kBlocks < 4 ? kBlocks : 4;
  const SumPlaces<T, kGated> places(row, column);
#pragma unroll
  for (int block = 0; block < kBlocks; block += kTogether) {
    const long long at = places.column_of(block);  // these blocks lie side by side
    float bias[kTogether][2];
    float up_bias[kTogether][2];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        bias[j][k] = bias_at<Element>(p.bias0, at + j * 8 + k, p.n);
        up_bias[j][k] = kGated ? bias_at<Element>(p.bias1, at + j * 8 + k, p.n) : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < T::kRowBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned words[kTogether];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          float first = sums[i][block + j][half * 2] + bias[j][0];
          float second = sums[i][block + j][half * 2 + 1] + bias[j][1];
          if constexpr (kGated) {
            const float(&up)[4] = sums[i][block + j + kBlocks];
            first = unit.of(first, up[half * 2] + up_bias[j][0]);
            second = unit.of(second, up[half * 2 + 1] + up_bias[j][1]);
          }
          words[j] = unit.pack(first, second, Element{});
        }
        store_blocks<Element, kAligned>(p, p.out, places.row + i * 16 + half * 8, at, words);
      }
    }
  }
}

// Of a gated tile: the sums of gate or of up, with their biases.
template <class T, class Element, bool kAligned, bool kUp>
__device__ __forceinline__ void keep_sums(const Sums<T>& sums, const GemmArguments& p,
                                          long long row, long long column) {
  constexpr int kBlocks = T::kColumnBlocks / 2;
  constexpr int kTogether = kBlocks < 4 ? kBlocks : 4;
  const SumPlaces<T, true> places(row, column);
#pragma unroll
  for (int block = 0; block < kBlocks; block += kTogether) {
    const long long at = places.column_of(block);
#pragma unroll
    for (int i = 0; i < T::kRowBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned words[kTogether];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const float* const sum = sums[i][block + j + (kUp ? kBlocks : 0)] + half * 2;
          const void* const bias = kUp ? p.bias1 : p.bias0;
          words[j] = pack_pair(sum[0] + bias_at<Element>(bias, at + j * 8, p.n),
                               sum[1] + bias_at<Element>(bias, at + j * 8 + 1, p.n), Element{});
        }
        store_blocks<Element, kAligned>(p, kUp ? p.up_out : p.gate_out,
                                        places.row + i * 16 + half * 8, at, words);
      }
    }
  }
}

// The tile of this CTA, and where its part of the output begins.
template <class T, bool kGated>
struct OutputTile {
  long long row;
  long long column;
  __device__ __forceinline__ explicit OutputTile(const GemmArguments& p) {
    const TilePosition tile = tile_position(blockIdx.x, p.tiles_m, p.tiles_n, p.panel);
    row = static_cast<long long>(tile.row) * T::kRows;
    column = static_cast<long long>(tile.column) * (kGated ? T::kColumns / 2 : T::kColumns);
  }
};

}  // namespace gated_mlp

// The kernels kind_bf16_256x128 and so on, of gated_mlp::kind<Tile, Element, kAligned>.
#define KILN_GEMM(kind, type, Element, shape, TileShape, aligned)                  \
  extern "C" __global__ void __launch_bounds__(gated_mlp::TileShape::kThreads,     \
                                               gated_mlp::TileShape::kCtas)        \
      kind##_##type##_##shape(const gated_mlp::GemmArguments arguments) {          \
    gated_mlp::kind<gated_mlp::TileShape, gated_mlp::Element, aligned>(arguments); \
  }

#define KILN_GEMM_SHAPES(kind, type, Element)                 \
  KILN_GEMM(kind, type, Element, 256x128, TallTile, true)     \
  KILN_GEMM(kind, type, Element, 128x128x3, LargeTile3, true) \
  KILN_GEMM(kind, type, Element, 128x128x4, LargeTile4, true) \
  KILN_GEMM(kind, type, Element, 64x64, MediumTile, true)     \
  KILN_GEMM(kind, type, Element, 32x32, SmallTile, true)      \
  KILN_GEMM(kind, type, Element, 64x64_any, MediumTile, false)

#define KILN_GEMMS(kind)                 \
  KILN_GEMM_SHAPES(kind, bf16, Bfloat16) \
  KILN_GEMM_SHAPES(kind, f16, Float16)
