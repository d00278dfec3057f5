// SPDX-License-Identifier: Apache-2.0
#include "bench_arguments.hpp"

#include <CLI/CLI.hpp>

namespace geglu_mlp_test {

std::optional<int> read_arguments(int argc, char** argv, BenchArguments& arguments) {
  CLI::App app("Times geglu-mlp's forward on this machine");
  app.add_option("--registry", arguments.registry, "folder or URL; default: $KILN_REGISTRY");
  app.add_option("--variant", arguments.variant, "default: the best that fits");
  app.add_option("--device", arguments.device, "auto or cpu");
  app.add_option("--dtype", arguments.dtype, "bfloat16, float16 or (CPU) float32");
  app.add_option("--shape", arguments.shapes, "M,D,H; may be repeated");
  app.add_option("--rounds", arguments.rounds, "of about 20 ms each");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return std::nullopt;
}

}  // namespace geglu_mlp_test
