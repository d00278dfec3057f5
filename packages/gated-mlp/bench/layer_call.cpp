// SPDX-License-Identifier: Apache-2.0
//
// layer_call NAME@VERSION cpu|cuda M D H
//
// What one call of the layer costs the calling thread, by its own clock: GegluMlp::forward with a
// workspace that is passed, bfloat16 on a GPU and float32 on the CPU. Batches of calls are enqueued
// and timed, the GPU is waited for outside of the time, and the fastest batch counts. Prints
// {"us": N}; host_cost.py puts it beside what Python costs. Wants KILN_REGISTRY.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "kiln/kiln.hpp"
#include "kiln/layers/geglu_mlp.hpp"
#include "kiln/testing.hpp"

namespace {

using kiln::testing::Array;

constexpr int kBatch = 200;
constexpr int kBatches = 40;

double thread_microseconds() {
  timespec now{};
  if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) {
    throw std::runtime_error("layer_call: the thread has no clock");
  }
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

double measure(const std::string& package, bool on_gpu, std::int64_t m, std::int64_t d,
               std::int64_t h) {
  const kiln::Device device = on_gpu ? kiln::Device::cuda(0) : kiln::Device::cpu();
  const kiln::DType dtype = on_gpu ? kiln::DType::kBFloat16 : kiln::DType::kFloat32;
  Array x(device, dtype, {m, d});
  Array gate(device, dtype, {h, d});
  Array up(device, dtype, {h, d});
  Array down(device, dtype, {d, h});
  for (Array* each : {&x, &gate, &up, &down}) each->set(std::vector<double>(each->size()));
  const Array y(device, dtype, {m, d});
  const std::size_t at = package.find('@');
  const kiln::Kernel kernel = kiln::get_kernel(
      package.substr(0, at), {.version = std::stoi(package.substr(at + 1)), .device = device});
  const auto layer = kernel.layer<kiln::layers::GegluMlp>(
      {.gate = gate.tensor(), .up = up.tensor(), .down = down.tensor()});
  kiln::OwnedWorkspace owned(device);
  const kiln::Tensor from = x.tensor();
  const kiln::Tensor to = y.tensor();
  const kiln::Workspace workspace = owned.reserve(layer.workspace_bytes(from));
  double best = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch <= kBatches; ++batch) {  // one more, which warms up
    const double begin = thread_microseconds();
    for (int i = 0; i < kBatch; ++i) layer.forward(from, to, workspace);
    if (batch > 0) best = std::min(best, (thread_microseconds() - begin) / kBatch);
    if (!y.guards_hold()) throw std::runtime_error("layer_call: it wrote around y");  // waits
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 6) {
      std::fprintf(stderr, "usage: layer_call NAME@VERSION cpu|cuda M D H\n");
      return 2;
    }
    std::printf("{\"us\": %.3f}\n",
                measure(argv[1], std::string(argv[2]) == "cuda", std::stoll(argv[3]),
                        std::stoll(argv[4]), std::stoll(argv[5])));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
