// SPDX-License-Identifier: Apache-2.0
//
// Expand: packed weights as rows of numbers of 16 bits. Device only.
#pragma once

#include "dequantize.cuh"
#include "expanded.h"

namespace quantized_mlp {

__device__ __forceinline__ void fetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// A warp's turn: 1024 bytes of codes, one or two neighbouring tiles of k of a row tile.
template <Codes kCodes>
struct ExpandPlace {
  static constexpr int kTiles = expanded_unit(kCodes);
  static constexpr int kAhead = 6;  // turns
  int matrix;
  int row_tile;  // of the chunk
  int tile;
  const unsigned char* codes;

  __device__ __forceinline__ ExpandPlace(const ExpandArguments& p, unsigned number) {
    const unsigned units = static_cast<unsigned>(p.depth_tiles + kTiles - 1) / kTiles;
    row_tile = static_cast<int>(number / units);
    tile = static_cast<int>(number % units) * kTiles;
    matrix = row_tile < p.row_tiles ? 0 : 1;
    if (matrix != 0) row_tile -= p.row_tiles;
    find(p);
  }
  __device__ __forceinline__ void find(const ExpandArguments& p) {
    const long long at = static_cast<long long>(p.first + row_tile) * p.depth_tiles + tile;
    codes = p.b[matrix].codes + at * tile_bytes(kCodes);
  }
  __device__ __forceinline__ bool is_there(const ExpandArguments& p, int i) const {
    return i == 0 || tile + i < p.depth_tiles;
  }
  __device__ __forceinline__ void next(const ExpandArguments& p) {
    codes += (is_there(p, kTiles - 1) ? kTiles : 1) * tile_bytes(kCodes);
    tile += kTiles;
    if (tile < p.depth_tiles) return;
    tile = 0;
    if (++row_tile < p.row_tiles) return;
    row_tile = 0;
    matrix = 1;
    find(p);
  }
  // The next turns' lines on their way to the L2 cache: a warp has no registers to wait for memory.
  __device__ __forceinline__ void fetch_ahead(const ExpandArguments& p, int lane) const {
    const long long left =  // tiles of the matrix
        static_cast<long long>(p.row_tiles - row_tile) * p.depth_tiles - tile;
    const int ahead = (kAhead * 8 + lane) * 128;
    if (lane < 8 && ahead < left * tile_bytes(kCodes)) fetch_line(codes + ahead);
  }
};

// What a lane has of it: of rows g and g + 8, eight neighbouring columns of each 32. kOneGroup: all
// of one, with scales of the numbers' own type, which multiply two at a time.
template <class Element, Codes kCodes, bool kOneGroup>
struct ExpandShare {
  static constexpr int kTiles = ExpandPlace<kCodes>::kTiles;
  static constexpr int kSteps = 2 * kTiles;  // of 32 columns
  static constexpr int kGroups = kOneGroup ? 1 : kSteps;
  static constexpr bool kIsE4m3 = kCodes == Codes::kE4m3;
  static constexpr bool kPairs = kOneGroup && !kIsE4m3;
  TileCodes<kCodes> codes[kTiles];
  uint2 scales[kGroups];  // of both rows: two words of fp32, or halves of one
  unsigned zeros[kGroups];

  // All loads come before the stores of the turn before, which might change what they read, as far
  // as the compiler knows.
  __device__ __forceinline__ void load(const ExpandArguments& p, const ExpandPlace<kCodes>& place,
                                       int lane) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (!place.is_there(p, i)) break;
#pragma unroll
      for (int j = 0; j < codes[i].kLoads; ++j) {
        codes[i].words[j] = *reinterpret_cast<const uint4*>(
            place.codes + i * tile_bytes(kCodes) + j * kStepBytes + lane_byte<kCodes>(lane));
      }
    }
    const MatrixArguments& b = p.b[place.matrix];
    const long long first = static_cast<long long>(p.first + place.row_tile) * p.groups;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int group = (place.tile * kTileDepth + i * 32) >> p.shift;
      const long long pair =
          (first + (group < p.groups ? group : p.groups - 1)) * kTileRows + lane / 4 * 2;
      if constexpr (kIsE4m3) {
        scales[i] = *reinterpret_cast<const uint2*>(b.scales + pair * 4);
      } else {
        scales[i] = {*reinterpret_cast<const unsigned*>(b.scales + pair * 2), 0};
        zeros[i] = 0x101u * middle_of(kCodes);
        if (b.zeros != nullptr) {
          zeros[i] = *reinterpret_cast<const unsigned short*>(b.zeros + pair);
        }
      }
    }
  }

  // Of both rows. Products of codes and scales are rounded once, either way.
  __device__ __forceinline__ float2 factors(const ExpandArguments& p, int group) const {
    const uint2& two = scales[group];
    if constexpr (kIsE4m3) return {__uint_as_float(two.x), __uint_as_float(two.y)};
    return p.bfloat16_scales != 0 ? gated_mlp::unpack_pair<Bfloat16>(two.x)
                                  : gated_mlp::unpack_pair<Float16>(two.x);
  }

  __device__ __forceinline__ void store(const ExpandArguments& p, const ExpandPlace<kCodes>& place,
                                        int lane) const {
    const long long row = place.row_tile * kTileRows + lane / 4;
    int k = place.tile * kTileDepth + lane % 4 * 8;
    auto* const to = static_cast<unsigned short*>(p.to[place.matrix]) + row * p.k + k;
    auto* const below = to + 8 * p.k;
#pragma unroll
    for (int step = 0; step < kSteps; ++step, k += 32) {
      const int group = kOneGroup ? 0 : step;
      const Dequantizer<Element, kCodes> numbers(kIsE4m3 ? 0 : zeros[group]);
      const unsigned pairs[2] = {permuted(scales[group].x, 0, 0x1010u),
                                 permuted(scales[group].x, 0, 0x3232u)};
      float2 of_rows = {};
      if constexpr (!kPairs) of_rows = factors(p, group);
      unsigned words[2][4];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        unsigned a[4];
        codes[step / 2].run(numbers, step % 2 * 2 + part, a);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (kPairs) {
            a[i] = fused(a[i], pairs[i % 2], 0x80008000u, Element{});
          } else {
            a[i] = scaled<Element>(a[i], i % 2 == 0 ? of_rows.x : of_rows.y);
          }
          words[i % 2][2 * part + i / 2] = a[i];
        }
      }
      if (k >= p.k) break;  // which is a multiple of 8
      *reinterpret_cast<uint4*>(to + step * 32) = {words[0][0], words[0][1], words[0][2],
                                                   words[0][3]};
      *reinterpret_cast<uint4*>(below + step * 32) = {words[1][0], words[1][1], words[1][2],
                                                      words[1][3]};
    }
  }
};

// The turns of warp `number` of `warps`: neighbours.
template <class Element, Codes kCodes, bool kOneGroup>
__device__ __forceinline__ void expand_turns(const ExpandArguments& p, unsigned number,
                                             unsigned warps) {
  const auto all = static_cast<unsigned>(expand_units(kCodes, p));
  const unsigned turns = (all + warps - 1) / warps;
  if (number * turns >= all) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ExpandPlace<kCodes> place(p, number * turns);
  ExpandShare<Element, kCodes, kOneGroup> next;
  next.load(p, place, lane);
#pragma unroll 1
  for (unsigned left = min(turns, all - number * turns); left > 0; --left) {
    const ExpandShare<Element, kCodes, kOneGroup> now = next;
    const ExpandPlace<kCodes> here = place;
    if (left > 1) {
      place.next(p);
      next.load(p, place, lane);
      place.fetch_ahead(p, lane);
    }
    now.store(p, here, lane);
  }
}

template <class Element, Codes kCodes>
__device__ __forceinline__ void expand(const ExpandArguments& p, unsigned number, unsigned warps) {
  const bool is_own =
      kCodes == Codes::kE4m3 || (p.bfloat16_scales != 0) == kIsSame<Element, Bfloat16>;
  if (is_own && p.shift >= (kCodes == Codes::kInt4 ? 7 : 6)) {
    expand_turns<Element, kCodes, true>(p, number, warps);
  } else {
    expand_turns<Element, kCodes, false>(p, number, warps);
  }
}

}  // namespace quantized_mlp
