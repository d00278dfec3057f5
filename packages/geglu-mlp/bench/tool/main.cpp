// SPDX-License-Identifier: Apache-2.0
//
// kiln-bench (`kiln bench`): guess first, then look. For one shape or many: says how many kernels
// each way to compute a GeGLU MLP should launch, traces one forward of each and says what was seen,
// and times them round robin on this GPU, with errors against fp64 and shares of the ceilings that
// the same run measured.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "contenders.hpp"
#include "machine.hpp"
#include "measure.hpp"
#include "plot.hpp"
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

std::string text_of(Shape shape) {
  return std::to_string(shape.m) + "," + std::to_string(shape.d) + "," + std::to_string(shape.h);
}

struct Options {
  std::string registry;
  std::string variant;
  int version = 2;
  std::vector<std::string> shapes = {"8192,768,3072"};
  bool sweep = false;
  std::string dtype = "bfloat16";
  std::string regime = "sustained";
  int rounds = 9;
  std::string json;
  std::string trace;
  std::string plot;
};

struct Seen {
  std::string name;
  int expected = 0;
  std::vector<std::string> kernels;  ///< empty: not traced
  Spread microseconds;
  double tflops = 0;
  double gbs = 0;
  double error = 0;
  bool is_mlp = true;
};

struct Outcome {
  Shape shape{};
  std::vector<Seen> seen;
  Card card;
  double host_ns = 0;
  double bare_ns = 0;

  const Seen& kiln() const { return seen.back(); }
  const Seen* best_rival() const {
    const Seen* best = nullptr;
    for (const Seen& one : seen) {
      if (!one.is_mlp || &one == &kiln()) continue;
      if (best == nullptr || one.microseconds.median < best->microseconds.median) best = &one;
    }
    return best;
  }
};

Outcome bench_shape(const Tools& tools, const kiln::Kernel& kernel, Shape shape, kiln::DType dtype,
                    const Options& options, Recorder* recorder, std::vector<Section>* sections) {
  Field field(tools, kernel, shape, dtype);
  Outcome outcome{.shape = shape};
  std::vector<Gpu::Graph> graphs;
  for (const Contender& contender : field.contenders()) {
    Seen seen{.name = contender.name,
              .expected = contender.launches,
              .error = field.error_of(contender),
              .is_mlp = contender.is_mlp};
    if (recorder != nullptr) {
      tools.gpu.synchronize();
      recorder->start();
      contender.run(0);
      tools.gpu.synchronize();
      Section section{contender.name, recorder->stop()};
      seen.kernels = kernels_of(section.activities);
      if (sections != nullptr) sections->push_back(std::move(section));
    }
    graphs.emplace_back(tools.gpu, [&] {
      for (std::size_t set = 0; set < field.sets(); ++set) contender.run(set);
    });
    outcome.seen.push_back(std::move(seen));
  }
  const Regime regime = options.regime == "burst" ? Regime::kBurst : Regime::kSustained;
  const Times times = round_robin(tools.gpu, graphs, options.rounds, regime);
  outcome.card = times.card;
  const auto sets = static_cast<double>(field.sets());
  for (std::size_t i = 0; i < outcome.seen.size(); ++i) {
    Seen& seen = outcome.seen[i];
    const Spread& all = times.microseconds[i];
    seen.microseconds = {all.median / sets, all.low / sets, all.high / sets};
    seen.tflops = field.operations(field.contenders()[i]) / seen.microseconds.median * 1e-6;
    seen.gbs = field.least_bytes(field.contenders()[i]) / seen.microseconds.median * 1e-3;
  }
  outcome.host_ns = host_nanoseconds(tools.gpu, [&] { field.contenders().back().run(0); });
  if (tools.elementwise != nullptr) {
    const Gpu::Buffer sink(tools.gpu, 16);
    outcome.bare_ns = host_nanoseconds(tools.gpu, [&] {
      for (int i = 0; i < 2; ++i) tools.elementwise->read(sink.data(), 0, sink.data());
    });
  }
  return outcome;
}

void print_expected(const Tools& tools, std::ostream& out) {
  out << "Guess first: the kernels of one forward.\n";
  const auto row = [&](const char* name, const char* what, int launches, bool there) {
    char line[160];
    std::snprintf(line, sizeof(line), "  %-16s %d  %s%s\n", name, launches, what,
                  there ? "" : "  (left out: not installed)");
    out << line;
  };
  const bool gemm = tools.cublaslt != nullptr;
  row("linear", "one GEMM", 1, gemm);
  row("linear + bias", "one GEMM: its epilogue adds the bias", 1, gemm);
  row("eager", "GEMM, gelu, GEMM, multiply, GEMM", 5, gemm && tools.elementwise != nullptr);
  row("fused pointwise", "GEMM, GEMM, geglu, GEMM, as Inductor and Liger have it", 4, gemm);
  row("concatenated", "GEMM of both, geglu, GEMM", 3, gemm);
  row("kiln", "gate and up with the GeGLU, down", 2, true);
  out << '\n';
}

void print_table(const Outcome& outcome, const Ceilings& ceilings, std::ostream& out) {
  out << "M, D, H = " << text_of(outcome.shape) << "\n"
      << "  contender        kernels        us   (20%..80%)       TFLOP/s        GB/s    error  "
         "time/kiln\n";
  for (const Seen& seen : outcome.seen) {
    const auto share = [](double value, double ceiling) {
      return ceiling > 0 ? " (" + std::to_string(std::lround(100 * value / ceiling)) + "%)" : "";
    };
    const std::string kernels = seen.kernels.empty() ? "?" : std::to_string(seen.kernels.size());
    char line[240];
    std::snprintf(
        line, sizeof(line), "  %-16s %3s of %d %9.2f  %8.2f..%-8.2f %6.1f%-7s %6.0f%-7s %.2e  %s\n",
        seen.name.c_str(), kernels.c_str(), seen.expected, seen.microseconds.median,
        seen.microseconds.low, seen.microseconds.high, seen.tflops,
        share(seen.tflops, ceilings.tflops).c_str(), seen.gbs,
        share(seen.gbs, ceilings.gbs).c_str(), seen.error, !seen.is_mlp ? "" : [&] {
          static char ratio[16];
          std::snprintf(ratio, sizeof(ratio), "%.2f",
                        seen.microseconds.median / outcome.kiln().microseconds.median);
          return ratio;
        }());
    out << line;
  }
  for (const Seen& seen : outcome.seen) {
    if (seen.kernels.empty()) continue;
    out << "  " << seen.name << ":";
    for (const std::string& kernel : seen.kernels) out << ' ' << short_name(kernel, 60);
    out << '\n';
  }
  char line[160];
  std::snprintf(line, sizeof(line), "  host: %.0f ns a forward of kiln", outcome.host_ns);
  out << line;
  if (outcome.bare_ns > 0) {
    std::snprintf(line, sizeof(line), ", %.0f ns for two bare launches", outcome.bare_ns);
    out << line;
  }
  if (outcome.card.clock > 0) {
    std::snprintf(line, sizeof(line), "; SM clock %.0f MHz, %.0f W in the mean", outcome.card.clock,
                  outcome.card.power);
    out << line;
  }
  out << "\n\n";
}

Json to_json(const Spread& spread) {
  return {{"median", spread.median}, {"p20", spread.low}, {"p80", spread.high}};
}

Json to_json(const Outcome& outcome) {
  Json contenders = Json::array();
  for (const Seen& seen : outcome.seen) {
    contenders.push_back({{"name", seen.name},
                          {"kernels_expected", seen.expected},
                          {"kernels", seen.kernels},
                          {"us", to_json(seen.microseconds)},
                          {"tflops", seen.tflops},
                          {"gbs", seen.gbs},
                          {"error", seen.error}});
  }
  return {{"m", outcome.shape.m},
          {"d", outcome.shape.d},
          {"h", outcome.shape.h},
          {"host_ns", outcome.host_ns},
          {"two_bare_launches_ns", outcome.bare_ns},
          {"sm_mhz", outcome.card.clock},
          {"watts", outcome.card.power},
          {"contenders", std::move(contenders)}};
}

std::string plot_of(const std::vector<Outcome>& outcomes, const std::string& subtitle) {
  std::vector<Bar> bars;
  char text[48];
  if (outcomes.size() == 1) {
    for (const Seen& seen : outcomes[0].seen) {
      std::snprintf(text, sizeof(text), "%.4g us", seen.microseconds.median);
      bars.push_back({seen.name, seen.microseconds.median, text, &seen == &outcomes[0].kiln()});
    }
    return bar_chart("GeGLU MLP forward, M, D, H = " + text_of(outcomes[0].shape), subtitle, bars);
  }
  for (const Outcome& outcome : outcomes) {
    const Seen* const rival = outcome.best_rival();
    if (rival == nullptr) continue;
    const double ratio = rival->microseconds.median / outcome.kiln().microseconds.median;
    std::snprintf(text, sizeof(text), "%.2f (%.4g us)", ratio, outcome.kiln().microseconds.median);
    bars.push_back({text_of(outcome.shape), ratio, text, ratio >= 1});
  }
  return bar_chart("Time of the best rival over Kiln's, GeGLU MLP forward", subtitle, bars, 1);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("write " + path + " failed");
}

int bench(const Options& options) {
  std::vector<Shape> shapes;
  for (const std::string& text : options.shapes) shapes.push_back(parse_shape(text));
  if (options.sweep) shapes = sweep_shapes();
  const kiln::DType dtype =
      options.dtype == "float16" ? kiln::DType::kFloat16 : kiln::DType::kBFloat16;

  const kiln::Kernel kernel = kiln::get_kernel("geglu-mlp", {.version = options.version,
                                                             .device = kiln::Device::cuda(0),
                                                             .registry = options.registry,
                                                             .variant = options.variant});
  std::string no_trace;
  const std::unique_ptr<Recorder> recorder = Recorder::find(no_trace);  // before CUDA starts
  const Gpu gpu(0);
  const std::unique_ptr<CublasLt> cublaslt = CublasLt::find(gpu);
  const std::unique_ptr<Elementwise> elementwise = Elementwise::find(gpu, dtype);
  const Tools tools{gpu, cublaslt.get(), elementwise.get()};

  std::ostream& out = std::cout;
  out << "geglu-mlp@" << kernel.version() << " " << kernel.variant() << " on " << gpu.name()
      << ", CUDA driver " << gpu.driver_version() / 1000 << "." << gpu.driver_version() % 1000 / 10
      << ", " << options.dtype << ", " << options.regime << "\n";
  if (cublaslt == nullptr) out << "no cuBLASLt on the library path: the rivals are left out\n";
  if (elementwise == nullptr)
    out << "no NVRTC on the library path: eager and the bandwidth are left out\n";
  if (recorder == nullptr) out << "no trace: " << no_trace << "\n";
  out << '\n';
  print_expected(tools, out);

  const Ceilings ceilings = measure_ceilings(gpu, cublaslt.get(), elementwise.get(), dtype);
  if (ceilings.tflops > 0)
    out << "ceilings: " << std::lround(ceilings.tflops) << " TFLOP/s (cuBLASLt, 8192 cubed)";
  if (ceilings.gbs > 0)
    out << ", " << std::lround(ceilings.gbs) << " GB/s (a kernel that only reads)";
  if (ceilings.tflops > 0) out << "\n\n";

  std::vector<Outcome> outcomes;
  std::vector<Section> sections;
  for (const Shape shape : shapes) {
    outcomes.push_back(bench_shape(tools, kernel, shape, dtype, options, recorder.get(),
                                   outcomes.empty() ? &sections : nullptr));
    print_table(outcomes.back(), ceilings, out);
    out.flush();
  }
  const std::string subtitle =
      gpu.name() + ", " + options.dtype + ", " + options.regime + ", " + geglu_mlp_test::today();
  if (!options.trace.empty()) {
    if (recorder == nullptr) throw std::runtime_error("--trace: " + no_trace);
    std::ofstream file(options.trace, std::ios::binary);
    write_chrome_trace(sections, file);
    if (!file.flush()) throw std::runtime_error("write " + options.trace + " failed");
  }
  if (!options.plot.empty()) write_file(options.plot, plot_of(outcomes, subtitle));
  if (!options.json.empty()) {
    Json document = {{"schema", "kiln.bench/1"},
                     {"package", "geglu-mlp@" + std::to_string(kernel.version())},
                     {"variant", std::string(kernel.variant())},
                     {"gpu", gpu.name()},
                     {"cuda_driver", gpu.driver_version()},
                     {"cublaslt", cublaslt != nullptr ? cublaslt->version() : ""},
                     {"dtype", options.dtype},
                     {"regime", options.regime},
                     {"rounds", options.rounds},
                     {"date", geglu_mlp_test::today()},
                     {"ceilings", {{"tflops", ceilings.tflops}, {"gbs", ceilings.gbs}}},
                     {"shapes", Json::array()}};
    for (const Outcome& outcome : outcomes) document["shapes"].push_back(to_json(outcome));
    write_file(options.json, document.dump(2) + "\n");
  }
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app("Times a GeGLU MLP on this GPU: cuBLASLt step by step, and Kiln");
  Options options;
  app.add_option("--shape", options.shapes, "M,D,H; may be repeated; default 8192,768,3072");
  app.add_flag("--sweep", options.sweep, "69 shapes of real models");
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"bfloat16", "float16"}));
  app.add_option("--regime", options.regime, "sustained: turns of 20 ms; burst: 2 ms after a rest")
      ->check(CLI::IsMember({"sustained", "burst"}));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--json", options.json, "Write all figures to this file");
  app.add_option("--trace", options.trace,
                 "Write one forward of each as a Chrome trace, for Perfetto");
  app.add_option("--plot", options.plot, "Write the times as SVG; of a sweep, the ratios");
  app.add_option("--version-number", options.version, "Of geglu-mlp; default 2");
  app.add_option("--variant", options.variant, "Default: the best that fits");
  app.add_option("--registry", options.registry, "Folder or URL; default: $KILN_REGISTRY");
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
