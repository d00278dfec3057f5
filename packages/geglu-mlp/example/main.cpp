// SPDX-License-Identifier: Apache-2.0
//
// The main job on real input: get the GeGLU MLP for this machine, run it on random data, compare
// with double precision, and time it.
//
//   geglu_mlp_example [tokens [width [hidden]]]        default 8192 768 3072
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <kiln/kiln.hpp>
#include <kiln/layers/geglu_mlp.hpp>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "device_memory.hpp"

namespace {

using Bf16 = std::uint16_t;  // the bits of a bfloat16

std::vector<Bf16> random_normal(std::int64_t count, double deviation, std::mt19937_64& engine) {
  std::normal_distribution<float> normal(0.0F, static_cast<float>(deviation));
  std::vector<Bf16> values(static_cast<std::size_t>(count));
  for (Bf16& value : values) value = kiln::to_bfloat16(normal(engine));
  return values;
}

double dot(const Bf16* a, const double* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    sum += static_cast<double>(kiln::from_bfloat16(a[i])) * b[i];
  }
  return sum;
}

double gelu_tanh(double z) {
  const double scale = std::sqrt(2.0 / std::numbers::pi);
  return 0.5 * z * (1.0 + std::tanh(scale * (z + 0.044715 * z * z * z)));
}

struct Mlp {
  std::int64_t tokens, width, hidden;
  std::vector<Bf16> x, gate, up, down;
};

// One row of the result in double precision.
std::vector<double> reference_row(const Mlp& mlp, std::int64_t row) {
  const std::int64_t D = mlp.width;
  const std::int64_t H = mlp.hidden;
  std::vector<double> x(static_cast<std::size_t>(D));
  for (std::int64_t d = 0; d < D; ++d) {
    x[static_cast<std::size_t>(d)] =
        kiln::from_bfloat16(mlp.x[static_cast<std::size_t>(row * D + d)]);
  }
  std::vector<double> h(static_cast<std::size_t>(H));
  for (std::int64_t j = 0; j < H; ++j) {
    h[static_cast<std::size_t>(j)] = gelu_tanh(dot(mlp.gate.data() + j * D, x.data(), D)) *
                                     dot(mlp.up.data() + j * D, x.data(), D);
  }
  std::vector<double> y(static_cast<std::size_t>(D));
  for (std::int64_t d = 0; d < D; ++d) {
    y[static_cast<std::size_t>(d)] = dot(mlp.down.data() + d * H, h.data(), H);
  }
  return y;
}

// |y - reference| / |reference| over some rows spread across the whole output.
double relative_error(const Mlp& mlp, const std::vector<Bf16>& y) {
  const std::int64_t rows = std::min<std::int64_t>(mlp.tokens, 32);
  double difference = 0;
  double norm = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = rows == 1 ? 0 : i * (mlp.tokens - 1) / (rows - 1);
    const std::vector<double> expected = reference_row(mlp, row);
    for (std::int64_t d = 0; d < mlp.width; ++d) {
      const double e = expected[static_cast<std::size_t>(d)];
      const double got = kiln::from_bfloat16(y[static_cast<std::size_t>(row * mlp.width + d)]);
      difference += (got - e) * (got - e);
      norm += e * e;
    }
  }
  return std::sqrt(difference / norm);
}

int run(const Mlp& mlp) {
  const kiln::Kernel kernel = kiln::get_kernel("geglu-mlp", {.version = 1});
  std::printf("%s\n", kernel.resolution().explain().c_str());
  std::printf("loaded %s from %s\n\n", std::string(kernel.variant()).c_str(),
              kernel.library().c_str());

  const std::int64_t M = mlp.tokens;
  const std::int64_t D = mlp.width;
  const std::int64_t H = mlp.hidden;
  const kiln::Device device = kernel.device();
  const auto bf16 = kiln::DType::kBFloat16;
  DeviceMemory memory(device);
  const kiln::Tensor x(memory.upload(mlp.x), bf16, {M, D}, device);
  const kiln::Tensor gate(memory.upload(mlp.gate), bf16, {H, D}, device);
  const kiln::Tensor up(memory.upload(mlp.up), bf16, {H, D}, device);
  const kiln::Tensor down(memory.upload(mlp.down), bf16, {D, H}, device);
  void* output = memory.upload(std::vector<Bf16>(static_cast<std::size_t>(M * D), 0x7fc0));  // NaN
  const kiln::Tensor y(output, bf16, {M, D}, device);

  const auto layer = kernel.layer<kiln::layers::GegluMlp>({.gate = gate, .up = up, .down = down});
  const std::size_t bytes = layer.workspace_bytes(x);
  const kiln::Workspace workspace{memory.allocate(bytes), bytes};

  std::vector<double> milliseconds;
  const bool on_gpu = device.kind == kiln::Device::Kind::kCuda;
  const int repeats = on_gpu ? 50 : 3;
  for (int i = 0; i <= repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    layer.forward(x, y, workspace, /*stream=*/nullptr);
    memory.synchronize();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (i > 0) milliseconds.push_back(took.count());  // the first run warms up
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + repeats / 2, milliseconds.end());
  const double median = milliseconds[static_cast<std::size_t>(repeats / 2)];

  const double error =
      relative_error(mlp, memory.download(output, static_cast<std::size_t>(M * D)));
  const double flops =
      6.0 * static_cast<double>(M) * static_cast<double>(D) * static_cast<double>(H);
  std::printf("forward  x[%lld, %lld] bf16, hidden %lld, on %s\n", static_cast<long long>(M),
              static_cast<long long>(D), static_cast<long long>(H),
              kiln::to_string(device).c_str());
  std::printf("error    %.2e relative L2 against fp64 (bound 2.5e-03)\n", error);
  std::printf("time     %.3f ms median of %d, %.2f TFLOP/s\n", median, repeats,
              flops / median / 1e9);
  return error <= 2.5e-3 ? 0 : 1;  // false for NaN too
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto argument = [&](int i, std::int64_t fallback) {
      return argc > i ? std::stoll(argv[i]) : fallback;
    };
    std::mt19937_64 engine(2026);
    Mlp mlp{argument(1, 8192), argument(2, 768), argument(3, 3072), {}, {}, {}, {}};
    const double D = static_cast<double>(mlp.width);
    mlp.x = random_normal(mlp.tokens * mlp.width, 1.0, engine);
    mlp.gate = random_normal(mlp.hidden * mlp.width, 1 / std::sqrt(D), engine);
    mlp.up = random_normal(mlp.hidden * mlp.width, 1 / std::sqrt(D), engine);
    mlp.down = random_normal(mlp.hidden * mlp.width, 1 / std::sqrt(static_cast<double>(mlp.hidden)),
                             engine);
    return run(mlp);
  } catch (const kiln::Error& error) {
    std::fprintf(stderr, "kiln: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
