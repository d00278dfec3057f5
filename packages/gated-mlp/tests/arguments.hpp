// SPDX-License-Identifier: Apache-2.0
//
// Arguments: the command line of a package's numeric check, as values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gated_mlp_test {

struct Options {
  bool light = false;  ///< few small cases, for compute-sanitizer
  bool brief = false;  ///< fewer of the random shapes, for a test suite
  bool huge = false;   ///< the huge tensors alone
  std::uint64_t seed = 1;
};

struct Arguments {
  std::string registry;
  std::string device = "auto";
  std::string record;
  std::string commit = "unknown";
  std::vector<std::string> variants;
  std::vector<std::string> parts;  ///< of the check; empty: all
  Options options;
};

/// Reads them into `arguments`. An exit status if the program is to end: there was a mistake, or
/// --help.
std::optional<int> read_arguments(int argc, char** argv, const std::string& package,
                                  Arguments& arguments);

}  // namespace gated_mlp_test
