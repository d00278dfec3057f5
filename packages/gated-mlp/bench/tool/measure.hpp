// SPDX-License-Identifier: Apache-2.0
//
// Measure: times of several graphs, round robin, clock and power under one of them, and what the
// GPU can do at all in the same run. Reads settings of the card, changes none. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cublaslt.hpp"
#include "elementwise.hpp"
#include "gpu.hpp"

namespace gated_mlp_bench {

/// What a contender does in a round: it rests, runs untimed, and is timed. In milliseconds.
struct Turn {
  double rest = 0;
  double load = 0;
  double timed = 0;
};

/// Sustained: 40 ms, from 256 rows on after a second of load, which a GPU takes to find the clock
/// at which it meets the power limit; else it would have the clock of the contender before. Burst:
/// 2 ms after a rest of 100 ms.
enum class Regime { kSustained, kBurst };
Turn turn_of(Regime regime, std::int64_t rows);

struct Spread {
  double median = 0;
  double low = 0;   ///< a fifth of the rounds is below
  double high = 0;  ///< a fifth is above
};
Spread spread_of(std::vector<double> values);

/// How many forwards a graph holds, over `sets` sets of buffers: a multiple of them, at least
/// eight, as in a model, since to launch a graph takes 3 us; but fewer where eight take longer than
/// a burst, 2 ms.
std::size_t forwards_of_graph(std::size_t sets, double operations);

/// Microseconds of one replay, in the order of the graphs; each round has an order of its own.
std::vector<Spread> round_robin(const std::vector<Gpu::Graph>& graphs, int rounds,
                                const Turn& turn);

struct Card {
  double clock = 0;  ///< MHz of the SMs, mean; 0: not known
  double power = 0;  ///< watts, mean
};

/// While the GPU does nothing but replay this graph, from the second second on: takes 1.5 s.
Card card_under(const Gpu& gpu, const Gpu::Graph& graph);

/// Nanoseconds of the host for one call of `enqueue`, the GPU's queue never full: the median of up
/// to 100 batches of 16 calls, fewer where the GPU takes long.
double host_nanoseconds(const Gpu& gpu, const std::function<void()>& enqueue);

struct Ceilings {
  double tflops = 0;  ///< cuBLASLt, 8192 cubed, random numbers; 0: no cuBLASLt
  double gbs = 0;     ///< one kernel that only reads, 1 GiB; 0: no NVRTC
};
Ceilings measure_ceilings(const Gpu& gpu, const CublasLt* cublaslt, const Elementwise* elementwise,
                          kiln::DType dtype);

}  // namespace gated_mlp_bench
