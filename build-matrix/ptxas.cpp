// SPDX-License-Identifier: Apache-2.0
#include "ptxas.hpp"

#include <optional>
#include <regex>
#include <sstream>

#include "documents/json.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

/// A kernel whose lines are being read.
struct Reading {
  KernelUse use;
  bool has_registers = false;
  bool has_spills = false;
};

}  // namespace

std::vector<KernelUse> read_ptxas(std::string_view log, std::string_view subject) {
  static const std::regex entry("Compiling entry function '([^']+)' for '([^']+)'");
  static const std::regex stack(
      "([0-9]+) bytes stack frame, ([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads");
  static const std::regex registers("Used ([0-9]+) registers");
  std::vector<KernelUse> kernels;
  std::optional<Reading> current;
  const auto finish = [&] {
    if (!current) return;
    if (!current->has_registers || !current->has_spills) {
      throw Error(ErrorCode::kBuild, std::string(subject) +
                                         ": ptxas does not say what registers "
                                         "and spills " +
                                         current->use.kernel + " for " + current->use.target +
                                         " has");
    }
    kernels.push_back(std::move(current->use));
    current.reset();
  };
  std::istringstream lines{std::string(log)};
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (std::regex_search(line, found, entry)) {
      finish();
      current = Reading{.use = {.kernel = found[1], .target = found[2]}};
    } else if (current && std::regex_search(line, found, stack)) {
      current->use.stack = std::stoull(found[1]);
      current->use.spilled = std::stoull(found[2]) + std::stoull(found[3]);
      current->has_spills = true;
    } else if (current && std::regex_search(line, found, registers)) {
      current->use.registers = std::stoull(found[1]);
      current->has_registers = true;
    }
  }
  finish();
  return kernels;
}

Json to_json(const std::vector<KernelUse>& kernels) {
  Json all = Json::array();
  for (const KernelUse& use : kernels) {
    all.push_back({{"kernel", use.kernel},
                   {"target", use.target},
                   {"registers", use.registers},
                   {"stack_bytes", use.stack},
                   {"spilled_bytes", use.spilled}});
  }
  return all;
}

}  // namespace kiln::build
