// SPDX-License-Identifier: Apache-2.0
//
// geglu_mlp_openblas: forward on the CPU, float32, against the same MLP written with OpenBLAS: two
// cblas_sgemm, a pass of gelu(g) * u, one cblas_sgemm, on the same CPUs. Rounds alternate; prints
// medians as JSON.
//
//   geglu_mlp_openblas [ROUNDS [VARIANT]]   5 rounds, the best variant; from $KILN_REGISTRY
#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "kiln/kiln.hpp"
#include "kiln/layers/geglu_mlp.hpp"
#include "machine.hpp"

namespace {

using Json = nlohmann::ordered_json;

struct Shape {
  int m, d, h;
};

std::vector<float> random_floats(std::size_t count, double deviation) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::normal_distribution<float> normal(0.0F, static_cast<float>(deviation));
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct Data {
  explicit Data(Shape shape)
      : m(static_cast<std::size_t>(shape.m)),
        d(static_cast<std::size_t>(shape.d)),
        h(static_cast<std::size_t>(shape.h)),
        x(random_floats(m * d, 1.0)),
        gate(random_floats(h * d, 1.0 / std::sqrt(shape.d))),
        up(random_floats(h * d, 1.0 / std::sqrt(shape.d))),
        down(random_floats(d * h, 1.0 / std::sqrt(shape.h))),
        y(m * d),
        g(m * h),
        u(m * h),
        y_blas(m * d) {}
  std::size_t m, d, h;
  std::vector<float> x, gate, up, down, y, g, u, y_blas;
};

void times_transposed(int m, int n, int k, const std::vector<float>& a, const std::vector<float>& b,
                      std::vector<float>& c) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0F, a.data(), k, b.data(), k,
              0.0F, c.data(), n);
}

// The pass over g and u on as many threads as OpenBLAS uses: it should not lose for want of them.
void gelu_times(std::vector<float>& g, const std::vector<float>& u, std::size_t threads) {
  const auto run = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const float x = g[i];
      const float z = 1.5957691F * (x + 0.044715F * x * x * x);
      g[i] = x / (1.0F + std::exp(-z)) * u[i];
    }
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < threads; ++i) {
    others.emplace_back(run, g.size() * i / threads, g.size() * (i + 1) / threads);
  }
  run(0, g.size() / threads);
  for (std::thread& other : others) other.join();
}

double milliseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - start;
  return passed.count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Json compare(const kiln::Kernel& kernel, Shape shape, int rounds, std::size_t threads) {
  Data data(shape);
  const kiln::Device cpu = kiln::Device::cpu();
  const auto view = [&](std::vector<float>& values, int rows, int columns) {
    return kiln::Tensor(values.data(), kiln::DType::kFloat32, {rows, columns}, cpu);
  };
  auto layer = kernel.layer<kiln::layers::GegluMlp>({.gate = view(data.gate, shape.h, shape.d),
                                                     .up = view(data.up, shape.h, shape.d),
                                                     .down = view(data.down, shape.d, shape.h)});
  const kiln::Tensor x = view(data.x, shape.m, shape.d);
  const kiln::Tensor y = view(data.y, shape.m, shape.d);
  std::vector<double> ours;
  std::vector<double> gemms;
  std::vector<double> blas;
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    const double kiln_time = milliseconds([&] { layer.forward(x, y); });
    const double first = milliseconds([&] {
      times_transposed(shape.m, shape.h, shape.d, data.x, data.gate, data.g);
      times_transposed(shape.m, shape.h, shape.d, data.x, data.up, data.u);
    });
    const double pass = milliseconds([&] { gelu_times(data.g, data.u, threads); });
    const double second = milliseconds(
        [&] { times_transposed(shape.m, shape.d, shape.h, data.g, data.down, data.y_blas); });
    if (round < 0) continue;
    ours.push_back(kiln_time);
    gemms.push_back(first + second);
    blas.push_back(first + pass + second);
  }
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < data.y.size(); ++i) {
    const double delta = static_cast<double>(data.y[i]) - static_cast<double>(data.y_blas[i]);
    difference += delta * delta;
    size += static_cast<double>(data.y_blas[i]) * static_cast<double>(data.y_blas[i]);
  }
  const double flops = 6.0 * shape.m * shape.d * shape.h;
  return {{"m", shape.m},
          {"d", shape.d},
          {"h", shape.h},
          {"kiln_ms", median(ours)},
          {"openblas_ms", median(blas)},
          {"openblas_gemms_ms", median(gemms)},
          {"kiln_gflops", flops / median(ours) * 1e-6},
          {"openblas_gflops", flops / median(blas) * 1e-6},
          {"relative_difference", std::sqrt(difference / size)}};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int rounds = argc > 1 ? std::stoi(argv[1]) : 5;
    kiln::Request request;
    request.version = 1;
    request.device = kiln::Device::cpu();
    if (argc > 2) request.variant = argv[2];
    const kiln::Kernel kernel = kiln::get_kernel("geglu-mlp", request);
    const auto threads = static_cast<std::size_t>(openblas_get_num_threads());
    Json result = {{"schema", "geglu-mlp.openblas/1"},
                   {"cpu", geglu_mlp_test::cpu_name()},
                   {"threads", threads},
                   {"date", geglu_mlp_test::today()},
                   {"variant", std::string(kernel.variant())},
                   {"openblas", openblas_get_config()},
                   {"dtype", "float32"},
                   {"shapes", Json::array()}};
    for (const Shape shape : {Shape{8192, 768, 3072}, Shape{1024, 1024, 4096},
                              Shape{128, 768, 3072}, Shape{16, 768, 3072}, Shape{1, 768, 3072}}) {
      result["shapes"].push_back(compare(kernel, shape, rounds, threads));
    }
    // The two threads timed here raise it to 2 at most; more than that was someone else's work,
    // which hurts OpenBLAS's waiting threads most.
    double load = 0;
    getloadavg(&load, 1);
    result["load_average"] = load;
    std::cout << result.dump(2) << '\n';
  } catch (const std::exception& error) {
    std::cerr << "geglu_mlp_openblas: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
