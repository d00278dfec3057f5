// SPDX-License-Identifier: Apache-2.0
//
// The parts of kiln-bench that need no GPU: the trace as Perfetto reads it, the plot, the spread.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "../bench/tool/measure.hpp"
#include "../bench/tool/plot.hpp"
#include "../bench/tool/trace.hpp"

namespace geglu_mlp_bench {
namespace {

TEST_CASE("bench: a trace has every call and kernel, and an arrow from each launch to its kernel") {
  const std::vector<Section> sections = {
      {"eager",
       {{false, "cuLaunchKernel", 1000, 3000, 77, 5, ""},
        {true, "void gelu<float>(int)", 4000, 9000, 14, 5, "grid 1x1x1"},
        {false, "cuStreamSynchronize", 3500, 9500, 77, 6, ""}}},
      {"kiln", {{true, "prefill", 20000, 22500, 14, 9, ""}}}};
  std::ostringstream out;
  write_chrome_trace(sections, out);
  const auto events = nlohmann::json::parse(out.str()).at("traceEvents");
  const auto count = [&](const char* phase) {
    return std::count_if(events.begin(), events.end(),
                         [&](const auto& event) { return event.at("ph") == phase; });
  };
  CHECK(count("X") == 6);  // two calls, two kernels, two forwards
  CHECK(count("s") == 1);
  CHECK(count("f") == 1);
  for (const auto& event : events) {
    if (event.at("name") == "void gelu<float>(int)") {
      CHECK(event.at("ts") == 3.0);  // microseconds since the first
      CHECK(event.at("dur") == 5.0);
      CHECK(event.at("args").at("contender") == "eager");
      CHECK(event.at("args").at("launch") == "grid 1x1x1");
    }
    if (event.at("name") == "kiln") {
      CHECK(event.at("ts") == 19.0);
      CHECK(event.at("dur") == 2.5);
    }
  }
  CHECK(kernels_of(sections[0].activities) == std::vector<std::string>{"void gelu<float>(int)"});
  std::ostringstream nothing;
  write_chrome_trace({}, nothing);
  CHECK(nlohmann::json::parse(nothing.str()).at("traceEvents").is_array());
}

TEST_CASE("bench: kernel names are cut to what tells them apart") {
  CHECK(short_name("void at::native::gelu<float, 4>(int, float*)", 40) == "at::native::gelu");
  CHECK(short_name("prefill_gated_bf16_128x192", 40) == "prefill_gated_bf16_128x192");
  CHECK(short_name("abcdefghij", 8) == "abcde...");
}

TEST_CASE("bench: a spread is the median and the fifths") {
  const Spread spread = spread_of({5, 1, 4, 2, 3, 6});
  CHECK(spread.median == 4);
  CHECK(spread.low == 2);
  CHECK(spread.high == 5);
  CHECK(spread_of({7}).median == 7);
}

TEST_CASE("bench: a bar is as long as its value, and names are text") {
  const std::string svg =
      bar_chart("a < b & c", "", {{"ours", 50, "50 us", true}, {"theirs", 100, "100 us", false}});
  CHECK(svg.find("a &lt; b &amp; c") != std::string::npos);
  CHECK(svg.find("class=\"k\" x=\"190\" y=\"64\" width=\"220\"") != std::string::npos);
  CHECK(svg.find("class=\"b\" x=\"190\" y=\"90\" width=\"440\"") != std::string::npos);
  CHECK(svg.find("<line") == std::string::npos);
  CHECK(bar_chart("", "", {{"", 1, "", false}}, 2).find("<line class=\"m\" x1=\"630\"") !=
        std::string::npos);
  CHECK(bar_chart("", "", {}).find("</svg>") != std::string::npos);
}

}  // namespace
}  // namespace geglu_mlp_bench
