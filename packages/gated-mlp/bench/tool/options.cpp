// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "kiln/error.hpp"
#include "loader/cli/frame/complete.hpp"

namespace gated_mlp_bench {
namespace {

// Of real models, D and H; the rows of decode, of the middle, of prefill; and ragged ones.
std::vector<Shape> sweep_shapes() {
  std::vector<Shape> shapes;
  for (const auto& [d, h] : std::initializer_list<std::pair<std::int64_t, std::int64_t>>{
           {768, 3072}, {1024, 4096}, {2048, 8192}, {2304, 9216}, {3584, 14336}, {4096, 14336}}) {
    for (const std::int64_t m : {1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384}) {
      shapes.push_back({m, d, h});
    }
  }
  for (const Shape shape :
       {Shape{1000, 1152, 6912}, Shape{77, 640, 2560}, Shape{3001, 896, 4864}}) {
    shapes.push_back(shape);
  }
  return shapes;
}

// A token, a few, a small batch and prefill, of a small model and of a large one.
std::vector<Shape> shared_shapes() {
  return {{1, 768, 3072},    {512, 768, 3072},   {8192, 768, 3072},  {1, 4096, 14336},
          {16, 4096, 14336}, {128, 4096, 14336}, {512, 4096, 14336}, {4096, 4096, 14336}};
}

Shape parse_shape(const std::string& text) {
  Shape shape{};
  int used = 0;
  const bool read =
      std::sscanf(text.c_str(), "%ld,%ld,%ld%n", &shape.m, &shape.d, &shape.h, &used) == 3;
  if (!read || static_cast<std::size_t>(used) != text.size() || shape.m < 1 || shape.d < 8 ||
      shape.h < 8 || shape.d % 8 != 0 || shape.h % 8 != 0) {
    throw CLI::ValidationError("--shape",
                               "'" + text + "' is not M,D,H with M from 1, D and H multiples of 8");
  }
  return shape;
}

std::vector<Shape> shapes_of(const std::vector<std::string>& texts) {
  std::vector<Shape> shapes;
  shapes.reserve(texts.size());
  for (const std::string& text : texts) shapes.push_back(parse_shape(text));
  return shapes;
}

constexpr const char* kFooter =
    "Says first how many kernels each way to compute the MLP should launch, times them, and "
    "looks.\n"
    "\n"
    "Times are microseconds of one forward: replays of a CUDA graph, round robin, the median of "
    "the\n"
    "rounds and what a fifth of them was below and above. A graph holds one forward for each of\n"
    "several sets of buffers (input, weights, intermediates, output), together at least 200 MiB, "
    "so\n"
    "that weights come from memory and not from the L2 cache; over again until there are eight, "
    "if\n"
    "that takes at most 2 ms.\n"
    "  sustained  a turn is 40 ms, from 256 rows on after a second of the same: the power\n"
    "             limit may hold the clock back\n"
    "  burst      a turn is 2 ms after 100 ms of rest: it mostly does not\n"
    "The ways come in another order each round.\n"
    "TFLOP/s counts 6 M D H operations, GB/s the least traffic: weights and input once, output "
    "once.\n"
    "Their ceilings are measured in the same run: cuBLASLt's best at 8192 cubed, and the bandwidth "
    "of\n"
    "one kernel that only reads 1 GiB. Where weights are nearly all that is read, 'read weights'\n"
    "is such a kernel on the weights alone, rotated as the others are: what their size allows.\n"
    "Errors are relative L2 against fp64 over four rows. Host times are without a graph.\n"
    "\n"
    "cuBLASLt, NVRTC and CUPTI are found on the library path (LD_LIBRARY_PATH); what is missing "
    "is\n"
    "left out and said. The trace opens in https://ui.perfetto.dev.\n"
    "\n"
    "Examples:\n"
    "  kiln bench --shape 8192,768,3072 --shape 1,3584,14336\n"
    "  kiln bench --shape 1,4096,14336 --regime burst --trace forward.json --plot forward.svg\n"
    "  kiln bench --sweep --json sweep.json\n"
    "  kiln bench --share";

}  // namespace

std::optional<int> read_options(int argc, char** argv, Options& options) {
  CLI::App app("Times a GeGLU MLP on this GPU: cuBLASLt step by step, and Kiln", "kiln bench");
  app.footer(kFooter);
  std::vector<std::string> shapes = {"8192,768,3072"};
  CLI::Option* const shape =
      app.add_option("--shape", shapes, "May be repeated; D and H are multiples of 8")
          ->type_name("M,D,H")
          ->capture_default_str();
  CLI::Option* const sweep =
      app.add_flag("--sweep", options.sweep, "69 shapes of real models instead")->excludes(shape);
  CLI::Option* const dtype = app.add_option("--dtype", options.dtype, "Of all tensors")
                                 ->check(CLI::IsMember({"bfloat16", "float16"}).description(""))
                                 ->type_name("bfloat16|float16")
                                 ->capture_default_str();
  CLI::Option* const regime = app.add_option("--regime", options.regime, "See below")
                                  ->check(CLI::IsMember({"sustained", "burst"}).description(""))
                                  ->type_name("sustained|burst")
                                  ->capture_default_str();
  app.add_option("--rounds", options.rounds, "Turns of each way")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--share", options.share,
               "The eight shapes of the card instead; writes GPU-shared.json, to be sent in")
      ->excludes(shape)
      ->excludes(sweep)
      ->excludes(dtype)
      ->excludes(regime);
  app.add_option("--json", options.json, "Write all figures to this file")->type_name("FILE");
  app.add_option("--trace", options.trace,
                 "Write one forward of each way at the first shape as a Chrome trace")
      ->type_name("FILE");
  app.add_option("--plot", options.plot,
                 "Write the times as SVG; of more than six shapes, the best rival's over Kiln's")
      ->type_name("FILE");
  app.add_option("--version-number", options.version, "Of geglu-mlp")->capture_default_str();
  app.add_option("--variant", options.variant, "Default: the best that fits");
  app.add_option("--registry", options.registry, "Folder or URL; default: $KILN_REGISTRY")
      ->type_name("FOLDER|URL");
  if (kiln::cli::asks_to_complete(argc, argv)) return kiln::cli::complete(app, argc, argv);
  try {
    app.parse(argc, argv);
    options.shapes = options.sweep   ? sweep_shapes()
                     : options.share ? shared_shapes()
                                     : shapes_of(shapes);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(kiln::ErrorCode::kUsage);
  }
  return std::nullopt;
}

}  // namespace gated_mlp_bench
