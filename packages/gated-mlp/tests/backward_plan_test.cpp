// SPDX-License-Identifier: Apache-2.0
//
// The plan of backward, without a GPU: which intermediates the gradients that are asked for need,
// and where they lie.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "host/backward_plan.h"

namespace {

using namespace gated_mlp;

constexpr std::int64_t kM = 1001;
constexpr std::int64_t kD = 24;
constexpr std::int64_t kH = 40;
constexpr std::int64_t kPadded = 1008;

BackwardQuestion ask(void (*set)(BackwardQuestion&)) {
  BackwardQuestion question = {kM, kD, kH};
  set(question);
  return question;
}

std::int64_t elements_of(int part) {
  switch (static_cast<BackwardPart>(part)) {
    case BackwardPart::kWeights:
    case BackwardPart::kTransposedWeights:
      return 2 * kH * kD;
    case BackwardPart::kBiases:
      return 2 * kH;
    case BackwardPart::kGradProducts:
      return kM * 2 * kH;
    case BackwardPart::kDown:
      return kH * kD;
    case BackwardPart::kGradHidden:
      return kM * kH;
    case BackwardPart::kTransposedGradients:
      return 2 * kH * kPadded;
    case BackwardPart::kTransposedHidden:
      return kH * kPadded;
    case BackwardPart::kHidden:
      return kM * kH;
    case BackwardPart::kTransposedX:
    case BackwardPart::kTransposedGradY:
      return kD * kPadded;
  }
  return 0;
}

TEST_CASE("backward plan: a step is taken where a gradient that is asked for needs it") {
  using enum BackwardPart;
  struct Row {
    std::string what;
    void (*set)(BackwardQuestion&);
    std::vector<BackwardPart> parts;
  };
  const Row rows[] = {
      {"nothing", [](BackwardQuestion&) {}, {}},
      {"x",
       [](BackwardQuestion& q) { q.x = true; },
       {kWeights, kGradProducts, kDown, kGradHidden, kTransposedWeights}},
      {"gate",
       [](BackwardQuestion& q) { q.gate = true; },
       {kWeights, kGradProducts, kDown, kGradHidden, kTransposedGradients, kTransposedX}},
      {"up",
       [](BackwardQuestion& q) { q.up = true; },
       {kWeights, kGradProducts, kDown, kGradHidden, kTransposedGradients, kTransposedX}},
      {"down",
       [](BackwardQuestion& q) { q.down = true; },
       {kWeights, kGradProducts, kTransposedHidden, kTransposedGradY}},
      {"a gate's bias",
       [](BackwardQuestion& q) { q.gate_bias = true; },
       {kWeights, kGradProducts, kDown, kGradHidden, kTransposedGradients}},
      {"an up bias",
       [](BackwardQuestion& q) { q.up_bias = true; },
       {kWeights, kGradProducts, kDown, kGradHidden, kTransposedGradients}},
      {"x of a layer with biases",
       [](BackwardQuestion& q) { q.x = q.biases = true; },
       {kWeights, kBiases, kGradProducts, kDown, kGradHidden, kTransposedWeights}},
      {"x of a layer with biases, with what training_forward kept",
       [](BackwardQuestion& q) { q.x = q.biases = q.kept = true; },
       {kGradProducts, kDown, kGradHidden, kTransposedWeights}},
      {"a down bias of a layer with biases",
       [](BackwardQuestion& q) { q.down_bias = q.biases = true; },
       {kTransposedGradY}},
      {"gate with what training_forward kept",
       [](BackwardQuestion& q) { q.gate = q.kept = true; },
       {kGradProducts, kDown, kGradHidden, kTransposedGradients, kTransposedX}},
      {"a down bias", [](BackwardQuestion& q) { q.down_bias = true; }, {kTransposedGradY}},
      {"all that lies well",
       [](BackwardQuestion& q) { q.as_it_lies = q.x = q.gate = q.up = q.down = q.biases = true; },
       {kGradProducts, kHidden}},
      {"x, which lies well, with what was kept",
       [](BackwardQuestion& q) { q.as_it_lies = q.x = q.kept = true; },
       {kGradProducts}},
      {"down, which lies well, with what was kept",
       [](BackwardQuestion& q) { q.as_it_lies = q.down = q.kept = true; },
       {kGradProducts, kHidden}},
      {"a down bias, which lies well",
       [](BackwardQuestion& q) { q.as_it_lies = q.down_bias = true; },
       {}},
      {"x and all weights",
       [](BackwardQuestion& q) { q.x = q.gate = q.up = q.down = true; },
       {kWeights, kGradProducts, kDown, kGradHidden, kTransposedWeights, kTransposedGradients,
        kTransposedHidden, kTransposedX, kTransposedGradY}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const BackwardPlan plan = plan_backward(ask(row.set));
    CHECK(plan.padded_m == kPadded);
    std::size_t end = 0;
    std::vector<BackwardPart> parts;
    for (int part = 0; part < kBackwardParts; ++part) {
      if (!plan.has(static_cast<BackwardPart>(part))) continue;
      parts.push_back(static_cast<BackwardPart>(part));
      CHECK(plan.offsets[part] % kBackwardAlignment == 0);
      CHECK(plan.offsets[part] >= end);
      end = plan.offsets[part] + static_cast<std::size_t>(kHalfBytes * elements_of(part));
    }
    CHECK(parts == row.parts);
    CHECK(plan.workspace_bytes >= end);
    CHECK(plan.workspace_bytes < end + kBackwardAlignment);
  }
}

TEST_CASE("backward plan: no rows, no columns, and more bytes than a size_t holds") {
  const auto bytes = [](std::int64_t m, std::int64_t d, std::int64_t h) {
    BackwardQuestion question = {m, d, h};
    question.x = question.gate = question.up = question.down = true;
    return plan_backward(question).workspace_bytes;
  };
  CHECK(bytes(0, 0, 0) == 0);
  CHECK(bytes(8, 16, 32) > 0);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(bytes(kMost / 64, 64, 4096) == SIZE_MAX);
  CHECK(bytes(64, kMost / 64, 4096) == SIZE_MAX);
  CHECK(bytes(64, 4096, kMost / 64) == SIZE_MAX);
}

}  // namespace
