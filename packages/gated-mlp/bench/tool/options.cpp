// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <cstdio>
#include <memory>
#include <utility>

#include "kiln/error.hpp"

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
    throw kiln::Error(
        kiln::ErrorCode::kUsage,
        "bench --shape '" + text + "': expected M,D,H with M from 1, D and H multiples of 8");
  }
  return shape;
}

std::vector<Shape> shapes_of(const std::vector<std::string>& texts) {
  std::vector<Shape> shapes;
  shapes.reserve(texts.size());
  for (const std::string& text : texts) shapes.push_back(parse_shape(text));
  return shapes;
}

}  // namespace

const char* const kNotes =
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
    "  kiln bench --sweep --json > sweep.json\n"
    "  kiln bench --share";

void declare_bench(kiln::cli::Command& command,
                   std::function<int(const Options&, const kiln::cli::Call&)> run) {
  const auto options = std::make_shared<Options>();
  const auto shapes = std::make_shared<std::vector<std::string>>();
  const kiln::cli::Option shape =
      command.option("--shape", *shapes, "M,D,H",
                     "May be repeated; D and H are multiples of 8; default 8192,768,3072");
  kiln::cli::Option sweep =
      command.flag("--sweep", options->sweep, "69 shapes of real models instead");
  sweep.not_with(shape);
  kiln::cli::Option dtype =
      command.option("--dtype", options->dtype, "", "Of all tensors; default bfloat16");
  dtype.one_of({"bfloat16", "float16"});
  kiln::cli::Option regime =
      command.option("--regime", options->regime, "", "See below; default sustained");
  regime.one_of({"sustained", "burst"});
  command.number("--rounds", options->rounds, 1, 1000, "Turns of each way; default 5");
  command
      .flag("--share", options->share,
            "The eight shapes of the card instead; writes GPU-shared.json, to be sent in")
      .not_with(shape)
      .not_with(sweep)
      .not_with(dtype)
      .not_with(regime);
  command.option("--trace", options->trace, "FILE",
                 "Write one forward of each way at the first shape as a Chrome trace");
  command.option("--plot", options->plot, "FILE",
                 "Write the times as SVG; of more than six shapes, the best rival's over Kiln's");
  command.number("--version-number", options->version, 1, 1'000'000, "Of geglu-mlp; default 1");
  command.option("--variant", options->variant, "VARIANT", "Default: the best that fits");
  command.option("--registry", options->registry, "FOLDER|URL",
                 "Folder or URL; default: $KILN_REGISTRY");
  command.runs([=, run = std::move(run)](const kiln::cli::Call& call) {
    if (shapes->empty()) shapes->emplace_back("8192,768,3072");
    options->shapes = options->sweep   ? sweep_shapes()
                      : options->share ? shared_shapes()
                                       : shapes_of(*shapes);
    return run(*options, call);
  });
}

}  // namespace gated_mlp_bench
