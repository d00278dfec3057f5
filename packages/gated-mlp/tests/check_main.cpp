// SPDX-License-Identifier: Apache-2.0
//
// A package's numeric check, through kiln::get_kernel as a user would load it. For each variant
// that fits this machine, or each one named: forward, backward and the elementwise ops against a
// double reference, then what they promise beyond numbers. Exit status 0: cases ran, and none
// failed.
#include <malloc.h>

#include <algorithm>
#include <climits>
#include <iostream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "check.hpp"
#include "package.hpp"
#include "record.hpp"

namespace gated_mlp_test {
namespace {

kiln::Device parse_device(const std::string& text) {
  if (text == "cpu") return kiln::Device::cpu();
  if (text.rfind("cuda:", 0) == 0) return kiln::Device::cuda(std::stoi(text.substr(5)));
  return kiln::Device::automatic();
}

kiln::Kernel load(const Package& package, const Arguments& arguments, const std::string& variant) {
  kiln::Request request;
  request.version = package.version;
  request.device = parse_device(arguments.device);
  request.registry = arguments.registry;
  request.variant = variant;
  return kiln::get_kernel(package.name, request);
}

std::vector<std::string> variants_that_fit(const Package& package, const Arguments& arguments) {
  std::vector<std::string> names;
  const kiln::Kernel kernel = load(package, arguments, "");
  for (const kiln::Decision& decision : kernel.resolution().decisions) {
    if (decision.accepted()) names.push_back(decision.variant);
  }
  return names;
}

void check_behaviours(std::vector<Variant>& variants, const Options& options) {
  for (Variant& variant : variants) check_behaviour(variant, options);
}

/// In their order. Each says when it is done: of a check that is cut short it is known how far it
/// came.
struct Part {
  const char* name;
  void (*run)(std::vector<Variant>& variants, const Options& options);
};
constexpr Part kParts[] = {
    {"behaviour", check_behaviours}, {"pointwise", check_pointwise}, {"kernels", check_kernels},
    {"tiles", check_tiles},          {"rows", check_rows},           {"overflow", check_overflow},
    {"forward", check_forward},      {"backward", check_backward}};

/// Those of these names; all if there are none.
std::vector<Part> parts_of(const std::vector<std::string>& names) {
  if (names.empty()) return {std::begin(kParts), std::end(kParts)};
  std::vector<Part> parts;
  for (const std::string& name : names) {
    const auto* const part = std::find_if(std::begin(kParts), std::end(kParts),
                                          [&name](const Part& one) { return one.name == name; });
    if (part == std::end(kParts)) throw std::invalid_argument("there is no part '" + name + "'");
    parts.push_back(*part);
  }
  return parts;
}

int check(const Package& package, const Arguments& arguments) {
  const std::vector<Part> parts = parts_of(arguments.parts);
  const std::vector<std::string> names =
      arguments.variants.empty() ? variants_that_fit(package, arguments) : arguments.variants;
  std::unique_ptr<Memory> memory;
  std::vector<Variant> variants;
  for (const std::string& name : names) {
    kiln::Kernel kernel = load(package, arguments, name);
    if (memory == nullptr) memory = open_memory(kernel.device());
    variants.push_back({package, kernel, *memory, {}});
  }
  if (variants.empty()) {
    std::cerr << package.name << ": no variant to check\n";
    return 1;
  }
  if (arguments.options.huge) {
    for (Variant& variant : variants) {
      check_huge_forward(variant, arguments.options);
      check_huge_pointwise(variant, arguments.options);
    }
  } else {
    for (const Part& part : parts) {
      part.run(variants, arguments.options);
      const Variant& first = variants.front();
      std::cout << "after " << part.name << ": " << first.tally.cases << " cases, "
                << first.tally.failed << " failed\n"
                << std::flush;
    }
  }

  bool passed = true;
  std::uint64_t cases = 0;
  for (const Variant& variant : variants) {
    std::cout << variant.kernel.variant() << ": " << variant.tally.cases << " cases, "
              << variant.tally.failed << " failed; worst relative L2";
    for (const auto& [dtype, error] : variant.tally.worst) {
      std::cout << ' ' << dtype << ' ' << error;
    }
    std::cout << '\n';
    passed = passed && variant.tally.failed == 0;
    cases += variant.tally.cases;
  }
  if (cases == 0) {
    std::cerr << package.name << ": checked no case of " << variants.front().kernel.variant()
              << ", expected one or more; leave out --part or --huge, or name another part\n";
    return 1;
  }
  if (!arguments.record.empty()) {
    write_record(arguments.record, variants, arguments.commit);
  }
  return passed ? 0 : 1;
}

}  // namespace

int check_main(int argc, char** argv, const Package& package) {
  // Tensors of 100 MB come and go a thousand times: their pages stay, instead of being zeroed anew.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  Arguments arguments;
  if (const auto status = read_arguments(argc, argv, package.name, arguments)) return *status;
  try {
    return check(package, arguments);
  } catch (const std::exception& error) {
    std::cerr << package.name << " check: " << error.what() << '\n';
    return 1;
  }
}

}  // namespace gated_mlp_test
