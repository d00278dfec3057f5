// SPDX-License-Identifier: Apache-2.0
//
// Dequantize: codes as the operand of mma.sync. A code less its zero is a whole number of at most 9
// bits, which bfloat16 and float16 hold exactly; scales are applied to the sums of a group. Codes
// become numbers by their place in a mantissa: 128 + c of bfloat16, 1024 + c of float16, from which
// a constant is taken. A code of e4m3 is moved to the same fields of the wider number: exponent and
// mantissa are right, denormals too, but for a power of two. Device only.
#pragma once

#include "arguments.h"
#include "element.cuh"

namespace quantized_mlp {

using gated_mlp::Bfloat16;
using gated_mlp::Float16;

template <class A, class B>
inline constexpr bool kIsSame = false;
template <class A>
inline constexpr bool kIsSame<A, A> = true;

// (word & mask) | bits
__device__ __forceinline__ unsigned place_in(unsigned word, unsigned mask, unsigned bits) {
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
}
__device__ __forceinline__ unsigned permuted(unsigned a, unsigned b, unsigned selector) {
  unsigned result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
  return result;
}
// a factor + addend of both halves
__device__ __forceinline__ unsigned fused(unsigned a, unsigned factor, unsigned addend, Bfloat16) {
  unsigned result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(factor), "r"(addend));
  return result;
}
__device__ __forceinline__ unsigned fused(unsigned a, unsigned factor, unsigned addend, Float16) {
  unsigned result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(factor), "r"(addend));
  return result;
}

// The codes of one lane for one instruction, as operand A: row g, row g + 8, both 2 pairs on.
// `zeros`: of the two rows, bytes 0 and 1.
template <class Element, Codes kCodes>
struct Dequantizer;

// A zero in the low bytes of both halves, `high` in the others.
__device__ __forceinline__ unsigned spread_zero(unsigned zeros, int row, unsigned high) {
  return permuted(zeros, high, row == 0 ? 0x4040u : 0x4141u);
}

template <>
struct Dequantizer<Bfloat16, Codes::kInt4> {
  unsigned less[2];

  __device__ __forceinline__ explicit Dequantizer(unsigned zeros)
      : less{spread_zero(zeros, 0, 0xc3u), spread_zero(zeros, 1, 0xc3u)} {}

  __device__ __forceinline__ void run(const uint4& codes, int part, unsigned (&a)[4]) const {
    const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
    const unsigned word = words[part];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned numbers = place_in(word >> (4 * i), 0x000f000fu, 0x43004300u);  // 128 + c
      a[i] = fused(numbers, 0x3f803f80u, less[i % 2], Bfloat16{});
    }
  }
};

template <>
struct Dequantizer<Float16, Codes::kInt4> {
  unsigned less[2];

  // 1024 + z; 64 + z, of 64 + c, which is a sixteenth of 1024 + 16 c.
  __device__ __forceinline__ explicit Dequantizer(unsigned zeros)
      : less{spread_zero(zeros, 0, 0xe4u), spread_zero(zeros << 4, 1, 0xd4u)} {}

  __device__ __forceinline__ void run(const uint4& codes, int part, unsigned (&a)[4]) const {
    const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const unsigned word = words[part] >> (8 * pair);
      a[2 * pair] =
          fused(place_in(word, 0x000f000fu, 0x64006400u), 0x3c003c00u, less[0], Float16{});
      a[2 * pair + 1] =
          fused(place_in(word, 0x00f000f0u, 0x64006400u), 0x2c002c00u, less[1], Float16{});
    }
  }
};

// c - 128 of bytes 0 and 2, whose low seven bits are a mantissa's: 128 + c % 128 less 128, or less
// 256 where the top bit is not set.
__device__ __forceinline__ unsigned less_128(unsigned word) {
  const unsigned low = place_in(word, 0x007f007fu, 0x43004300u);
  const unsigned less = (word & 0x00800080u) ^ 0x43804380u;
  return fused(less, 0xbf80bf80u, low, Bfloat16{});
}

template <>
struct Dequantizer<Bfloat16, Codes::kInt8> {
  unsigned more[2];  // 128 - zero

  __device__ __forceinline__ explicit Dequantizer(unsigned zeros)
      : more{less_128(spread_zero(zeros, 0, 0)) ^ 0x80008000u,
             less_128(spread_zero(zeros, 1, 0)) ^ 0x80008000u} {}

  __device__ __forceinline__ void run(const uint4& codes, int part, unsigned (&a)[4]) const {
    const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = fused(less_128(words[2 * part + i / 2] >> (8 * (i % 2))), 0x3f803f80u, more[i % 2],
                   Bfloat16{});
    }
  }
};

template <>
struct Dequantizer<Float16, Codes::kInt8> {
  unsigned less[2];

  __device__ __forceinline__ explicit Dequantizer(unsigned zeros)
      : less{spread_zero(zeros, 0, 0xe4u), spread_zero(zeros, 1, 0xe4u)} {}

  __device__ __forceinline__ void run(const uint4& codes, int part, unsigned (&a)[4]) const {
    const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned numbers =
          permuted(words[2 * part + i / 2], 0x64646464u, i % 2 == 0 ? 0x4240u : 0x4341u);
      a[i] = fused(numbers, 0x3c003c00u, less[i % 2], Float16{});
    }
  }
};

// Two codes of e4m3, bytes 1 and 3 of a word, with the other type's exponent: 2^-120 and 2^-8 of
// what they are.
__device__ __forceinline__ unsigned widened(unsigned word, Bfloat16) {
  return (word >> 4 & 0x07f007f0u) | (word & 0x80008000u);
}
__device__ __forceinline__ unsigned widened(unsigned word, Float16) {
  return (word >> 1 & 0x3f803f80u) | (word & 0x80008000u);
}
__device__ __forceinline__ unsigned times_unit(unsigned both, Bfloat16 type) {
  return fused(both, 0x7b807b80u, 0x80008000u, type);
}
__device__ __forceinline__ unsigned times_unit(unsigned both, Float16 type) {
  return fused(both, 0x5c005c00u, 0x80008000u, type);
}

template <class Element>
struct Dequantizer<Element, Codes::kE4m3> {
  __device__ __forceinline__ explicit Dequantizer(unsigned) {}

  // `codes`: of both parts, of rows g and g + 8.
  __device__ __forceinline__ static void widen(const uint4& codes, int part, unsigned (&a)[4]) {
    const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned word = words[2 * part + i % 2];
      a[i] = widened(i < 2 ? word << 8 : word, Element{});
    }
  }
  __device__ __forceinline__ void run(const uint4& codes, int part, unsigned (&a)[4]) const {
    widen(codes, part, a);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = times_unit(a[i], Element{});
  }
};

// What a lane has of a tile, and of that what one of the tile's four instructions takes.
template <Codes kCodes>
struct TileCodes {
  static constexpr int kLoads = bits_of(kCodes) / 4;
  uint4 words[kLoads];

  template <class Numbers>
  __device__ __forceinline__ void run(const Numbers& numbers, int number, unsigned (&a)[4]) const {
    if constexpr (kCodes == Codes::kInt4) {
      numbers.run(words[0], number, a);
    } else if constexpr (kCodes == Codes::kInt8) {
      numbers.run(words[number / 2], number % 2, a);
    } else {
      const uint4& low = words[0];
      const uint4& high = words[1];
      numbers.run(
          number < 2 ? uint4{low.x, high.x, low.y, high.y} : uint4{low.z, high.z, low.w, high.w},
          number % 2, a);
    }
  }
};
template <class Element>
__device__ __forceinline__ unsigned scaled(unsigned both, float scale) {
  const float2 two = gated_mlp::unpack_pair<Element>(both);
  return gated_mlp::pack_pair(two.x * scale, two.y * scale, Element{});
}

// What decode takes instead, where instructions are the limit: numbers that still have an offset,
// which `ones` (decode) takes from the sums: sum of (c - z) x = unit * sum of numbers x - (kBase +
// z) * sum of x, in fp32. The error of that difference is below 1e-5 of the terms, a bfloat16's
// 4e-3. A float16 of bits c, without an exponent, is c 2^-24, which mma.sync multiplies exactly.
template <class Element, Codes kCodes>
struct RawNumbers;

template <>
struct RawNumbers<Bfloat16, Codes::kInt4> {
  static constexpr bool kHasOffset = true;
  static constexpr float kBase = 128;
  static constexpr float kUnits[2] = {1, 1};  // of rows g and g + 8

  __device__ __forceinline__ static void run(const uint4& codes, int part, unsigned (&a)[4]) {
    const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = place_in(words[part] >> (4 * i), 0x000f000fu, 0x43004300u);
  }
};

template <>
struct RawNumbers<Float16, Codes::kInt4> {
  static constexpr bool kHasOffset = true;
  static constexpr float kBase = 0;
  static constexpr float kUnits[2] = {16777216, 1048576};

  __device__ __forceinline__ static void run(const uint4& codes, int part, unsigned (&a)[4]) {
    const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const unsigned word = words[part] >> (8 * pair);
      a[2 * pair] = word & 0x000f000fu;
      a[2 * pair + 1] = word & 0x00f000f0u;
    }
  }
};

template <>
struct RawNumbers<Bfloat16, Codes::kInt8> {
  static constexpr bool kHasOffset = true;
  static constexpr float kBase = -128;
  static constexpr float kUnits[2] = {1, 1};

  __device__ __forceinline__ static void run(const uint4& codes, int part, unsigned (&a)[4]) {
    const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = less_128(words[2 * part + i / 2] >> (8 * (i % 2)));
  }
};

template <>
struct RawNumbers<Float16, Codes::kInt8> {
  static constexpr bool kHasOffset = true;
  static constexpr float kBase = 0;
  static constexpr float kUnits[2] = {16777216, 16777216};

  __device__ __forceinline__ static void run(const uint4& codes, int part, unsigned (&a)[4]) {
    const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = permuted(words[2 * part + i / 2], 0u, i % 2 == 0 ? 0x4240u : 0x4341u);
    }
  }
};

// No offset. Sums of bfloat16 are as large as they are, since fp32 ends where bfloat16 does.
template <class Element>
struct RawNumbers<Element, Codes::kE4m3> {
  static constexpr bool kHasOffset = false;
  static constexpr float kBase = 0;
  static constexpr bool kIsBfloat16 = kIsSame<Element, Bfloat16>;
  static constexpr float kUnits[2] = {kIsBfloat16 ? 1 : 256, kIsBfloat16 ? 1 : 256};

  __device__ __forceinline__ static void run(const uint4& codes, int part, unsigned (&a)[4]) {
    Dequantizer<Element, Codes::kE4m3>::widen(codes, part, a);
    if constexpr (kIsBfloat16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = times_unit(a[i], Element{});
    }
  }
};

// sum += A B^T, and A B^T alone. Unlike gated_mlp::multiply the compiler may move them.
__device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1, const float (&to)[4], Bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(to[0]), "f"(to[1]),
        "f"(to[2]), "f"(to[3]));
}
__device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1, const float (&to)[4], Float16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(to[0]), "f"(to[1]),
        "f"(to[2]), "f"(to[3]));
}

__device__ __forceinline__ void copy_async(unsigned shared, const void* global, bool in_range) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(in_range ? 16 : 0)
               : "memory");
}
// Where `is_there`; zeros where not in range.
__device__ __forceinline__ void copy_async_if(bool is_there, unsigned shared, const void* global,
                                              bool in_range) {
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %3, 0;\n"
      "@there cp.async.cg.shared.global [%0], [%1], 16, %2;\n}" ::"r"(shared),
      "l"(global), "r"(in_range ? 16 : 0), "r"(static_cast<int>(is_there))
      : "memory");
}
template <int kBytes>
__device__ __forceinline__ void copy_words_if(bool is_there, unsigned shared, const void* global) {
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %3, 0;\n"
      "@there cp.async.ca.shared.global [%0], [%1], %2;\n}" ::"r"(shared),
      "l"(global), "n"(kBytes), "r"(static_cast<int>(is_there))
      : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ uint4 load_shared(unsigned address) {
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}
__device__ __forceinline__ uint2 load_shared_pair(unsigned address) {
  uint2 words;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(words.x), "=r"(words.y)
               : "r"(address)
               : "memory");
  return words;
}
// Where a lane's bytes begin in a share of a packed tile.
template <Codes kCodes>
__device__ __forceinline__ int lane_byte(int lane) {
  return kCodes == Codes::kE4m3 ? e4m3_lane_byte(lane / 4, lane % 4) : lane * kLaneBytes;
}
// Scales and zeros of rows g and g + 8 in four times 32 of k.
template <Codes kCodes>
struct GroupWords {
  unsigned scales[4];
  unsigned zeros[4];  // two bytes

  __device__ __forceinline__ float2 scale(int step, int bfloat16_scales) const {
    return bfloat16_scales != 0 ? gated_mlp::unpack_pair<Bfloat16>(scales[step])
                                : gated_mlp::unpack_pair<Float16>(scales[step]);
  }
  __device__ __forceinline__ unsigned zero(int step) const { return zeros[step]; }
};

template <>
struct GroupWords<Codes::kE4m3> {
  uint4 scales[2];  // fp32 of row g and row g + 8, step by step

  __device__ __forceinline__ float2 scale(int step, int) const {
    const uint4& two = scales[step / 2];
    return step % 2 == 0 ? float2{__uint_as_float(two.x), __uint_as_float(two.y)}
                         : float2{__uint_as_float(two.z), __uint_as_float(two.w)};
  }
  __device__ __forceinline__ unsigned zero(int) const { return 0; }
};

// The group of the 32 columns of k, from a tile on, whose scales a lane copies. k is an int: the
// host sees to that.
__device__ __forceinline__ int group_at(const ProductArguments& p, int tile, int lane) {
  const int group = (tile * kTileDepth + lane % 4 * 32) >> p.shift;
  return group < p.groups ? group : p.groups - 1;
}

// kTiles neighbouring tiles of k of one row tile, in shared memory: codes as packed, of which each
// lane copies what it reads; then of each 8 row pairs the scales of four times 32 of k, a word a
// lane, then zeros alike, with those of the pair beside; fp32 scales instead, two words a lane.
// Those a lane reads others have copied.
template <Codes kCodes, int kTiles>
struct TileCopy {
  static constexpr int kLoads = bits_of(kCodes) / 4;
  static constexpr int kWords = kTiles * kLoads * kStepBytes;  // where they begin
  static constexpr int kBytes = kWords + 2 * 32 * 4;

  // What a lane copies; all addresses but `shared` are its own. Of a second tile that is not there:
  // zeros.
  __device__ __forceinline__ static void copy_codes(unsigned shared, int lane,
                                                    const unsigned char* from, bool is_there,
                                                    bool has_second) {
#pragma unroll
    for (int i = 0; i < kTiles * kLoads; ++i) {
      const bool in_range = i < kLoads || has_second;
      copy_async_if(is_there, shared + static_cast<unsigned>(lane * kLaneBytes + i * kStepBytes),
                    in_range ? from + i * kStepBytes : from, in_range);
    }
  }
  __device__ __forceinline__ static void copy_scales(unsigned shared, int lane,
                                                     const unsigned char* from, bool is_there) {
    constexpr int kLane = kCodes == Codes::kE4m3 ? 8 : 4;
    copy_words_if<kLane>(is_there, shared + static_cast<unsigned>(kWords + lane * kLane), from);
  }
  __device__ __forceinline__ static void copy_zeros(unsigned shared, int lane,
                                                    const unsigned char* from, bool is_there) {
    copy_words_if<4>(is_there, shared + static_cast<unsigned>(kWords + (32 + lane) * 4), from);
  }

  // Of 8 bits those of step number % kLoads of a tile, in which rows of e4m3 have each their share.
  __device__ __forceinline__ static uint4 codes(unsigned shared, int lane, int number) {
    const unsigned place = shared + static_cast<unsigned>(lane * kLaneBytes);
    if constexpr (kCodes == Codes::kE4m3) {
      const unsigned step =
          place + static_cast<unsigned>(number / 2 * (2 * kStepBytes) + number % 2 * 8);
      const uint2 low = load_shared_pair(step);
      const uint2 high = load_shared_pair(step + kStepBytes);
      return {low.x, high.x, low.y, high.y};
    }
    return load_shared(place + static_cast<unsigned>(number * kStepBytes));
  }
  // Zeros of rows g and g + 8 in the 32 columns of one step.
  __device__ __forceinline__ static uint2 zeros_of(unsigned shared, int lane, int step) {
    unsigned both;
    asm volatile("ld.shared.u32 %0, [%1];"
                 : "=r"(both)
                 : "r"(shared + static_cast<unsigned>(kWords + (32 + lane / 4 * 4 + step) * 4))
                 : "memory");
    both >>= lane / 4 % 2 * 16;
    return {both & 0xffu, both >> 8 & 0xffu};
  }
  __device__ __forceinline__ static GroupWords<kCodes> groups(unsigned shared, int lane,
                                                              bool has_zeros) {
    if constexpr (kCodes == Codes::kE4m3) {
      const unsigned place = shared + static_cast<unsigned>(kWords + lane / 4 * 32);
      return {{load_shared(place), load_shared(place + 16)}};
    } else {
      const unsigned place = shared + static_cast<unsigned>(kWords + lane / 4 * 16);
      const uint4 scales = load_shared(place);
      constexpr unsigned kMiddle = 0x101u * middle_of(kCodes);
      GroupWords<kCodes> words = {{scales.x, scales.y, scales.z, scales.w},
                                  {kMiddle, kMiddle, kMiddle, kMiddle}};
      if (has_zeros) {
        const uint4 both = load_shared(place + 32 * 4);
        const int shift = lane / 4 % 2 * 16;
        words.zeros[0] = both.x >> shift;
        words.zeros[1] = both.y >> shift;
        words.zeros[2] = both.z >> shift;
        words.zeros[3] = both.w >> shift;
      }
      return words;
    }
  }
};

// A lane's row tile of one matrix.
template <Codes kCodes>
struct RowTile {
  static constexpr int kScaleBytes = scale_bytes(kCodes);
  const unsigned char* codes;  // of this lane, in the first tile of k
  const unsigned char* scales;
  const unsigned char* zeros;  // or null

  RowTile() = default;
  __device__ __forceinline__ RowTile(const ProductArguments& p, const MatrixArguments& b,
                                     int row_tile) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const long long at = static_cast<long long>(row_tile) * p.groups * kTileRows;
    codes = b.codes + static_cast<long long>(row_tile) * p.depth_tiles * tile_bytes(kCodes) +
            lane_byte<kCodes>(lane);
    scales = b.scales + (at + lane / 4 * 2) * kScaleBytes;
    zeros = b.zeros == nullptr ? nullptr : b.zeros + at + lane / 8 * 4;
  }

  __device__ __forceinline__ void copy(const ProductArguments& p, int tile, unsigned shared,
                                       int lane) const {
    const long long group = group_at(p, tile, lane);
    using Copy = TileCopy<kCodes, 1>;
    Copy::copy_codes(shared, lane, codes + static_cast<long long>(tile) * tile_bytes(kCodes), true,
                     true);
    Copy::copy_scales(shared, lane, scales + group * (kTileRows * kScaleBytes), true);
    if (kCodes != Codes::kE4m3 && zeros != nullptr) {
      Copy::copy_zeros(shared, lane, zeros + group * kTileRows, true);
    }
  }
};

}  // namespace quantized_mlp
