// SPDX-License-Identifier: Apache-2.0
//
// gated_mlp_cpu_bench: forward on one CPU, bfloat16 and float32, against the same MLP by libraries:
// OpenBLAS (float32: three cblas_sgemm and a pass of gelu(g) * u) and oneDNN (both dtypes: three
// matmuls, gelu and the product with u fused into the second; weights as they are and, in bfloat16,
// packed beforehand). OpenBLAS's products are timed alone, too. The calling thread is pinned and
// makes no other. Rounds take turns and each call's time is the CPU time of the thread, so that
// what else the machine does costs a way its caches, and not the time that it waits. Prints the
// medians and the least of the rounds as JSON. oneDNN makes its threads when it is loaded, so
// $OMP_NUM_THREADS must be 1. An OpenBLAS that does not know the CPU takes its slowest kernels: the
// result names them, and $OPENBLAS_CORETYPE chooses others.
//
//   gated_mlp_cpu_bench COMMIT [ROUNDS [VARIANT]]   21 rounds, the best variant; $KILN_REGISTRY
#include <cblas.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "kiln/kiln.hpp"
#include "kiln/layers/geglu_mlp.hpp"
#include "machine.hpp"

namespace {

using Json = nlohmann::ordered_json;
using Bytes = std::vector<std::byte>;
using dnnl::memory;

struct Shape {
  int m, d, h;
};

struct Matrix {
  int rows, columns;
  Bytes bytes;
};

void pin_to_one_cpu() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(sched_getcpu(), &cpus);
  if (sched_setaffinity(0, sizeof(cpus), &cpus) != 0) throw std::runtime_error("cannot pin");
}

double thread_milliseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

memory::data_type type_of(kiln::DType dtype) {
  return dtype == kiln::DType::kFloat32 ? memory::data_type::f32 : memory::data_type::bf16;
}

/// Row-major; or its transpose, as a matmul wants nn.Linear's weights.
memory view(const dnnl::engine& engine, Matrix& matrix, kiln::DType dtype, bool transposed) {
  const memory::desc desc =
      transposed
          ? memory::desc({matrix.columns, matrix.rows}, type_of(dtype), memory::format_tag::ba)
          : memory::desc({matrix.rows, matrix.columns}, type_of(dtype), memory::format_tag::ab);
  return {desc, engine, matrix.bytes.data()};
}

/// One product of oneDNN's, with what is fused into it.
struct Product {
  dnnl::matmul primitive;
  std::unordered_map<int, memory> arguments;
  std::string implementation;
};

/// y = (gelu(x gate^T) * (x up^T)) down^T by oneDNN.
class OneDnn {
 public:
  OneDnn(Matrix& x, Matrix& gate, Matrix& up, Matrix& down, kiln::DType dtype, bool packed)
      : dtype_(dtype),
        packed_(packed),
        u_{x.rows, gate.rows, Bytes(bytes_of(x.rows, gate.rows))},
        h_{x.rows, gate.rows, Bytes(bytes_of(x.rows, gate.rows))},
        y_{x.rows, x.columns, Bytes(bytes_of(x.rows, x.columns))} {
    products_.push_back(product(x, up, u_, nullptr));
    products_.push_back(product(x, gate, h_, &u_));
    products_.push_back(product(h_, down, y_, nullptr));
  }

  void run() {
    for (const Product& product : products_) product.primitive.execute(stream_, product.arguments);
    stream_.wait();
  }
  std::string implementation() const { return products_.front().implementation; }
  const Bytes& y() const { return y_.bytes; }

 private:
  std::size_t bytes_of(int rows, int columns) const {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns) *
           kiln::size_of(dtype_);
  }

  Product product(Matrix& a, Matrix& weights, Matrix& out, Matrix* factor) {
    const memory source = view(engine_, a, dtype_, false);
    memory right = view(engine_, weights, dtype_, true);
    const memory to = view(engine_, out, dtype_, false);
    std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, source}, {DNNL_ARG_DST, to}};
    dnnl::primitive_attr attributes;
    if (factor != nullptr) {
      const memory by = view(engine_, *factor, dtype_, false);
      dnnl::post_ops after;
      after.append_eltwise(1.0F, dnnl::algorithm::eltwise_gelu_tanh, 0.0F, 0.0F);
      after.append_binary(dnnl::algorithm::binary_mul, by.get_desc());
      attributes.set_post_ops(after);
      arguments.insert({DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1, by});
    }
    const memory::desc wanted = packed_ ? memory::desc({weights.columns, weights.rows},
                                                       type_of(dtype_), memory::format_tag::any)
                                        : right.get_desc();
    const dnnl::matmul::primitive_desc description(
        dnnl::matmul::desc(source.get_desc(), wanted, to.get_desc()), attributes, engine_);
    if (packed_) {
      memory ahead(description.weights_desc(), engine_);
      dnnl::reorder(right, ahead).execute(stream_, right, ahead);
      stream_.wait();
      right = ahead;
    }
    arguments.insert({DNNL_ARG_WEIGHTS, right});
    return {dnnl::matmul(description), arguments, description.impl_info_str()};
  }

  kiln::DType dtype_;
  bool packed_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  Matrix u_, h_, y_;
  std::vector<Product> products_;
};

/// The same in float32 by OpenBLAS.
class OpenBlas {
 public:
  OpenBlas(Matrix& x, Matrix& gate, Matrix& up, Matrix& down)
      : x_(x),
        gate_(gate),
        up_(up),
        down_(down),
        g_(size(x.rows, gate.rows)),
        u_(g_.size()),
        y_(size(x.rows, x.columns)) {}

  void run() {
    multiply(floats(x_), gate_, g_);
    multiply(floats(x_), up_, u_);
    for (std::size_t i = 0; i < g_.size(); ++i) {
      const float x = g_[i];
      const float z = 1.5957691F * (x + 0.044715F * x * x * x);
      g_[i] = x / (1.0F + std::exp(-z)) * u_[i];
    }
    multiply(g_.data(), down_, y_);
  }
  void run_products_alone() {
    multiply(floats(x_), gate_, g_);
    multiply(floats(x_), up_, u_);
    multiply(u_.data(), down_, y_);
  }

 private:
  static std::size_t size(int rows, int columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  }
  static const float* floats(const Matrix& matrix) {
    return reinterpret_cast<const float*>(matrix.bytes.data());
  }
  void multiply(const float* a, const Matrix& weights, std::vector<float>& out) const {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, x_.rows, weights.rows, weights.columns,
                1.0F, a, weights.columns, floats(weights), weights.columns, 0.0F, out.data(),
                weights.rows);
  }

  Matrix& x_;
  Matrix& gate_;
  Matrix& up_;
  Matrix& down_;
  std::vector<float> g_, u_, y_;
};

Matrix random_matrix(int rows, int columns, double deviation, kiln::DType dtype,
                     std::mt19937& random) {
  std::normal_distribution<float> normal(0.0F, static_cast<float>(deviation));
  const std::size_t count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  Matrix matrix = {rows, columns, Bytes(count * kiln::size_of(dtype))};
  for (std::size_t i = 0; i < count; ++i) {
    const float value = normal(random);
    const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
    const std::size_t kept = kiln::size_of(dtype);  // of bfloat16 the upper half
    std::copy(bytes + sizeof(value) - kept, bytes + sizeof(value), matrix.bytes.data() + i * kept);
  }
  return matrix;
}

using Ways = std::map<std::string, std::function<void()>>;

/// Adds {WAY_ms, WAY_least_ms} of each way.
void time_ways(const Ways& ways, int rounds, Json& to) {
  std::map<std::string, std::vector<double>> times;
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    for (const auto& [name, run] : ways) {
      const double start = thread_milliseconds();
      run();
      if (round >= 0) times[name].push_back(thread_milliseconds() - start);
    }
  }
  for (auto& [name, of_way] : times) {
    std::sort(of_way.begin(), of_way.end());
    to[name + "_ms"] = of_way[of_way.size() / 2];
    to[name + "_least_ms"] = of_way.front();
  }
}

void compare(const kiln::Kernel& kernel, Shape shape, kiln::DType dtype, int rounds, Json& machine,
             Json& to) {
  const bool half = dtype == kiln::DType::kBFloat16;
  std::mt19937 random(7);
  Matrix x = random_matrix(shape.m, shape.d, 1.0, dtype, random);
  Matrix gate = random_matrix(shape.h, shape.d, 1.0 / std::sqrt(shape.d), dtype, random);
  Matrix up = random_matrix(shape.h, shape.d, 1.0 / std::sqrt(shape.d), dtype, random);
  Matrix down = random_matrix(shape.d, shape.h, 1.0 / std::sqrt(shape.h), dtype, random);
  Matrix y = {shape.m, shape.d, Bytes(x.bytes.size())};
  const auto tensor = [&](Matrix& matrix) {
    return kiln::Tensor(matrix.bytes.data(), dtype, {matrix.rows, matrix.columns},
                        kiln::Device::cpu());
  };
  auto layer = kernel.layer<kiln::layers::GegluMlp>(
      {.gate = tensor(gate), .up = tensor(up), .down = tensor(down)});
  OneDnn onednn(x, gate, up, down, dtype, false);
  OneDnn packed(x, gate, up, down, dtype, true);
  machine[half ? "onednn_bf16" : "onednn_f32"] = onednn.implementation();
  Ways ways;
  if (half) {
    ways["kiln_bf16"] = [&] { layer.forward(tensor(x), tensor(y)); };
    ways["onednn_bf16"] = [&] { onednn.run(); };
    ways["onednn_bf16_packed"] = [&] { packed.run(); };
    time_ways(ways, rounds, to);
  } else {
    OpenBlas openblas(x, gate, up, down);
    ways["kiln_f32"] = [&] { layer.forward(tensor(x), tensor(y)); };
    ways["onednn_f32"] = [&] { onednn.run(); };
    ways["openblas_f32"] = [&] { openblas.run(); };
    ways["openblas_f32_products"] = [&] { openblas.run_products_alone(); };
    time_ways(ways, rounds, to);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw std::runtime_error("usage: gated_mlp_cpu_bench COMMIT [ROUNDS [VARIANT]]");
    const char* const threads = std::getenv("OMP_NUM_THREADS");
    if (threads == nullptr || std::string(threads) != "1") {
      throw std::runtime_error("oneDNN would use more than one thread: set OMP_NUM_THREADS=1");
    }
    pin_to_one_cpu();
    openblas_set_num_threads(1);
    const int rounds = argc > 2 ? std::stoi(argv[2]) : 21;
    kiln::Request request;
    request.version = 1;
    request.device = kiln::Device::cpu();
    if (argc > 3) request.variant = argv[3];
    const kiln::Kernel kernel = kiln::get_kernel("geglu-mlp", request);
    const dnnl_version_t* const onednn = dnnl_version();
    Json result = {{"schema", "geglu-mlp.cpu/1"},
                   {"cpu", gated_mlp_test::cpu_name()},
                   {"threads", 1},
                   {"date", gated_mlp_test::today()},
                   {"commit", argv[1]},
                   {"variant", std::string(kernel.variant())},
                   {"openblas",
                    std::string(openblas_get_config()) + ", kernels of " + openblas_get_corename()},
                   {"onednn", std::to_string(onednn->major) + "." + std::to_string(onednn->minor) +
                                  "." + std::to_string(onednn->patch)},
                   {"rounds", rounds},
                   {"regime", "CPU time of one pinned thread; rounds take turns"},
                   {"shapes", Json::array()}};
    std::vector<Shape> shapes;
    for (const int m : {1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192}) {
      shapes.push_back({m, 768, 3072});
    }
    for (const int m : {16, 128, 1024}) shapes.push_back({m, 1024, 4096});
    for (const Shape shape : shapes) {
      Json times = {{"m", shape.m}, {"d", shape.d}, {"h", shape.h}};
      const int few = shape.m > 1024 ? std::max(3, rounds / 5) : rounds;
      compare(kernel, shape, kiln::DType::kBFloat16, few, result, times);
      compare(kernel, shape, kiln::DType::kFloat32, few, result, times);
      result["shapes"].push_back(times);
      std::cerr << times.dump() << '\n';
    }
    std::cout << result.dump(2) << '\n';
  } catch (const std::exception& error) {
    std::cerr << "gated_mlp_cpu_bench: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
