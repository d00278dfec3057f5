// SPDX-License-Identifier: Apache-2.0
//
// Rules: what a variant needs against what a machine has, one function a rule, and how well the
// variants that pass them fit. The inner part of resolve. Pure.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "kiln/resolve.hpp"
#include "manifest.hpp"

namespace kiln {

/// One machine, one request.
struct Question {
  const Host* host = nullptr;
  Device device;             ///< never automatic
  const Gpu* gpu = nullptr;  ///< the GPU asked for; none for the CPU
  const Selection* selection = nullptr;
};

/// The best piece of a variant's device code for a GPU. Smaller is better.
struct Fit {
  enum class Kind { kExact, kFamily, kSameSm, kLowerMinor, kPtx, kCpu, kNone };
  Kind kind = Kind::kNone;
  DeviceCode code;
};

/// Among the code that runs on this GPU with this driver; kCpu for a CPU variant.
Fit best_fit(const Variant& variant, const Question& question);

struct Obstacle {
  Refusal refusal = Refusal::kNone;
  std::string detail;
};

/// The first rule, in the order of Refusal, that this variant breaks.
std::optional<Obstacle> first_obstacle(const Variant& variant, const Fit& fit,
                                       const Question& question);

/// All of them; what stands in the way of the nearest variant.
std::vector<Obstacle> all_obstacles(const Variant& variant, const Fit& fit,
                                    const Question& question);

/// The lowest driver with which one of the variant's pieces of code runs on this GPU; none if no
/// driver makes it run.
std::optional<Version> driver_needed(const Variant& variant, Version capability);

/// Whether `left` is taken before `right`, where both fit: a total order in which the position in
/// the index has no part.
bool ranks_before(const Variant& left, const Fit& left_fit, const Variant& right,
                  const Fit& right_fit, const Question& question);

}  // namespace kiln
