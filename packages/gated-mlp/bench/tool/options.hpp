// SPDX-License-Identifier: Apache-2.0
//
// Options: the command line of `kiln bench`, as values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ways.hpp"

namespace gated_mlp_bench {

struct Options {
  std::string registry;
  std::string variant;
  int version = 1;
  std::vector<Shape> shapes;
  bool sweep = false;  ///< `shapes` are those of real models
  std::string dtype = "bfloat16";
  std::string regime = "sustained";
  int rounds = 5;
  bool share = false;  ///< `shapes` are those of the card, and a file is written for it
  std::string json;
  std::string trace;
  std::string plot;
};

/// Reads them into `options`. An exit status if the program is to end: there was a mistake, or
/// --help, or a shell asked for completions.
std::optional<int> read_options(int argc, char** argv, Options& options);

}  // namespace gated_mlp_bench
