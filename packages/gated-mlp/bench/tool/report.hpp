// SPDX-License-Identifier: Apache-2.0
//
// Report: what was measured as text, as JSON and as a plot; the stage after measure and trace.
// Pure.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "measure.hpp"
#include "ways.hpp"

namespace gated_mlp_bench {

struct Seen {
  const Way* way = nullptr;
  std::vector<std::string> kernels;  ///< empty: not traced
  Spread microseconds;
  double tflops = 0;
  double gbs = 0;    ///< least traffic over time
  double error = 0;  ///< relative L2 against fp64
};

struct Outcome {
  Shape shape{};
  std::vector<Seen> seen;  ///< Kiln is the last
  Card card;               ///< while only Kiln ran; zeros: not sampled
  double host_ns = 0;
  double bare_ns = 0;  ///< 0: no NVRTC

  const Seen& kiln() const { return seen.back(); }
  const Seen* best_rival() const;  ///< of those that compute the MLP; null: there is none
  /// Bandwidth of a bare read of the weights in the same rounds; 0: not measured.
  double same_bytes_gbs() const;
};

void print_expected(bool cublaslt, bool nvrtc, std::ostream& out);
void print_ceilings(const Ceilings& ceilings, std::ostream& out);
void print_times(const Outcome& outcome, const Ceilings& ceilings, std::ostream& out);

/// The kernels that were traced; where their number is not the guessed one, a line says why it can
/// be.
void print_kernels(const Outcome& outcome, std::ostream& out);

nlohmann::ordered_json to_json(const Outcome& outcome, const Ceilings& ceilings);

/// Up to six shapes: each way's time; more: the best rival's time over Kiln's.
/// The name of the file that --share writes: "NVIDIA GeForce RTX 4090" is
/// nvidia-geforce-rtx-4090-shared.json.
std::string shared_file_of(const std::string& gpu);

std::string plot_of(const std::vector<Outcome>& outcomes, const std::string& subtitle);

}  // namespace gated_mlp_bench
