// SPDX-License-Identifier: Apache-2.0
//
// CompareValues: what two runs of one check wrote, value by value. Between check_run and diff. For
// one thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "loader/cli/verbs/check_run.hpp"

namespace kiln::cli {

/// Of floating-point values: how many representable ones lie between the two; of integers: their
/// difference. "NaN": one of them is.
inline constexpr std::array kUlpWords = {"0", "1", "2", "3-4", "5-16", "more than 16", "NaN"};

/// All cases of one name and dtype.
struct GroupDifference {
  std::string name;
  std::uint64_t cases = 0;
  std::uint64_t values = 0;
  std::array<std::uint64_t, kUlpWords.size()> ulps = {};
  double error_before = 0;  ///< the largest that the check found
  double error_after = 0;

  std::uint64_t different() const { return values - ulps.front(); }
};

/// The place in kUlpWords for two elements of a dtype (DLPack's code and bits), as they lie in
/// memory. NaN and NaN are equal, and so are 0 and -0.
std::size_t ulp_place(std::uint64_t code, std::uint64_t bits, std::uint64_t before,
                      std::uint64_t after);

/// By name; the cases of the two runs in their order, as far as they are the same ones.
std::vector<GroupDifference> compare_values(const CheckRun& before, const CheckRun& after);

}  // namespace kiln::cli
