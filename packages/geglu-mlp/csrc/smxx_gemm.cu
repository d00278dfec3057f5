// SPDX-License-Identifier: Apache-2.0
//
// The two GEMMs of the MLP for every SM from 8.0 on: cp.async into a ring of shared-memory stages,
// ldmatrix, mma.sync m16n8k16, fp32 accumulation. One mainloop, two epilogues: gated writes
// gelu(x gate^T + gate_bias) * (x up^T + up_bias), plain writes h down^T + down_bias. Every output
// is one accumulator that runs through k in order, 16 at a time, in every tile shape: the result of
// a row does not depend on how many rows there are.
#include "activation.cuh"
#include "arguments.h"
#include "tile.h"

namespace geglu_mlp {

// Rows, columns and k beyond the tensors are filled with zeros in both operands: a NaN or an
// infinity next to them must not leak through 0 * NaN.
__device__ __forceinline__ void copy_chunk(unsigned shared, const void* global, bool in_range) {
  const int bytes = in_range ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
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

__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1, Bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1, Float16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// One thread's share of copying kRows rows of a [rows, k] matrix, starting at row `first`.
template <class T, int kRows, bool kAligned>
struct RowCopy {
  static constexpr int kPasses = kRows / T::kRowsPerPass;
  const unsigned short* base;    // a valid address, for copies that read nothing
  const unsigned short* source;  // this thread's row of pass 0, its chunk of k block 0
  long long pass_stride;
  long long k;
  unsigned rows_in_range;  // one bit a pass
  int chunk;
  int shared_row;

  __device__ __forceinline__ RowCopy(const void* matrix, long long rows, long long k_extent,
                                     long long first, int first_shared_row) {
    const int row = static_cast<int>(threadIdx.x) / T::kChunks;
    chunk = static_cast<int>(threadIdx.x) % T::kChunks;
    shared_row = first_shared_row + row;
    k = k_extent;
    base = static_cast<const unsigned short*>(matrix);
    source = base + (first + row) * k + chunk * 8;
    pass_stride = T::kRowsPerPass * k;
    rows_in_range = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (first + row + pass * T::kRowsPerPass < rows) rows_in_range |= 1u << pass;
    }
  }

  // Copies k block `block` into the operand at `shared`.
  __device__ __forceinline__ void copy(unsigned shared, long long block) const {
    const long long k_first = block * T::kDepth + chunk * 8;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const bool row_in_range = (rows_in_range >> pass & 1u) != 0;
      const unsigned short* from = source + block * T::kDepth + pass * pass_stride;
      const unsigned to = shared + chunk_offset<T>(shared_row + pass * T::kRowsPerPass, chunk);
      if constexpr (kAligned) {
        const bool in_range = row_in_range && k_first < k;  // k is a multiple of 8
        copy_chunk(to, in_range ? from : base, in_range);
      } else {
        copy_elements(to, from, row_in_range, k - k_first);
      }
    }
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

// The copies of a whole stage: A, then B, whose two halves are gate and up in a gated kernel.
template <class T, bool kGated, bool kAligned>
struct StageCopy {
  RowCopy<T, T::kRows, kAligned> a;
  RowCopy<T, T::kColumns / 2, kAligned> b0;
  RowCopy<T, T::kColumns / 2, kAligned> b1;

  __device__ __forceinline__ StageCopy(const GemmArguments& p, long long row, long long column)
      : a(p.a, p.m, p.k, row, 0),
        b0(p.b0, p.n, p.k, column, 0),
        b1(kGated ? p.b1 : p.b0, p.n, p.k, kGated ? column : column + T::kColumns / 2,
           T::kColumns / 2) {}

  __device__ __forceinline__ void copy(unsigned stage, long long block) const {
    a.copy(stage, block);
    b0.copy(stage + T::kOperandBytes, block);
    b1.copy(stage + T::kOperandBytes, block);
  }
};

template <class T>
using Sums = float[T::kRowBlocks][T::kColumnBlocks][4];

// sums += A B^T over the kDepth of one stage.
template <class T, class Element, bool kGated>
__device__ __forceinline__ void multiply_stage(Sums<T>& sums, unsigned stage) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const int warp_row = warp / T::kWarpColumns * (T::kRows / T::kWarpRows);
  const int warp_column = warp % T::kWarpColumns;
  const unsigned operand_b = stage + T::kOperandBytes;
#pragma unroll
  for (int step = 0; step < T::kDepth / 16; ++step) {
    unsigned a[T::kRowBlocks][4];
    unsigned b[T::kColumnBlocks / 2][4];
#pragma unroll
    for (int i = 0; i < T::kRowBlocks; ++i) {
      const int row = warp_row + i * 16 + a_lane_row(lane);
      load_matrices(a[i], stage + chunk_offset<T>(row, step * 2 + a_lane_chunk(lane)));
    }
#pragma unroll
    for (int j = 0; j < T::kColumnBlocks; j += 2) {
      const int row_even = column_block_row<T, kGated>(warp_column, j);
      const int row_odd = column_block_row<T, kGated>(warp_column, j + 1);
      const int row = (b_lane_block(lane) != 0 ? row_odd : row_even) + b_lane_row(lane);
      load_matrices(b[j / 2], operand_b + chunk_offset<T>(row, step * 2 + b_lane_chunk(lane)));
    }
#pragma unroll
    for (int i = 0; i < T::kRowBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < T::kColumnBlocks; ++j) {
        multiply(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], Element{});
      }
    }
  }
}

template <class T, class Element, bool kGated, bool kAligned>
__device__ __forceinline__ void mainloop(Sums<T>& sums, const GemmArguments& p, long long row,
                                         long long column, unsigned shared) {
  const StageCopy<T, kGated, kAligned> copies(p, row, column);
  const long long blocks = (p.k + T::kDepth - 1) / T::kDepth;
#pragma unroll
  for (int stage = 0; stage < T::kStages - 1; ++stage) {
    if (stage < blocks) copies.copy(shared + stage * T::kStageBytes, stage);
    commit_copies();
  }
  unsigned read_stage = 0;
  unsigned write_stage = (T::kStages - 1) * T::kStageBytes;
  for (long long block = 0; block < blocks; ++block) {
    wait_copies<T::kStages - 2>();
    __syncthreads();  // stage `block` is complete, and all warps are done with the one before it
    const long long next = block + T::kStages - 1;
    if (next < blocks) copies.copy(shared + write_stage, next);
    commit_copies();  // also when empty: wait_copies counts groups
    multiply_stage<T, Element, kGated>(sums, shared + read_stage);
    read_stage = read_stage + T::kStageBytes == T::kSharedBytes ? 0 : read_stage + T::kStageBytes;
    write_stage =
        write_stage + T::kStageBytes == T::kSharedBytes ? 0 : write_stage + T::kStageBytes;
  }
}

template <class Element>
__device__ __forceinline__ float bias_at(const void* bias, long long column, long long columns) {
  if (bias == nullptr || column >= columns) return 0.0f;
  return load_float(static_cast<const Element*>(bias)[column]);
}

// Two neighbouring outputs of one row.
template <class Element>
__device__ __forceinline__ void store_pair(const GemmArguments& p, long long row, long long column,
                                           float first, float second) {
  if (row >= p.m || column >= p.n) return;
  Element* address = static_cast<Element*>(p.out) + row * p.n + column;
  if (p.paired_stores != 0) {
    *reinterpret_cast<unsigned*>(address) = pack_pair(first, second, Element{});
    return;
  }
  store_float(address, first);
  if (column + 1 < p.n) store_float(address + 1, second);
}

template <bool kExact>
__device__ __forceinline__ float gelu(float x) {
  return kExact ? gelu_exact(x) : gelu_tanh(x);
}

// In the accumulator of m16n8 a thread holds rows lane / 4 and lane / 4 + 8, columns
// 2 (lane % 4) and the next one.
template <class T, class Element, bool kGated, bool kExact>
__device__ __forceinline__ void epilogue(const Sums<T>& sums, const GemmArguments& p, long long row,
                                         long long column) {
  constexpr int kBlocks = kGated ? T::kColumnBlocks / 2 : T::kColumnBlocks;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const long long row_first = row + warp / T::kWarpColumns * (T::kRows / T::kWarpRows) + lane / 4;
  const int warp_column = warp % T::kWarpColumns;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    const long long at = column + column_block_row<T, kGated>(warp_column, j) + lane % 4 * 2;
    const float bias00 = bias_at<Element>(p.bias0, at, p.n);
    const float bias01 = bias_at<Element>(p.bias0, at + 1, p.n);
    const float bias10 = kGated ? bias_at<Element>(p.bias1, at, p.n) : 0.0f;
    const float bias11 = kGated ? bias_at<Element>(p.bias1, at + 1, p.n) : 0.0f;
#pragma unroll
    for (int i = 0; i < T::kRowBlocks; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float first = sums[i][j][half * 2] + bias00;
        float second = sums[i][j][half * 2 + 1] + bias01;
        if constexpr (kGated) {
          const float(&up)[4] = sums[i][j + kBlocks];
          first = gelu<kExact>(first) * (up[half * 2] + bias10);
          second = gelu<kExact>(second) * (up[half * 2 + 1] + bias11);
        }
        store_pair<Element>(p, row_first + i * 16 + half * 8, at, first, second);
      }
    }
  }
}

template <class T, class Element, bool kGated, bool kAligned>
__device__ __forceinline__ void gemm(const GemmArguments& p) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
  const TilePosition tile = tile_position(blockIdx.x, p.tiles_m, p.tiles_n, p.panel);
  constexpr int kOutColumns = kGated ? T::kColumns / 2 : T::kColumns;
  const long long row = static_cast<long long>(tile.row) * T::kRows;
  const long long column = static_cast<long long>(tile.column) * kOutColumns;
  Sums<T> sums = {};
  mainloop<T, Element, kGated, kAligned>(sums, p, row, column, shared);
  if (kGated && p.exact != 0) {
    epilogue<T, Element, kGated, true>(sums, p, row, column);
  } else {
    epilogue<T, Element, kGated, false>(sums, p, row, column);
  }
}

}  // namespace geglu_mlp

#define KILN_GEMM(name, Element, TileShape, gated, aligned)                               \
  extern "C" __global__ void __launch_bounds__(geglu_mlp::TileShape::kThreads, 2)         \
      name(const geglu_mlp::GemmArguments arguments) {                                    \
    geglu_mlp::gemm<geglu_mlp::TileShape, geglu_mlp::Element, gated, aligned>(arguments); \
  }

#define KILN_GEMMS(kind, gated)                                        \
  KILN_GEMM(kind##_bf16_128x128x3, Bfloat16, LargeTile3, gated, true)  \
  KILN_GEMM(kind##_bf16_128x128x4, Bfloat16, LargeTile4, gated, true)  \
  KILN_GEMM(kind##_bf16_64x64, Bfloat16, MediumTile, gated, true)      \
  KILN_GEMM(kind##_bf16_32x32, Bfloat16, SmallTile, gated, true)       \
  KILN_GEMM(kind##_bf16_64x64_any, Bfloat16, MediumTile, gated, false) \
  KILN_GEMM(kind##_f16_128x128x3, Float16, LargeTile3, gated, true)    \
  KILN_GEMM(kind##_f16_128x128x4, Float16, LargeTile4, gated, true)    \
  KILN_GEMM(kind##_f16_64x64, Float16, MediumTile, gated, true)        \
  KILN_GEMM(kind##_f16_32x32, Float16, SmallTile, gated, true)         \
  KILN_GEMM(kind##_f16_64x64_any, Float16, MediumTile, gated, false)

KILN_GEMMS(gated, true)
KILN_GEMMS(plain, false)
