// SPDX-License-Identifier: Apache-2.0
//
// Options: the command line of `kiln bench`, as values.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "loader/cli/frame/command.hpp"
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
  std::string trace;
  std::string plot;
};

/// Declares them, and has `run` called with what was typed.
void declare_bench(kiln::cli::Command& command,
                   std::function<int(const Options&, const kiln::cli::Call&)> run);

/// The end of --help: how times are taken, and examples.
extern const char* const kNotes;

}  // namespace gated_mlp_bench
