// SPDX-License-Identifier: Apache-2.0
//
// layer_call NAME@VERSION cpu|cuda M D H
//
// What one call of the layer costs the calling thread, by its own clock: GegluMlp::forward with a
// workspace that is passed, bfloat16 on a GPU and float32 on the CPU. Batches of calls are enqueued
// and timed, the GPU is waited for outside of the time, and the fastest batch counts. Prints
// {"us": N}; host_cost.py puts it beside what Python costs. Wants KILN_REGISTRY.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "device_memory.hpp"
#include "kiln/kiln.hpp"
#include "kiln/layers/geglu_mlp.hpp"

namespace {

constexpr int kBatch = 200;
constexpr int kBatches = 40;

double thread_microseconds() {
  timespec now{};
  if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) {
    throw std::runtime_error("layer_call: the thread has no clock");
  }
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

std::int64_t number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    throw std::runtime_error("layer_call: '" + std::string(text) + "' is not a positive number");
  }
  return value;
}

double measure(std::string_view package, bool on_gpu, std::int64_t m, std::int64_t d,
               std::int64_t h) {
  const std::size_t at = package.find('@');
  if (at == std::string_view::npos) throw std::runtime_error("layer_call: wants NAME@VERSION");
  const kiln::Device device = on_gpu ? kiln::Device::cuda(0) : kiln::Device::cpu();
  const kiln::DType dtype = on_gpu ? kiln::DType::kBFloat16 : kiln::DType::kFloat32;
  DeviceMemory memory(device);
  const auto tensor = [&](std::int64_t rows, std::int64_t columns) {  // of zeros
    const auto words = static_cast<std::size_t>(rows * columns) * kiln::size_of(dtype) / 2;
    return kiln::Tensor(memory.upload(std::vector<std::uint16_t>(words)), dtype, {rows, columns},
                        device);
  };
  const kiln::Tensor x = tensor(m, d);
  const kiln::Tensor y = tensor(m, d);
  const kiln::Kernel kernel = kiln::get_kernel(
      package.substr(0, at),
      {.version = static_cast<int>(number(package.substr(at + 1))), .device = device});
  const auto layer = kernel.layer<kiln::layers::GegluMlp>(
      {.gate = tensor(h, d), .up = tensor(h, d), .down = tensor(d, h)});
  const std::size_t bytes = layer.workspace_bytes(x);
  const kiln::Workspace workspace{memory.allocate(bytes), bytes};
  double best = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch <= kBatches; ++batch) {  // one more, which warms up
    memory.synchronize();
    const double begin = thread_microseconds();
    for (int i = 0; i < kBatch; ++i) layer.forward(x, y, workspace);
    if (batch > 0) best = std::min(best, (thread_microseconds() - begin) / kBatch);
  }
  memory.synchronize();
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string_view> arguments(argv + 1, argv + argc);
    if (arguments.size() != 5 || (arguments[1] != "cpu" && arguments[1] != "cuda")) {
      std::fprintf(stderr, "usage: layer_call NAME@VERSION cpu|cuda M D H\n");
      return 2;
    }
    std::printf("{\"us\": %.3f}\n",
                measure(arguments[0], arguments[1] == "cuda", number(arguments[2]),
                        number(arguments[3]), number(arguments[4])));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
