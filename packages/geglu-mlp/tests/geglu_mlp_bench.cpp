// SPDX-License-Identifier: Apache-2.0
//
// geglu_mlp_bench: times forward through kiln::get_kernel and prints one JSON document,
// microseconds a shape. On a GPU: CUDA graph replays over several sets of buffers, more memory
// than the L2 cache holds; median of the rounds. On a CPU: wall clock of whole calls.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench_arguments.hpp"
#include "kiln/kiln.hpp"
#include "kiln/layers/geglu_mlp.hpp"
#include "memory.hpp"
#include "numbers.hpp"

namespace {

using geglu_mlp_test::BenchArguments;
using geglu_mlp_test::Bytes;
using geglu_mlp_test::Memory;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kRotatedBytes = 200 << 20;  // several times the L2 of any GPU so far

struct Shape {
  std::int64_t m, d, h;
};

/// Random numbers by repeating one block: cheap to make, and no power is saved as with zeros.
Bytes random_tensor(kiln::DType dtype, std::int64_t count, double deviation) {
  std::mt19937_64 random(static_cast<std::uint64_t>(count));
  const Bytes block = geglu_mlp_test::random_normal(dtype, std::min<std::int64_t>(count, 1000003),
                                                    deviation, random);
  Bytes bytes(static_cast<std::size_t>(count) * kiln::size_of(dtype));
  for (std::size_t at = 0; at < bytes.size(); at += block.size()) {
    const std::size_t part = std::min(block.size(), bytes.size() - at);
    std::copy_n(block.begin(), part, bytes.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return bytes;
}

class DeviceTensor {
 public:
  DeviceTensor(Memory& memory, const Bytes& bytes)
      : memory_(&memory), data_(memory.allocate(bytes.size())) {
    memory.upload(data_, bytes.data(), bytes.size());
  }
  DeviceTensor(DeviceTensor&& other) noexcept
      : memory_(other.memory_), data_(std::exchange(other.data_, nullptr)) {}
  DeviceTensor& operator=(DeviceTensor&&) = delete;
  ~DeviceTensor() {
    if (data_ != nullptr) memory_->release(data_);
  }
  void* data() const { return data_; }

 private:
  Memory* memory_;
  void* data_;
};

/// One set of inputs and outputs.
struct Set {
  DeviceTensor x, gate, up, down, y, workspace;
  kiln::layers::GegluMlp layer;
  kiln::Tensor x_view, y_view;
  std::size_t workspace_bytes;

  void run(void* stream) const {
    layer.forward(x_view, y_view, {workspace.data(), workspace_bytes}, stream);
  }
};

Set make_set(const kiln::Kernel& kernel, Memory& memory, kiln::DType dtype, Shape shape) {
  const auto scale = [](std::int64_t k) { return 1.0 / std::sqrt(static_cast<double>(k)); };
  DeviceTensor x(memory, random_tensor(dtype, shape.m * shape.d, 1.0));
  DeviceTensor gate(memory, random_tensor(dtype, shape.h * shape.d, scale(shape.d)));
  DeviceTensor up(memory, random_tensor(dtype, shape.h * shape.d, scale(shape.d)));
  DeviceTensor down(memory, random_tensor(dtype, shape.d * shape.h, scale(shape.h)));
  DeviceTensor y(memory, Bytes(static_cast<std::size_t>(shape.m * shape.d) * kiln::size_of(dtype)));
  const kiln::Device device = kernel.device();
  const auto view = [&](const DeviceTensor& tensor, std::int64_t rows, std::int64_t columns) {
    return kiln::Tensor(tensor.data(), dtype, {rows, columns}, device);
  };
  auto layer = kernel.layer<kiln::layers::GegluMlp>({.gate = view(gate, shape.h, shape.d),
                                                     .up = view(up, shape.h, shape.d),
                                                     .down = view(down, shape.d, shape.h)});
  const kiln::Tensor x_view = view(x, shape.m, shape.d);
  const kiln::Tensor y_view = view(y, shape.m, shape.d);
  const std::size_t bytes = layer.workspace_bytes(x_view);
  DeviceTensor workspace(memory, Bytes(bytes));
  return {std::move(x),         std::move(gate),  std::move(up), std::move(down), std::move(y),
          std::move(workspace), std::move(layer), x_view,        y_view,          bytes};
}

Json time_shape(const kiln::Kernel& kernel, Memory& memory, kiln::DType dtype, Shape shape,
                int rounds) {
  const auto size = static_cast<std::int64_t>(kiln::size_of(dtype));
  const std::int64_t set_bytes = size * (3 * shape.d * shape.h + shape.m * (2 * shape.d + shape.h));
  const std::int64_t count =
      memory.is_gpu() ? 1 + kRotatedBytes / std::max<std::int64_t>(set_bytes, 1) : 1;
  std::vector<Set> sets;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(count, 32); ++i) {
    sets.push_back(make_set(kernel, memory, dtype, shape));
  }
  void* stream = memory.make_stream();
  const auto all = [&] {
    for (const Set& set : sets) set.run(stream);
  };
  // Warm up, and find how many replays make a round of 20 ms.
  const float once = std::max(memory.replay(stream, 3, all), 1e-3f);
  const int times = std::clamp(static_cast<int>(20.0f / once), 1, 1000);
  std::vector<double> microseconds;
  microseconds.reserve(static_cast<std::size_t>(rounds));
  for (int round = 0; round < rounds; ++round) {
    microseconds.push_back(1e3 * static_cast<double>(memory.replay(stream, times, all)) /
                           static_cast<double>(sets.size()));
  }
  memory.release_stream(stream);
  std::sort(microseconds.begin(), microseconds.end());
  const auto quantile = [&](double q) {
    return microseconds[static_cast<std::size_t>(q * static_cast<double>(microseconds.size() - 1))];
  };
  const double flops = 6.0 * static_cast<double>(shape.m) * static_cast<double>(shape.d) *
                       static_cast<double>(shape.h);
  return {{"m", shape.m},
          {"d", shape.d},
          {"h", shape.h},
          {"us", quantile(0.5)},
          {"us_20", quantile(0.2)},
          {"us_80", quantile(0.8)},
          {"tflops", flops / quantile(0.5) * 1e-6},
          {"sets", sets.size()}};
}

Shape parse_shape(const std::string& text) {
  Shape shape{};
  char comma = 0;
  std::istringstream stream(text);
  if (!(stream >> shape.m >> comma >> shape.d >> comma >> shape.h)) {
    throw std::runtime_error("shape '" + text + "' is not M,D,H");
  }
  return shape;
}

int bench(const BenchArguments& arguments) {
  kiln::Request request;
  request.version = 1;
  request.registry = arguments.registry;
  request.variant = arguments.variant;
  if (arguments.device == "cpu") request.device = kiln::Device::cpu();
  const kiln::Kernel kernel = kiln::get_kernel("geglu-mlp", request);
  const std::unique_ptr<Memory> memory = geglu_mlp_test::open_memory(kernel.device());
  const kiln::DType dtype = arguments.dtype == "float16"   ? kiln::DType::kFloat16
                            : arguments.dtype == "float32" ? kiln::DType::kFloat32
                                                           : kiln::DType::kBFloat16;
  Json result = {{"schema", "geglu-mlp.bench/1"},
                 {"variant", std::string(kernel.variant())},
                 {"device", kiln::to_string(kernel.device())},
                 {"dtype", arguments.dtype},
                 {"shapes", Json::array()}};
  for (const std::string& text : arguments.shapes) {
    result["shapes"].push_back(
        time_shape(kernel, *memory, dtype, parse_shape(text), arguments.rounds));
  }
  std::cout << result.dump(2) << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  BenchArguments arguments;
  if (const auto ended = geglu_mlp_test::read_arguments(argc, argv, arguments)) return *ended;
  try {
    return bench(arguments);
  } catch (const std::exception& error) {
    std::cerr << "geglu_mlp_bench: " << error.what() << '\n';
    return 1;
  }
}
