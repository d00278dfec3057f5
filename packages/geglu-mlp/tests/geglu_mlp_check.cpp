// SPDX-License-Identifier: Apache-2.0
//
// geglu_mlp_check: the package's numeric check, through kiln::get_kernel as a user would load it.
// For each variant that fits this machine, or each one named: forward and the elementwise ops
// against a double reference, then what they promise beyond numbers. Exit status 0: no case failed.
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <climits>
#include <iostream>

#include "check.hpp"
#include "record.hpp"

namespace {

using geglu_mlp_test::Memory;
using geglu_mlp_test::Options;
using geglu_mlp_test::Variant;

struct Arguments {
  std::string registry;
  std::string device = "auto";
  std::string record;
  std::string commit = "unknown";
  std::vector<std::string> variants;
  Options options;
};

kiln::Device parse_device(const std::string& text) {
  if (text == "cpu") return kiln::Device::cpu();
  if (text.rfind("cuda:", 0) == 0) return kiln::Device::cuda(std::stoi(text.substr(5)));
  return kiln::Device::automatic();
}

kiln::Kernel load(const Arguments& arguments, const std::string& variant) {
  kiln::Request request;
  request.version = 2;
  request.device = parse_device(arguments.device);
  request.registry = arguments.registry;
  request.variant = variant;
  return kiln::get_kernel("geglu-mlp", request);
}

std::vector<std::string> variants_that_fit(const Arguments& arguments) {
  std::vector<std::string> names;
  const kiln::Kernel kernel = load(arguments, "");
  for (const kiln::Decision& decision : kernel.resolution().decisions) {
    if (decision.accepted()) names.push_back(decision.variant);
  }
  return names;
}

int check(const Arguments& arguments) {
  const std::vector<std::string> names =
      arguments.variants.empty() ? variants_that_fit(arguments) : arguments.variants;
  std::unique_ptr<Memory> memory;
  std::vector<Variant> variants;
  for (const std::string& name : names) {
    kiln::Kernel kernel = load(arguments, name);
    if (memory == nullptr) memory = geglu_mlp_test::open_memory(kernel.device());
    variants.push_back({kernel, *memory, {}});
  }
  if (variants.empty()) {
    std::cerr << "geglu_mlp_check: no variant to check\n";
    return 1;
  }
  for (Variant& variant : variants) {
    geglu_mlp_test::check_behaviour(variant, arguments.options);
  }
  geglu_mlp_test::check_pointwise(variants, arguments.options);
  geglu_mlp_test::check_kernels(variants, arguments.options);
  geglu_mlp_test::check_rows(variants, arguments.options);
  geglu_mlp_test::check_forward(variants, arguments.options);

  bool passed = true;
  for (const Variant& variant : variants) {
    std::cout << variant.kernel.variant() << ": " << variant.tally.cases << " cases, "
              << variant.tally.failed << " failed; worst relative L2";
    for (const auto& [dtype, error] : variant.tally.worst) {
      std::cout << ' ' << dtype << ' ' << error;
    }
    std::cout << '\n';
    passed = passed && variant.tally.failed == 0;
  }
  if (!arguments.record.empty()) {
    geglu_mlp_test::write_record(arguments.record, variants, arguments.commit);
  }
  return passed ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  // Tensors of 100 MB come and go a thousand times: their pages stay, instead of being zeroed anew.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  CLI::App app("Checks the geglu-mlp package on this machine");
  Arguments arguments;
  app.add_option("--registry", arguments.registry, "folder or URL; default: $KILN_REGISTRY");
  app.add_option("--device", arguments.device, "auto, cpu or cuda:N");
  app.add_option("--variant", arguments.variants, "check this one; may be repeated");
  app.add_option("--record", arguments.record, "write the result to this file");
  app.add_option("--commit", arguments.commit, "source commit, for the record");
  app.add_option("--seed", arguments.options.seed, "of shapes and data");
  app.add_flag("--light", arguments.options.light, "few small cases, for compute-sanitizer");
  CLI11_PARSE(app, argc, argv);
  try {
    return check(arguments);
  } catch (const std::exception& error) {
    std::cerr << "geglu_mlp_check: " << error.what() << '\n';
    return 1;
  }
}
