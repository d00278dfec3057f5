// SPDX-License-Identifier: Apache-2.0
//
// Sampler: the next token of the model's logits, by the package sampling. Where no temperature is
// asked for it is the one with the greatest logit.
#pragma once

#include <cstdint>
#include <kiln/kiln.hpp>
#include <vector>

struct Limits {
  float temperature = 0;
  std::int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  std::int64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const Limits& limits) : limits_(limits) {}

  /// `position`: how many tokens the sequence has. The same seed draws the same token there.
  int next(std::vector<float>& logits, std::int64_t position);

 private:
  Limits limits_;
  // The model gives its logits to the host, so that they are drawn from there.
  kiln::Kernel kernel_ =
      kiln::get_kernel("sampling", {.version = 1, .device = kiln::Device::cpu()});
  kiln::OwnedWorkspace workspace_{kiln::Device::cpu()};
};
