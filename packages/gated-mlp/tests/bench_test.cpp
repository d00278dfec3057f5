// SPDX-License-Identifier: Apache-2.0
//
// The parts of kiln-bench that need no GPU: the trace as Perfetto reads it, the report, the plot,
// the spread.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../bench/tool/measure.hpp"
#include "../bench/tool/plot.hpp"
#include "../bench/tool/report.hpp"
#include "../bench/tool/trace.hpp"

namespace gated_mlp_bench {
namespace {

TEST_CASE("bench: a trace has every call and kernel, and an arrow from each launch to its kernel") {
  const char* const symbol = "_Z4geluIfEvi";
  const std::vector<Section> sections = {
      {"eager",
       {{false, "cuLaunchKernel", 1000, 3000, 2224757120, 5, ""},
        {true, symbol, 4000, 9000, 14, 5, "grid 1x1x1"},
        {false, "cudaStreamSynchronize_v3020", 3500, 9500, 2224757120, 6, ""}}},
      {"none", {}},
      {"kiln", {{true, "prefill", 20000, 22500, 14, 9, ""}}}};
  std::ostringstream out;
  write_chrome_trace(sections, out);
  const auto events = nlohmann::json::parse(out.str()).at("traceEvents");
  std::map<std::string, nlohmann::json> slices;
  std::map<std::string, nlohmann::json> arrows;
  std::map<std::string, nlohmann::json> lanes;  // by their names
  for (const auto& event : events) {
    const std::string phase = event.at("ph");
    if (phase == "X") slices[event.at("name")] = event;
    if (phase == "s" || phase == "f") arrows[phase] = event;
    if (phase == "M") lanes[event.at("args").at("name")] = event;
    if (event.at("name") == "thread_name") CHECK(event.at("tid") > 0);
  }
  REQUIRE(slices.size() == 6);               // two calls, two kernels, two forwards
  CHECK(slices.at("gelu").at("ts") == 3.0);  // microseconds since the section's first
  CHECK(slices.at("gelu").at("dur") == 5.0);
  CHECK(slices.at("gelu").at("args").at("contender") == "eager");
  CHECK(slices.at("gelu").at("args").at("launch") == "grid 1x1x1");
  CHECK(slices.at("gelu").at("args").at("symbol") == symbol);
  CHECK(slices.count("cudaStreamSynchronize") == 1);
  CHECK(slices.at("kiln").at("ts") == 108.5);  // 100 us behind the end of the first
  CHECK(slices.at("kiln").at("dur") == 2.5);
  REQUIRE(arrows.size() == 2);
  CHECK(arrows.at("s").at("id") == arrows.at("f").at("id"));
  CHECK(arrows.at("s").at("tid") == slices.at("cuLaunchKernel").at("tid"));
  CHECK(arrows.at("f").at("ts") == slices.at("gelu").at("ts"));
  CHECK(arrows.at("f").at("pid") == slices.at("gelu").at("pid"));
  CHECK(lanes.at("stream 14").at("tid") == slices.at("gelu").at("tid"));
  CHECK(lanes.at("forwards").at("tid") == slices.at("kiln").at("tid"));
  for (const char* name : {"host", "GPU", "calls of the driver and the runtime"}) {
    CHECK(lanes.count(name) == 1);
  }
  CHECK(kernels_of(sections[0].activities) == std::vector<std::string>{"gelu"});
  std::ostringstream nothing;
  write_chrome_trace({}, nothing);
  CHECK(nlohmann::json::parse(nothing.str()).at("traceEvents").is_array());
}

TEST_CASE("bench: kernel names are cut to what tells them apart") {
  const std::pair<const char*, const char*> names[] = {
      {"prefill_gated_bf16_128x192", "prefill_gated_bf16_128x192"},
      {"_ZN8cublasLt19splitKreduce_kernelILi32ELi16EifEEvPT2_", "cublasLt::splitKreduce_kernel"},
      {"void at::native::gelu<float, 4>(int, float*)", "at::native::gelu"},
      {"_ZN12_GLOBAL__N_13addEPKfS1_", "add"},
      {"void cub::Scan<(int)4, cub::Op<float> >::run<1>(int)", "cub::Scan::run"},
      {"", ""}};
  for (const auto& [symbol, name] : names) CHECK(readable_name(symbol) == name);
}

Outcome decode_outcome() {
  Outcome outcome{.shape = {1, 3584, 14336}, .seen = {}, .card = {}, .host_ns = 900};
  outcome.seen = {
      {.way = &kReadWeights, .kernels = {"read"}, .microseconds = {72, 71, 73}, .gbs = 4000},
      {.way = &kLinear, .kernels = {}, .microseconds = {27, 27, 28}, .gbs = 3700, .error = 1e-3},
      {.way = &kEager,
       .kernels = {"a", "gelu", "a", "multiply", "b", "cublasLt::splitKreduce_kernel"},
       .microseconds = {85, 85, 89},
       .gbs = 3600},
      {.way = &kConcatenated,
       .kernels = {"a", "geglu", "memory", "b"},
       .microseconds = {80, 79, 85},
       .gbs = 3800},
      {.way = &kKiln, .kernels = {"gated", "plain"}, .microseconds = {78, 77, 79}, .gbs = 3900}};
  return outcome;
}

TEST_CASE("bench: kernels that were not guessed are said, with why there can be more") {
  std::ostringstream out;
  print_kernels(decode_outcome(), out);
  const std::string text = out.str();
  CHECK(text.find("eager            6: a gelu a multiply b cublasLt::splitKreduce_kernel\n"
                  "    not the 5 guessed: cuBLASLt split k here") != std::string::npos);
  CHECK(text.find("not the 3 guessed: a library took more kernels") != std::string::npos);
  CHECK(text.find("not the 2 guessed") == std::string::npos);
  CHECK(text.find("linear") == std::string::npos);  // not traced
}

TEST_CASE("bench: a decode has shares of the large read and of the read of its weights") {
  const Outcome outcome = decode_outcome();
  REQUIRE(outcome.best_rival() != nullptr);
  CHECK(outcome.best_rival()->way == &kConcatenated);  // not the read, not the Linear
  const auto json = to_json(outcome, {.tflops = 700, .gbs = 4600});
  CHECK(json.at("same_bytes_read_gbs") == 4000);
  CHECK(!json.contains("kiln_alone"));  // not sampled
  const auto& kiln = json.at("contenders").back();
  CHECK(kiln.at("share_of_same_bytes_read") == 0.975);
  CHECK(kiln.at("share_of_large_read") == doctest::Approx(39.0 / 46));
  const auto& read = json.at("contenders").front();
  CHECK(!read.contains("error"));
  CHECK(!read.contains("tflops"));
  std::ostringstream out;
  print_times(outcome, {.tflops = 700, .gbs = 4600}, out);
  CHECK(out.str().find("3900   85%     98%") != std::string::npos);
}

TEST_CASE("bench: the file to share has the GPU's name") {
  CHECK(shared_file_of("NVIDIA GeForce RTX 4090") == "nvidia-geforce-rtx-4090-shared.json");
  CHECK(shared_file_of("NVIDIA H100 80GB HBM3 (MIG)") == "nvidia-h100-80gb-hbm3-mig-shared.json");
  CHECK(shared_file_of("../L4") == "l4-shared.json");
  CHECK(shared_file_of("") == "shared.json");
}

TEST_CASE("bench: a spread is the median and the fifths") {
  const Spread spread = spread_of({5, 1, 4, 2, 3, 6});
  CHECK(spread.median == 4);
  CHECK(spread.low == 2);
  CHECK(spread.high == 5);
  CHECK(spread_of({7}).median == 7);
}

TEST_CASE("bench: many rows run for a second first, and a burst after a rest") {
  CHECK(turn_of(Regime::kSustained, 255).load == 0);
  CHECK(turn_of(Regime::kSustained, 256).load == 1000);
  CHECK(turn_of(Regime::kSustained, 256).rest == 0);
  for (const std::int64_t rows : {1, 8192}) {
    CHECK(turn_of(Regime::kBurst, rows).rest == 100);
    CHECK(turn_of(Regime::kBurst, rows).load == 0);
    CHECK(turn_of(Regime::kBurst, rows).timed < turn_of(Regime::kSustained, rows).timed);
  }
}

TEST_CASE("bench: a graph holds at least eight forwards, unless they take more than a burst") {
  CHECK(forwards_of_graph(1, 3e8) == 8);
  CHECK(forwards_of_graph(3, 3e8) == 9);
  CHECK(forwards_of_graph(32, 1e6) == 32);
  CHECK(forwards_of_graph(1, 3e11) == 4);
  CHECK(forwards_of_graph(3, 3e11) == 6);
  CHECK(forwards_of_graph(1, 1.3e12) == 1);
  CHECK(forwards_of_graph(2, 1e13) == 2);
}

TEST_CASE("bench: a bar is as long as its value in its panel, and names are text") {
  const std::string svg =
      bar_chart("a < b & c", "",
                {{"one", {{"ours", 50, "50", true}, {"theirs", 100, "100", false}}},
                 {"two", {{"alone", 7, "7", false}}}});
  CHECK(svg.find("a &lt; b &amp; c") != std::string::npos);
  CHECK(svg.find("class=\"k\" x=\"190\" y=\"90\" width=\"200\"") != std::string::npos);
  CHECK(svg.find("class=\"b\" x=\"190\" y=\"114\" width=\"400\"") != std::string::npos);
  CHECK(svg.find("class=\"b\" x=\"190\" y=\"176\" width=\"400\"") != std::string::npos);
  CHECK(svg.find("<line") == std::string::npos);
  CHECK(bar_chart("", "", {{"", {{"", 1, "", false}}, 2}}).find("<line class=\"m\" x1=\"590\"") !=
        std::string::npos);
  CHECK(bar_chart("", "", {}).find("</svg>") != std::string::npos);
}

TEST_CASE("bench: few shapes are plotted as times, many as ratios to the best rival") {
  const std::string few = plot_of({decode_outcome(), decode_outcome()}, "GPU");
  CHECK(few.find("microseconds") != std::string::npos);
  CHECK(few.find("M, D, H = 1,3584,14336") != std::string::npos);
  CHECK(few.find("<line") == std::string::npos);
  const std::string many = plot_of(std::vector<Outcome>(7, decode_outcome()), "GPU");
  CHECK(many.find(">1.03  concatenated<") != std::string::npos);
  CHECK(many.find("<line") != std::string::npos);
}

}  // namespace
}  // namespace gated_mlp_bench
