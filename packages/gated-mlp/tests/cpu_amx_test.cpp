// SPDX-License-Identifier: Apache-2.0
//
// The forward by tile registers, with registers that this program computes: the machine need not
// have them.
#include <doctest/doctest.h>
#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/amx.hpp"

namespace gated_mlp::cpu {
namespace {

float widened(Bfloat16 value) {
  const std::uint32_t bits = std::uint32_t{value.bits} << 16;
  float wide = 0;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

Bfloat16 rounded(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return {static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

class ComputedTiles {
 public:
  template <int kTile>
  void clear() {
    std::memset(tiles_[kTile], 0, sizeof(tiles_[kTile]));
  }
  template <int kTile>
  void load(const void* rows, std::int64_t stride) {
    for (int i = 0; i < 16; ++i) {
      std::memcpy(tiles_[kTile][i], static_cast<const char*>(rows) + i * stride, 64);
    }
  }
  template <int kTile>
  void load_once(const void* rows, std::int64_t stride) {
    load<kTile>(rows, stride);
  }
  template <int kTile>
  void store(float (&to)[16][16]) {
    std::memcpy(to, tiles_[kTile], sizeof(to));
  }
  template <int kSums, int kA, int kB>
  void add_products() {
    float sums[16][16];
    std::memcpy(sums, tiles_[kSums], sizeof(sums));
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        for (int pair = 0; pair < 16; ++pair) {
          for (int half = 0; half < 2; ++half) {
            sums[i][j] += widened(value<kA>(i, pair, half)) * widened(value<kB>(pair, j, half));
          }
        }
      }
    }
    std::memcpy(tiles_[kSums], sums, sizeof(sums));
  }

 private:
  template <int kTile>
  Bfloat16 value(int row, int word, int half) const {
    Bfloat16 one;
    std::memcpy(&one, tiles_[kTile][row] + word * 4 + half * 2, sizeof(one));
    return one;
  }

  char tiles_[8][16][64] = {};
};

struct Case {
  std::int64_t m, d, h;
  bool biases = false;
  bool keeps = false;
};

using Values = std::vector<Bfloat16>;

Values random_values(std::size_t count, float scale, std::mt19937& random) {
  std::normal_distribution<float> normal(0, scale);
  Values values(count);
  for (Bfloat16& each : values) each = rounded(normal(random));
  return values;
}

// row of [., k] times row of [., k]
double product(const Values& a, std::int64_t row, const Values& b, std::int64_t column,
               std::int64_t k) {
  double sum = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    sum += double{widened(a[static_cast<std::size_t>(row * k + i)])} *
           double{widened(b[static_cast<std::size_t>(column * k + i)])};
  }
  return sum;
}

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (x + 0.044715 * x * x * x)));
}

// Relative to what there is.
double error_of(const Values& found, const std::vector<double>& expected) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    error += std::pow(widened(found[i]) - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

std::size_t size(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows * columns);
}

TEST_CASE("amx: forward and what it keeps are those of double") {
  for (const Case& test :
       {Case{1, 32, 16}, Case{3, 7, 5, true}, Case{16, 64, 32, false, true},
        Case{17, 33, 47, true, true}, Case{40, 96, 100, true, true}, Case{300, 20, 40, true},
        Case{1030, 10, 12, false, true}, Case{5, 2100, 40}, Case{33, 40, 2100, true, true},
        Case{520, 560, 16, true, true}, Case{4, 0, 8, true, true}, Case{4, 8, 0}}) {
    CAPTURE(test.m);
    CAPTURE(test.d);
    CAPTURE(test.h);
    std::mt19937 random(7);
    const auto [m, d, h, biases, keeps] = test;
    const Values x = random_values(size(m, d), 1, random);
    const float in = d > 0 ? 1 / std::sqrt(static_cast<float>(d)) : 1;
    const float out = h > 0 ? 1 / std::sqrt(static_cast<float>(h)) : 1;
    const Values gate = random_values(size(h, d), in, random);
    const Values up = random_values(size(h, d), in, random);
    const Values down = random_values(size(d, h), out, random);
    const Values gate_bias = random_values(size(h, 1), 1, random);
    const Values up_bias = random_values(size(h, 1), 1, random);
    const Values down_bias = random_values(size(d, 1), 1, random);
    const Values residual = random_values(size(m, d), 1, random);
    const auto bias = [&](const Values& values) { return test.biases ? values.data() : nullptr; };
    Values y(size(m, d), Bfloat16{0xffff});
    Values gate_out(size(m, h), Bfloat16{0xffff});
    Values up_out = gate_out;
    std::vector<unsigned char> workspace(amx_workspace_bytes(m, d, h) + 64, 0xff);

    mlp_by_amx<ComputedTiles>({x.data(),
                               gate.data(),
                               up.data(),
                               down.data(),
                               bias(gate_bias),
                               bias(up_bias),
                               bias(down_bias),
                               bias(residual),
                               y.data(),
                               keeps ? gate_out.data() : nullptr,
                               keeps ? up_out.data() : nullptr,
                               m,
                               d,
                               h,
                               {Gate::kGeluTanh, 0},
                               false},
                              workspace.data());

    std::vector<double> g(size(m, h));
    std::vector<double> u(size(m, h));
    std::vector<double> hidden(size(m, h));
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < h; ++j) {
        const auto at = static_cast<std::size_t>(i * h + j);
        const auto column = static_cast<std::size_t>(j);
        g[at] = product(x, i, gate, j, d) + (biases ? widened(gate_bias[column]) : 0);
        u[at] = product(x, i, up, j, d) + (biases ? widened(up_bias[column]) : 0);
        hidden[at] = gelu(g[at]) * u[at];
      }
    }
    std::vector<double> expected(size(m, d));
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < d; ++j) {
        const auto at = static_cast<std::size_t>(i * d + j);
        double sum =
            biases ? widened(down_bias[static_cast<std::size_t>(j)]) + widened(residual[at]) : 0;
        for (std::int64_t k = 0; k < h; ++k) {
          sum += hidden[static_cast<std::size_t>(i * h + k)] *
                 double{widened(down[static_cast<std::size_t>(j * h + k)])};
        }
        expected[at] = sum;
      }
    }
    CHECK(error_of(y, expected) < 4e-3);
    if (keeps) CHECK(error_of(gate_out, g) < 3e-3);
    if (keeps) CHECK(error_of(up_out, u) < 3e-3);
    for (std::size_t i = workspace.size() - 64; i < workspace.size(); ++i)
      CHECK(workspace[i] == 0xff);
  }
}

TEST_CASE("amx: a forward needs less than 128 KiB of stack") {
  constexpr std::int64_t kTokens = 160;  // so many that weights are copied
  constexpr std::int64_t kWidth = 64;
  const Values ones(size(kTokens, kWidth), rounded(1));  // of x, and more than of a weight
  Values y(size(kTokens, kWidth), Bfloat16{0xffff});
  std::vector<unsigned char> workspace(amx_workspace_bytes(kTokens, kWidth, kWidth));
  const auto forward = [&] {
    mlp_by_amx<ComputedTiles>({ones.data(),
                               ones.data(),
                               ones.data(),
                               ones.data(),
                               nullptr,
                               nullptr,
                               nullptr,
                               nullptr,
                               y.data(),
                               nullptr,
                               nullptr,
                               kTokens,
                               kWidth,
                               kWidth,
                               {Gate::kRelu, 0},
                               false},
                              workspace.data());
  };
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0);
  pthread_t thread = 0;
  REQUIRE(pthread_create(
              &thread, &attributes,
              [](void* run) -> void* {
                (*static_cast<decltype(forward)*>(run))();
                return nullptr;
              },
              const_cast<void*>(static_cast<const void*>(&forward))) == 0);
  CHECK(pthread_join(thread, nullptr) == 0);
  pthread_attr_destroy(&attributes);
  const Bfloat16 expected = rounded(64.0F * 64 * 64);
  CHECK(std::ranges::all_of(y, [&](Bfloat16 each) { return each.bits == expected.bits; }));
}

}  // namespace
}  // namespace gated_mlp::cpu
