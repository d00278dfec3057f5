// SPDX-License-Identifier: Apache-2.0
//
// TuneSearch: the fastest of a package's choices for one shape. Under `kiln tune`, over
// tune_timing.
//
// Each part of a choice is searched with the others as they are: all of its words are timed for a
// glance, the fast ones longer, those that compute something else are left out. What is best then
// has to beat the package's own choice in rounds of their own, in which the two take turns.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "documents/choices.hpp"
#include "install/tuned.hpp"
#include "loader/cli/verbs/tune_shapes.hpp"
#include "loader/cli/verbs/tune_timing.hpp"

namespace kiln::cli {

/// What became of one shape.
struct Found {
  TunedRow row;
  std::size_t tried = 0;           ///< choices that the package takes there
  std::vector<std::string> wrong;  ///< those that computed something else
};

/// A choice must be faster by `least_percent` in the geometric mean of the points at which the
/// shape is timed, and by no more than 1% slower at any. Throws what TimedCalls throws, and
/// kCancelled.
Found find_fastest(const OfferedOp& offered, const TimedOp& timed, const Shape& shape,
                   std::uint64_t least_percent, const std::stop_token& stop);

}  // namespace kiln::cli
