// SPDX-License-Identifier: Apache-2.0
//
// pack, pack_zeros and unpack: a thread a word of codes, a scale or a zero; a weight.
#include "arguments.h"
#include "element.cuh"

namespace quantized_mlp {

__device__ __forceinline__ long long thread_number() {
  return static_cast<long long>(blockIdx.x) * kPackThreads + threadIdx.x;
}

// Row tile, group and row in the tile of one of [row tiles, groups, 16].
struct ScaleOfTile {
  long long row;
  long long group;
  long long to;

  __device__ __forceinline__ ScaleOfTile(long long number, long long groups) {
    const int in_tile = static_cast<int>(number % kTileRows);
    const long long tile = number / kTileRows / groups;
    row = tile * kTileRows + in_tile;
    group = number / kTileRows % groups;
    to = (tile * groups + group) * kTileRows + scale_place(in_tile);
  }
};

__device__ __forceinline__ float scale_value(unsigned short bits, int bfloat16_scales) {
  return bfloat16_scales != 0 ? gated_mlp::load_float(gated_mlp::Bfloat16{bits})
                              : gated_mlp::load_float(gated_mlp::Float16{bits});
}

__device__ __forceinline__ void store_weight(void* weight, int dtype, long long at, float value) {
  if (dtype == 0) {
    static_cast<float*>(weight)[at] = value;
  } else if (dtype == 1) {
    gated_mlp::store_float(static_cast<gated_mlp::Float16*>(weight) + at, value);
  } else {
    gated_mlp::store_float(static_cast<gated_mlp::Bfloat16*>(weight) + at, value);
  }
}

}  // namespace quantized_mlp

using namespace quantized_mlp;

extern "C" __global__ void __launch_bounds__(kPackThreads)
    pack_codes(const __grid_constant__ PackCodesArguments p) {
  const long long number = thread_number();
  const int words = tile_bytes(p.source.bits) / 4;
  const long long tile = number / words;
  if (tile >= p.row_tiles * p.depth_tiles) return;
  p.packed[number] = packed_word(p.source, tile / p.depth_tiles, tile % p.depth_tiles,
                                 static_cast<int>(number % words) * 4);
}

extern "C" __global__ void __launch_bounds__(kPackThreads)
    pack_groups(const __grid_constant__ PackCodesArguments p) {
  const long long number = thread_number();
  if (number >= p.row_tiles * p.source.groups * kTileRows) return;
  const ScaleOfTile one(number, p.source.groups);
  const bool is_there = one.row < p.source.rows;
  if (p.packed_scales != nullptr) {
    p.packed_scales[one.to] =
        is_there ? source_scale(p.source, one.row, one.group) : static_cast<unsigned short>(0);
  } else {
    p.packed_zeros[one.to] =
        is_there ? source_zero(p.source, one.row, one.group) : static_cast<unsigned char>(0);
  }
}

extern "C" __global__ void __launch_bounds__(kPackThreads)
    unpack_codes(const __grid_constant__ UnpackCodesArguments p) {
  const long long number = thread_number();
  if (number >= p.rows * p.columns) return;
  const long long row = number / p.columns;
  const long long k = number % p.columns;
  const int in_tile = static_cast<int>(row % kTileRows);
  const long long tile = row / kTileRows * p.depth_tiles + k / kTileDepth;
  const Place place = place_of(p.bits, in_tile, static_cast<int>(k % kTileDepth));
  const int code =
      p.from.codes[tile * tile_bytes(p.bits) + place.byte] >> place.shift & ((1 << p.bits) - 1);
  p.codes[number] = static_cast<unsigned char>(code);
  if (p.weight == nullptr) return;
  const long long at =
      (row / kTileRows * p.groups + (k >> p.shift)) * kTileRows + scale_place(in_tile);
  const int zero = p.from.zeros != nullptr ? p.from.zeros[at] : middle_of(p.bits);
  store_weight(p.weight, p.weight_dtype, number,
               scale_value(p.from.scales[at], p.bfloat16_scales) * static_cast<float>(code - zero));
}

extern "C" __global__ void __launch_bounds__(kPackThreads)
    unpack_groups(const __grid_constant__ UnpackCodesArguments p) {
  const long long number = thread_number();
  if (number >= p.rows * p.groups) return;
  const long long row = number / p.groups;
  const long long at = (row / kTileRows * p.groups + number % p.groups) * kTileRows +
                       scale_place(static_cast<int>(row % kTileRows));
  if (p.scales != nullptr) p.scales[number] = p.from.scales[at];
  if (p.zeros != nullptr) p.zeros[number] = p.from.zeros[at];
}
