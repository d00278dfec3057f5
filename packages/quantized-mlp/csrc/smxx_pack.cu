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

__device__ __forceinline__ float load_real(const void* from, Real dtype, long long at) {
  switch (dtype) {
    case Real::kFloat32:
      return static_cast<const float*>(from)[at];
    case Real::kFloat16:
      return gated_mlp::load_float(static_cast<const gated_mlp::Float16*>(from)[at]);
    case Real::kBfloat16:
      break;
  }
  return gated_mlp::load_float(static_cast<const gated_mlp::Bfloat16*>(from)[at]);
}

__device__ __forceinline__ void store_real(void* to, Real dtype, long long at, float value) {
  switch (dtype) {
    case Real::kFloat32:
      static_cast<float*>(to)[at] = value;
      return;
    case Real::kFloat16:
      gated_mlp::store_float(static_cast<gated_mlp::Float16*>(to) + at, value);
      return;
    case Real::kBfloat16:
      gated_mlp::store_float(static_cast<gated_mlp::Bfloat16*>(to) + at, value);
  }
}

}  // namespace quantized_mlp

using namespace quantized_mlp;

extern "C" __global__ void __launch_bounds__(kPackThreads)
    pack_codes(const __grid_constant__ PackCodesArguments p) {
  const long long number = thread_number();
  const int words = tile_bytes(p.source.kind) / 4;
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
  if (p.packed_scales != nullptr && p.source.kind == Codes::kE4m3) {
    float scale = 0.0f;
    if (is_there) {
      scale = has_nan(p.source, one.row, one.group)
                  ? __uint_as_float(0x7fc00000u)
                  : load_real(p.source.scales, p.source.scale_dtype,
                              source_scale(p.source, one.row, one.group));
    }
    static_cast<float*>(p.packed_scales)[one.to] = scale;
  } else if (p.packed_scales != nullptr) {
    static_cast<unsigned short*>(p.packed_scales)[one.to] =
        is_there ? static_cast<const unsigned short*>(
                       p.source.scales)[source_scale(p.source, one.row, one.group)]
                 : static_cast<unsigned short>(0);
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
  const int bits = bits_of(p.kind);
  const Place place = place_of(p.kind, in_tile, static_cast<int>(k % kTileDepth));
  const int code =
      p.from.codes[tile * tile_bytes(p.kind) + place.byte] >> place.shift & ((1 << bits) - 1);
  p.codes[number] = static_cast<unsigned char>(code);
  if (p.weight == nullptr) return;
  const long long at =
      (row / kTileRows * p.groups + (k >> p.shift)) * kTileRows + scale_place(in_tile);
  const int zero = p.from.zeros != nullptr ? p.from.zeros[at] : middle_of(p.kind);
  const float value = p.kind == Codes::kE4m3 ? value_of_e4m3(static_cast<unsigned>(code))
                                             : static_cast<float>(code - zero);
  store_real(p.weight, p.weight_dtype, number, load_real(p.from.scales, p.scale_dtype, at) * value);
}

extern "C" __global__ void __launch_bounds__(kPackThreads)
    unpack_groups(const __grid_constant__ UnpackCodesArguments p) {
  const long long number = thread_number();
  if (number >= p.rows * p.groups) return;
  const long long row = number / p.groups;
  const long long at = (row / kTileRows * p.groups + number % p.groups) * kTileRows +
                       scale_place(static_cast<int>(row % kTileRows));
  if (p.scales != nullptr && p.kind == Codes::kE4m3) {
    static_cast<float*>(p.scales)[number] = reinterpret_cast<const float*>(p.from.scales)[at];
  } else if (p.scales != nullptr) {
    static_cast<unsigned short*>(p.scales)[number] =
        reinterpret_cast<const unsigned short*>(p.from.scales)[at];
  }
  if (p.zeros != nullptr) p.zeros[number] = p.from.zeros[at];
}
