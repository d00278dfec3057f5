// SPDX-License-Identifier: Apache-2.0
#include "numbers.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "kiln/float16.hpp"

namespace gated_mlp_test {
namespace {

struct Format {
  int mantissa_bits;
  int least_exponent;  // of a normal number
  double greatest;
};

Format format_of(kiln::DType dtype) {
  if (dtype == kiln::DType::kFloat16) return {10, -14, 65504.0};
  return {7, -126, static_cast<double>(std::numeric_limits<float>::max())};
}

// The nearest number with the format's mantissa; ties to even by the default rounding mode.
double round_to(const Format& format, double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), format.least_exponent);
  const double unit = std::ldexp(1.0, exponent - format.mantissa_bits);
  const double rounded = std::nearbyint(value / unit) * unit;
  if (std::abs(rounded) <= format.greatest) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

std::uint16_t encode_half(double value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double size = std::abs(value);
  if (std::isnan(value)) return 0x7e00;
  if (std::isinf(size)) return sign | 0x7c00;
  if (size < std::ldexp(1.0, -14)) {
    return static_cast<std::uint16_t>(sign | static_cast<int>(std::ldexp(size, 24)));
  }
  const int exponent = std::ilogb(size);
  const int mantissa = static_cast<int>(std::ldexp(size, 10 - exponent)) - 1024;
  return static_cast<std::uint16_t>(sign | (exponent + 15) << 10 | mantissa);
}

constexpr std::size_t kChunk = std::size_t{1} << 16;  // elements

// A million elements of 16 bits have no more than some thousand values that matter, and to draw and
// round each of them anew took half of a check's time.
constexpr std::size_t kDistinct = 4096;

}  // namespace

double decode(kiln::DType dtype, const unsigned char* element) {
  if (dtype == kiln::DType::kFloat32) {
    float value = 0;
    std::memcpy(&value, element, sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, element, sizeof(bits));
  return dtype == kiln::DType::kFloat16 ? kiln::from_float16(bits) : kiln::from_bfloat16(bits);
}

void encode(kiln::DType dtype, double value, unsigned char* element) {
  if (dtype == kiln::DType::kFloat32) {
    const auto single = static_cast<float>(value);
    std::memcpy(element, &single, sizeof(single));
    return;
  }
  const double rounded = round_to(format_of(dtype), value);
  std::uint16_t bits = 0;
  if (dtype == kiln::DType::kFloat16) {
    bits = encode_half(rounded);
  } else {
    bits =
        static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(rounded)) >> 16);
  }
  std::memcpy(element, &bits, sizeof(bits));
}

std::vector<double> decode_all(kiln::DType dtype, const Bytes& bytes) {
  const std::size_t size = kiln::size_of(dtype);
  std::vector<double> values(bytes.size() / size);
  parallel_pieces(values.size(), kChunk, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) values[i] = decode(dtype, &bytes[i * size]);
  });
  return values;
}

Bytes random_normal(kiln::DType dtype, std::int64_t count, double deviation,
                    std::mt19937_64& random) {
  const std::size_t size = kiln::size_of(dtype);
  const auto elements = static_cast<std::size_t>(count);
  Bytes bytes(elements * size);
  const std::uint64_t seed = random();
  std::mt19937_64 drawn(seed);
  std::normal_distribution<double> normal(0.0, deviation);
  const std::size_t distinct = std::min(elements, kDistinct);
  for (std::size_t i = 0; i < distinct; ++i) encode(dtype, normal(drawn), &bytes[i * size]);
  parallel_pieces(elements - distinct, kChunk, [&](std::size_t first, std::size_t last) {
    std::seed_seq seeds = {seed & 0xffffffff, seed >> 32, std::uint64_t{first}};
    std::mt19937_64 own(seeds);
    for (std::size_t i = distinct + first; i < distinct + last; ++i) {
      std::memcpy(&bytes[i * size], &bytes[own() % kDistinct * size], size);
    }
  });
  return bytes;
}

Bytes repeated_normal(kiln::DType dtype, std::int64_t count, double deviation, std::uint64_t seed) {
  constexpr std::int64_t kBlock = 1000003;  // a prime: no row begins as the one above it
  std::mt19937_64 random(seed);
  const Bytes block = random_normal(dtype, std::min(count, kBlock), deviation, random);
  Bytes bytes(static_cast<std::size_t>(count) * kiln::size_of(dtype));
  for (std::size_t at = 0; at < bytes.size(); at += block.size()) {
    std::copy_n(block.begin(), std::min(block.size(), bytes.size() - at),
                bytes.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return bytes;
}

void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& function) {
  std::atomic<std::int64_t> next = 0;
  const auto work = [&] {
    for (std::int64_t i = next++; i < count; i = next++) function(i);
  };
  std::vector<std::thread> threads;
  const std::int64_t cpus = std::max(1u, std::thread::hardware_concurrency());
  for (std::int64_t i = 1; i < std::min(cpus, count); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

void parallel_pieces(std::size_t count, std::size_t size,
                     const std::function<void(std::size_t, std::size_t)>& function) {
  parallel_for(static_cast<std::int64_t>((count + size - 1) / size), [&](std::int64_t piece) {
    const std::size_t first = static_cast<std::size_t>(piece) * size;
    function(first, std::min(count, first + size));
  });
}

}  // namespace gated_mlp_test
