// SPDX-License-Identifier: Apache-2.0
//
// kiln-bench (`kiln bench`): guess first, then look. For one shape or many: says how many kernels
// each way to compute a GeGLU MLP should launch, times them round robin on this GPU, with errors
// against fp64 and shares of the ceilings that the same run measured, and traces one forward of
// each. The trace is last: a process that CUPTI is attached to launches more slowly.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "contenders.hpp"
#include "loader/cli/frame/program.hpp"
#include "machine.hpp"
#include "measure.hpp"
#include "options.hpp"
#include "report.hpp"
#include "trace.hpp"

namespace gated_mlp_bench {
namespace {

using Json = nlohmann::ordered_json;

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
  Json document = {{"schema", options.share ? "geglu-mlp.shared/1" : "kiln.bench/1"},
                   {"package", "geglu-mlp@" + std::to_string(kernel.version())},
                   {"variant", std::string(kernel.variant())},
                   {"gpu", tools.gpu.name()},
                   {"cuda_driver", tools.gpu.driver_version()},
                   {"cublaslt", tools.cublaslt != nullptr ? tools.cublaslt->version() : ""},
                   {"dtype", options.dtype},
                   {"regime", options.regime},
                   {"rounds", options.rounds},
                   {"date", gated_mlp_test::today()},
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

int bench(const Options& options, const kiln::cli::Call& call) {
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

  std::ostream nowhere(nullptr);
  std::ostream& out = !call.json ? std::cout : call.quiet ? nowhere : std::cerr;
  out << "geglu-mlp@" << kernel.version() << " " << kernel.variant() << " on " << gpu.name()
      << ", CUDA driver " << gpu.driver_version() / 1000 << "." << gpu.driver_version() % 1000 / 10
      << ", " << options.dtype << ", " << options.regime << "\n\n";
  print_expected(cublaslt != nullptr, elementwise != nullptr, out);
  const Ceilings ceilings = measure_ceilings(gpu, cublaslt.get(), elementwise.get(), dtype);
  print_ceilings(ceilings, out);

  std::vector<Outcome> outcomes;
  for (const Shape shape : options.shapes) {
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
                                     gated_mlp_test::today()));
  }
  const std::string document =
      document_of(tools, kernel, options, outcomes, ceilings).dump(2) + "\n";
  if (call.json) std::cout << document;
  if (options.share) {
    const std::string name = shared_file_of(gpu.name());
    write_file(name, document);
    out << "Wrote " << name << ": the figures above, the names of the GPU and of the kernels, and "
        << "nothing else of this machine.\nTo share them, open a pull request that adds the file "
        << "to packages/geglu-mlp/bench/results; bench/card.py puts it into the card.\n";
  }
  if (!blind.empty() && !options.trace.empty()) throw std::runtime_error("--trace: " + blind);
  return 0;
}

}  // namespace

/// What the libraries of CUDA refuse is the device's error.
int bench_on_gpu(const Options& options, const kiln::cli::Call& call) {
  try {
    return bench(options, call);
  } catch (const kiln::Error&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw kiln::Error(kiln::ErrorCode::kDevice, error.what());
  }
}

}  // namespace gated_mlp_bench

int main(int argc, char** argv) {
  namespace cli = kiln::cli;
  return cli::run_program(
      {.name = "kiln bench",
       .summary = "Times a GeGLU MLP on this GPU: cuBLASLt step by step, and Kiln",
       .verbs = {},
       .declare =
           [](cli::Command& command) {
             gated_mlp_bench::declare_bench(command, gated_mlp_bench::bench_on_gpu);
           },
       .notes = gated_mlp_bench::kNotes},
      argc, argv);
}
