// SPDX-License-Identifier: Apache-2.0
//
// The main job on real input: get the GeGLU MLP for this machine, run it on random data, compare
// with double precision, and time it. Its memory is that of kiln/testing.hpp, on the CPU or a GPU,
// with no CUDA installed; a real program has its own (cudaMalloc, a framework's allocator).
//
//   geglu_mlp_example [tokens [width [hidden]]]        default 8192 768 3072
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <kiln/kiln.hpp>
#include <kiln/layers/geglu_mlp.hpp>
#include <kiln/testing.hpp>
#include <numbers>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace {

using kiln::testing::Array;
using Row = std::span<const double>;

/// Returns what the array holds: the numbers that were drawn, rounded to its dtype.
std::vector<double> draw(Array& array, double deviation, std::mt19937_64& engine) {
  std::normal_distribution<double> normal(0, deviation);
  std::vector<double> values(array.size());
  for (double& value : values) value = normal(engine);
  array.set(values);
  return array.values();
}

double gelu_tanh(double z) {
  const double scale = std::sqrt(2.0 / std::numbers::pi);
  return 0.5 * z * (1.0 + std::tanh(scale * (z + 0.044715 * z * z * z)));
}

Row row_of(const std::vector<double>& matrix, std::size_t row, std::size_t columns) {
  return Row(matrix).subspan(row * columns, columns);
}

double dot(Row a, Row b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// The weights in double precision, [H,D], [H,D] and [D,H].
struct Weights {
  std::vector<double> gate, up, down;
};

std::vector<double> reference_row(const Weights& weights, Row x) {
  std::vector<double> h(weights.gate.size() / x.size());
  for (std::size_t j = 0; j < h.size(); ++j) {
    h[j] = gelu_tanh(dot(row_of(weights.gate, j, x.size()), x)) *
           dot(row_of(weights.up, j, x.size()), x);
  }
  std::vector<double> y(x.size());
  for (std::size_t d = 0; d < y.size(); ++d) y[d] = dot(row_of(weights.down, d, h.size()), h);
  return y;
}

/// |y - reference| / |reference| over some rows spread across the whole output.
double relative_error(const Weights& weights, const std::vector<double>& x,
                      const std::vector<double>& y, std::size_t width) {
  const std::size_t tokens = x.size() / width;
  const std::size_t rows = std::min<std::size_t>(tokens, 32);
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    const std::size_t row = rows == 1 ? 0 : i * (tokens - 1) / (rows - 1);
    const std::vector<double> expected = reference_row(weights, row_of(x, row, width));
    const Row found = row_of(y, row, width);
    for (std::size_t d = 0; d < width; ++d) {
      difference += (found[d] - expected[d]) * (found[d] - expected[d]);
      norm += expected[d] * expected[d];
    }
  }
  return std::sqrt(difference / norm);
}

int run(std::int64_t M, std::int64_t D, std::int64_t H) {
  const kiln::Kernel kernel = kiln::get_kernel("geglu-mlp", {.version = 1});
  std::printf("%s\n", kernel.resolution().explain().c_str());
  std::printf("loaded %s from %s\n\n", std::string(kernel.variant()).c_str(),
              kernel.library().c_str());

  const kiln::Device device = kernel.device();
  const auto bf16 = kiln::DType::kBFloat16;
  Array x(device, bf16, {M, D});
  Array gate(device, bf16, {H, D});
  Array up(device, bf16, {H, D});
  Array down(device, bf16, {D, H});
  const Array y(device, bf16, {M, D});
  std::mt19937_64 engine(2026);
  const double width = 1 / std::sqrt(static_cast<double>(D));
  const std::vector<double> inputs = draw(x, 1, engine);
  const Weights weights{draw(gate, width, engine), draw(up, width, engine),
                        draw(down, 1 / std::sqrt(static_cast<double>(H)), engine)};

  auto layer = kernel.layer<kiln::layers::GegluMlp>(
      {.gate = gate.tensor(), .up = up.tensor(), .down = down.tensor()});
  layer.forward(x.tensor(), y.tensor());
  const double error =
      relative_error(weights, inputs, y.values(), static_cast<std::size_t>(D));  // waits for it

  const int repeats = device.kind == kiln::Device::Kind::kCuda ? 50 : 3;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) layer.forward(x.tensor(), y.tensor());
  const bool whole = y.guards_hold();  // waits, too; nothing was written around y
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  const double each = took.count() / repeats;
  const double flops = 6.0 * static_cast<double>(M * D) * static_cast<double>(H);
  std::printf("forward  x[%lld, %lld] bf16, hidden %lld, on %s\n", static_cast<long long>(M),
              static_cast<long long>(D), static_cast<long long>(H),
              kiln::to_string(device).c_str());
  std::printf("error    %.2e relative L2 against fp64 (bound 2.5e-03)\n", error);
  std::printf("time     %.3f ms mean of %d, %.2f TFLOP/s\n", each, repeats, flops / each / 1e9);
  return whole && error <= 2.5e-3 ? 0 : 1;  // false for NaN too
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto argument = [&](int i, std::int64_t fallback) {
      return argc > i ? std::stoll(argv[i]) : fallback;
    };
    return run(argument(1, 8192), argument(2, 768), argument(3, 3072));
  } catch (const kiln::Error& error) {
    std::fprintf(stderr, "kiln: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
