// SPDX-License-Identifier: Apache-2.0
#include "measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "numbers.hpp"

namespace gated_mlp_bench {
namespace {

using namespace std::chrono_literals;

constexpr double kCardTurn = 20;          // milliseconds
constexpr std::int64_t kPowerRows = 256;  // below, memory is the limit and not power
// NVML's power is the mean of the last second on GPUs since Ampere (nvmlDeviceGetPowerUsage).
constexpr auto kPowerWindow = 1000ms;
constexpr auto kSampled = 500ms;
constexpr auto kHostBudget = 300ms;

/// Samples NVML every 10 ms on a thread of its own; nothing is known where NVML does not answer.
class Meter {
 public:
  explicit Meter(const Gpu& gpu) : nvml_({"libnvidia-ml.so.1"}) {
    try {
      nvml_.call("nvmlInit_v2");
      nvml_.call("nvmlDeviceGetHandleByPciBusId_v2", gpu.bus_id().c_str(), &device_);
    } catch (const std::runtime_error&) {
      return;
    }
    thread_ = std::jthread([this](const std::stop_token& stop) { sample(stop); });
  }

  Card finish() {
    if (!thread_.joinable()) return {};
    thread_.request_stop();
    thread_.join();
    if (samples_ == 0) return {};
    return {clock_ / samples_, power_ / samples_};
  }

 private:
  void sample(const std::stop_token& stop) {
    const auto clock = nvml_.function<int(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
    const auto power = nvml_.function<int(void*, unsigned*)>("nvmlDeviceGetPowerUsage");
    while (!stop.stop_requested()) {
      constexpr int kSmClock = 1;
      unsigned megahertz = 0;
      unsigned milliwatts = 0;
      if (clock(device_, kSmClock, &megahertz) == 0 && power(device_, &milliwatts) == 0) {
        clock_ += megahertz;
        power_ += milliwatts / 1000.0;
        ++samples_;
      }
      std::this_thread::sleep_for(10ms);
    }
  }

  SharedLibrary nvml_;
  void* device_ = nullptr;
  double clock_ = 0;
  double power_ = 0;
  int samples_ = 0;
  std::jthread thread_;
};

double milliseconds_of_one(const Gpu::Graph& graph) {
  graph.milliseconds(2);
  return graph.milliseconds(3);
}

int turns_of(double milliseconds, double budget) {
  return std::clamp(static_cast<int>(budget / std::max(milliseconds, 1e-4)), 1, 20000);
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(
        std::lround(share * static_cast<double>(values.size() - 1)))];
  };
  return {at(0.5), at(0.2), at(0.8)};
}

std::size_t forwards_of_graph(std::size_t sets, double operations) {
  constexpr double kFewest = 8;
  constexpr double kMostOperations = 1.2e12;  // of them all: 2 ms
  const auto fewest = static_cast<std::size_t>(std::min(kFewest, kMostOperations / operations));
  return sets * std::max<std::size_t>(1, (fewest + sets - 1) / sets);
}

Turn turn_of(Regime regime, std::int64_t rows) {
  if (regime == Regime::kBurst) return {.rest = 100, .load = 0, .timed = 2};
  return {.rest = 0, .load = rows < kPowerRows ? 0.0 : 1000.0, .timed = 40};
}

std::vector<Spread> round_robin(const std::vector<Gpu::Graph>& graphs, int rounds,
                                const Turn& turn) {
  const std::chrono::duration<double, std::milli> rest(turn.rest);
  std::vector<int> load;
  std::vector<int> timed;
  for (const Gpu::Graph& graph : graphs) {
    const double one = milliseconds_of_one(graph);
    load.push_back(turns_of(one, turn.load));
    timed.push_back(turns_of(one, turn.timed));
  }
  std::vector<std::vector<double>> values(graphs.size());
  std::vector<std::size_t> order(graphs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937_64 random;  // NOLINT(cert-msc51-cpp): any order will do
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t i : order) {
      std::this_thread::sleep_for(rest);
      graphs[i].milliseconds(load[i]);  // at least once: the first one after a rest wakes the GPU
      values[i].push_back(1000 * graphs[i].milliseconds(timed[i]));
    }
  }
  std::vector<Spread> spreads;
  spreads.reserve(graphs.size());
  for (std::vector<double>& of_graph : values) spreads.push_back(spread_of(std::move(of_graph)));
  return spreads;
}

Card card_under(const Gpu& gpu, const Gpu::Graph& graph) {
  const int turns = turns_of(milliseconds_of_one(graph), kCardTurn);
  const auto replay_for = [&](std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < end) graph.milliseconds(turns);
  };
  replay_for(kPowerWindow);
  Meter meter(gpu);
  replay_for(kSampled);
  return meter.finish();
}

double host_nanoseconds(const Gpu& gpu, const std::function<void()>& enqueue) {
  constexpr int kBatches = 100;
  constexpr int kFewest = 5;
  constexpr int kCalls = 16;
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + kHostBudget;
  std::vector<double> values;
  for (int batch = 0; batch < kBatches && (batch < kFewest || Clock::now() < deadline); ++batch) {
    gpu.synchronize();
    const auto begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) enqueue();
    const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
    values.push_back(took.count() / kCalls);
  }
  gpu.synchronize();
  return spread_of(std::move(values)).median;
}

Ceilings measure_ceilings(const Gpu& gpu, const CublasLt* cublaslt, const Elementwise* elementwise,
                          kiln::DType dtype) {
  Ceilings ceilings;
  constexpr std::int64_t kSide = 8192;
  if (cublaslt != nullptr) {
    constexpr auto kBytes = static_cast<std::size_t>(kSide * kSide * 2);
    const gated_mlp_test::Bytes host =
        gated_mlp_test::repeated_normal(dtype, kSide * kSide, 1.0 / 90, 5);
    Gpu::Buffer x(gpu, kBytes);
    Gpu::Buffer w(gpu, kBytes);
    const Gpu::Buffer y(gpu, kBytes);
    x.upload(host.data(), kBytes);
    w.upload(host.data(), kBytes);
    const CublasLt::Operands operands{x.data(), w.data(), y.data()};
    const CublasLt::Gemm gemm =
        cublaslt->choose({.rows = kSide, .in = kSide, .out = kSide, .dtype = dtype}, {operands});
    const Gpu::Graph graph(gpu, [&] { gemm.run(operands); });
    const double once = graph.milliseconds(turns_of(milliseconds_of_one(graph), 100));
    ceilings.tflops = 2.0 * kSide * kSide * kSide / once * 1e-9;
  }
  if (elementwise != nullptr) {
    constexpr std::size_t kBytes = std::size_t{1} << 30;
    Gpu::Buffer source(gpu, kBytes);
    const Gpu::Buffer sink(gpu, 4);
    source.fill(0x5a);
    const Gpu::Graph graph(gpu, [&] { elementwise->read(source.data(), kBytes, sink.data()); });
    const double once = graph.milliseconds(turns_of(milliseconds_of_one(graph), 50));
    ceilings.gbs = static_cast<double>(kBytes) / once * 1e-6;
  }
  return ceilings;
}

}  // namespace gated_mlp_bench
