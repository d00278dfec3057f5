// SPDX-License-Identifier: Apache-2.0
//
// kiln-bench (`kiln bench`): guess first, then look. For one shape or many: says how many kernels
// each way to compute a GeGLU MLP should launch, times them round robin on this GPU, with errors
// against fp64 and shares of the ceilings that the same run measured, and traces one forward of
// each. The trace is last: a process that CUPTI is attached to launches more slowly.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "complete.hpp"
#include "contenders.hpp"
#include "machine.hpp"
#include "measure.hpp"
#include "report.hpp"
#include "trace.hpp"

namespace geglu_mlp_bench {
namespace {

using Json = nlohmann::ordered_json;

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

struct Options {
  std::string registry;
  std::string variant;
  int version = 1;
  std::vector<std::string> shapes = {"8192,768,3072"};
  bool sweep = false;
  std::string dtype = "bfloat16";
  std::string regime = "sustained";
  int rounds = 5;
  std::string json;
  std::string trace;
  std::string plot;
};

Outcome time_shape(const Tools& tools, const kiln::Kernel& kernel, Shape shape, kiln::DType dtype,
                   const Options& options) {
  Field field(tools, kernel, shape, dtype);
  Outcome outcome{.shape = shape, .seen = {}, .card = {}};
  const std::size_t forwards = forwards_of_graph(field.sets(), field.operations(Result::kMlp));
  std::vector<Gpu::Graph> graphs;
  for (const Contender& contender : field.contenders()) {
    outcome.seen.push_back({.way = contender.way,
                            .kernels = {},
                            .microseconds = {},
                            .error = field.error_of(contender)});
    graphs.emplace_back(tools.gpu, [&] {
      for (std::size_t i = 0; i < forwards; ++i) contender.run(i % field.sets());
    });
  }
  const bool burst = options.regime == "burst";
  const std::vector<Spread> times = round_robin(
      graphs, options.rounds, turn_of(burst ? Regime::kBurst : Regime::kSustained, shape.m));
  const auto count = static_cast<double>(forwards);
  for (std::size_t i = 0; i < outcome.seen.size(); ++i) {
    Seen& seen = outcome.seen[i];
    seen.microseconds = {times[i].median / count, times[i].low / count, times[i].high / count};
    seen.tflops = field.operations(seen.way->result) / seen.microseconds.median * 1e-6;
    seen.gbs = field.least_bytes(seen.way->result) / seen.microseconds.median * 1e-3;
  }
  if (!burst && !options.sweep) outcome.card = card_under(tools.gpu, graphs.back());
  outcome.host_ns = host_nanoseconds(tools.gpu, [&] { field.contenders().back().run(0); });
  if (tools.elementwise != nullptr) {
    const Gpu::Buffer sink(tools.gpu, 16);
    outcome.bare_ns = host_nanoseconds(tools.gpu, [&] {
      for (int i = 0; i < 2; ++i) tools.elementwise->read(sink.data(), 0, sink.data());
    });
  }
  return outcome;
}

/// Runs each way once more under the tracer, and notes its kernels in `outcome`.
std::vector<Section> trace_shape(const Tools& tools, const kiln::Kernel& kernel, kiln::DType dtype,
                                 Recorder& recorder, Outcome& outcome) {
  const Field field(tools, kernel, outcome.shape, dtype, 1);
  std::vector<Section> sections;
  for (std::size_t i = 0; i < field.contenders().size(); ++i) {
    const Contender& contender = field.contenders()[i];
    const auto forward = [&] {
      contender.run(0);
      tools.gpu.synchronize();
    };
    recorder.start();
    forward();
    recorder.discard();
    forward();
    sections.push_back({contender.way->name, recorder.stop()});
    outcome.seen[i].kernels = kernels_of(sections.back().activities);
  }
  return sections;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("write " + path + " failed");
}

Json document_of(const Tools& tools, const kiln::Kernel& kernel, const Options& options,
                 const std::vector<Outcome>& outcomes, const Ceilings& ceilings) {
  Json document = {{"schema", "kiln.bench/1"},
                   {"package", "geglu-mlp@" + std::to_string(kernel.version())},
                   {"variant", std::string(kernel.variant())},
                   {"gpu", tools.gpu.name()},
                   {"cuda_driver", tools.gpu.driver_version()},
                   {"cublaslt", tools.cublaslt != nullptr ? tools.cublaslt->version() : ""},
                   {"dtype", options.dtype},
                   {"regime", options.regime},
                   {"rounds", options.rounds},
                   {"date", geglu_mlp_test::today()},
                   {"ceilings", {{"tflops", ceilings.tflops}, {"large_read_gbs", ceilings.gbs}}},
                   {"shapes", Json::array()}};
  for (const Outcome& outcome : outcomes) {
    document["shapes"].push_back(to_json(outcome, ceilings));
  }
  return document;
}

/// Guess and look at the kernels of each shape; the trace is that of the first one.
void look(const Tools& tools, const kiln::Kernel& kernel, kiln::DType dtype, Recorder& recorder,
          const Options& options, std::vector<Outcome>& outcomes, std::ostream& out) {
  out << "Then look: the kernels of one forward, traced by CUPTI after all times were taken.\n";
  for (Outcome& outcome : outcomes) {
    const std::vector<Section> sections = trace_shape(tools, kernel, dtype, recorder, outcome);
    print_kernels(outcome, out);
    if (options.trace.empty() || &outcome != &outcomes.front()) continue;
    std::ostringstream text;
    write_chrome_trace(sections, text);
    write_file(options.trace, text.str());
  }
}

std::vector<Shape> shapes_of(const Options& options) {
  if (options.sweep) return sweep_shapes();
  std::vector<Shape> shapes;
  for (const std::string& text : options.shapes) shapes.push_back(parse_shape(text));
  return shapes;
}

int bench(const Options& options) {
  const std::vector<Shape> shapes = shapes_of(options);
  const kiln::DType dtype =
      options.dtype == "float16" ? kiln::DType::kFloat16 : kiln::DType::kBFloat16;
  const std::unique_ptr<Recorder> recorder = Recorder::find();
  if (recorder == nullptr && !options.trace.empty()) {
    throw std::runtime_error("--trace: libcupti.so is not on the library path");
  }
  const kiln::Kernel kernel = kiln::get_kernel("geglu-mlp", {.version = options.version,
                                                             .device = kiln::Device::cuda(0),
                                                             .registry = options.registry,
                                                             .variant = options.variant});
  const Gpu gpu(0);
  const std::unique_ptr<CublasLt> cublaslt = CublasLt::find(gpu);
  const std::unique_ptr<Elementwise> elementwise = Elementwise::find(gpu, dtype);
  const Tools tools{gpu, cublaslt.get(), elementwise.get()};

  std::ostream& out = std::cout;
  out << "geglu-mlp@" << kernel.version() << " " << kernel.variant() << " on " << gpu.name()
      << ", CUDA driver " << gpu.driver_version() / 1000 << "." << gpu.driver_version() % 1000 / 10
      << ", " << options.dtype << ", " << options.regime << "\n\n";
  print_expected(cublaslt != nullptr, elementwise != nullptr, out);
  const Ceilings ceilings = measure_ceilings(gpu, cublaslt.get(), elementwise.get(), dtype);
  print_ceilings(ceilings, out);

  std::vector<Outcome> outcomes;
  for (const Shape shape : shapes) {
    outcomes.push_back(time_shape(tools, kernel, shape, dtype, options));
    print_times(outcomes.back(), ceilings, out);
    out.flush();
  }
  std::string blind = recorder == nullptr ? "libcupti.so is not on the library path" : "";
  try {
    if (recorder != nullptr) look(tools, kernel, dtype, *recorder, options, outcomes, out);
  } catch (const std::runtime_error& error) {  // the times are taken: they are not lost for this
    blind = error.what();
  }
  if (!blind.empty()) out << "No look at the kernels: " << blind << "\n";
  if (!options.plot.empty()) {
    write_file(options.plot,
               plot_of(outcomes, gpu.name() + ", " + options.dtype + ", " + options.regime + ", " +
                                     geglu_mlp_test::today()));
  }
  if (!options.json.empty()) {
    write_file(options.json,
               document_of(tools, kernel, options, outcomes, ceilings).dump(2) + "\n");
  }
  if (!blind.empty() && !options.trace.empty()) throw std::runtime_error("--trace: " + blind);
  return 0;
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
    "  kiln bench --sweep --json sweep.json";

int run(int argc, char** argv) {
  CLI::App app("Times a GeGLU MLP on this GPU: cuBLASLt step by step, and Kiln", "kiln bench");
  app.footer(kFooter);
  Options options;
  app.add_option("--shape", options.shapes, "May be repeated; D and H are multiples of 8")
      ->type_name("M,D,H")
      ->capture_default_str();
  app.add_flag("--sweep", options.sweep, "69 shapes of real models instead");
  app.add_option("--dtype", options.dtype, "Of all tensors")
      ->check(CLI::IsMember({"bfloat16", "float16"}).description(""))
      ->type_name("bfloat16|float16")
      ->capture_default_str();
  app.add_option("--regime", options.regime, "See below")
      ->check(CLI::IsMember({"sustained", "burst"}).description(""))
      ->type_name("sustained|burst")
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "Turns of each way")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
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
    return bench(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(kiln::ErrorCode::kUsage);
  }
}

}  // namespace
}  // namespace geglu_mlp_bench

int main(int argc, char** argv) {
  try {
    return geglu_mlp_bench::run(argc, argv);
  } catch (const kiln::Error& error) {
    std::cerr << "kiln-bench: " << error.what() << "\n";
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "kiln-bench: " << error.what() << "\n";
    return static_cast<int>(kiln::ErrorCode::kDevice);
  }
}
