// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"

#include <CLI/CLI.hpp>

namespace gated_mlp_test {

std::optional<int> read_arguments(int argc, char** argv, const std::string& package,
                                  Arguments& arguments) {
  CLI::App app("Checks the package " + package + " on this machine");
  app.add_option("--registry", arguments.registry, "folder or URL; default: $KILN_REGISTRY");
  app.add_option("--device", arguments.device, "auto, cpu or cuda:N");
  app.add_option("--variant", arguments.variants, "check this one; may be repeated");
  CLI::Option* const record =
      app.add_option("--record", arguments.record, "write the result to this file");
  app.add_option("--commit", arguments.commit, "source commit, for the record");
  app.add_option("--seed", arguments.options.seed, "of shapes and data");
  app.add_flag("--light", arguments.options.light, "few small cases, for compute-sanitizer");
  app.add_flag("--brief", arguments.options.brief,
               "fewer of the random shapes, for a test suite; makes no record")
      ->excludes(record);
  app.add_option("--part", arguments.parts,
                 "this part of the check; may be repeated: several processes are done sooner")
      ->excludes(record);
  app.add_flag(
      "--huge", arguments.options.huge,
      "tensors of more than 2^31 elements alone: 40 GB of the GPU's memory and of the host's");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return std::nullopt;
}

}  // namespace gated_mlp_test
