// SPDX-License-Identifier: Apache-2.0
//
// BenchArguments: the command line of geglu_mlp_bench, as values.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace geglu_mlp_test {

struct BenchArguments {
  std::string registry;
  std::string variant;
  std::string device = "auto";
  std::string dtype = "bfloat16";
  std::vector<std::string> shapes = {
      "8192,768,3072", "1024,1024,4096", "4096,2304,9216", "8192,3584,14336", "4096,4096,14336",
      "1,3584,14336",  "16,3584,14336",  "64,3584,14336",  "1,768,3072",      "256,3584,14336"};
  int rounds = 9;
};

/// Reads them into `arguments`. An exit status if the program is to end: there was a mistake, or
/// --help.
std::optional<int> read_arguments(int argc, char** argv, BenchArguments& arguments);

}  // namespace geglu_mlp_test
