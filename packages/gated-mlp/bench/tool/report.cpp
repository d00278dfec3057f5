// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <ostream>

#include "plot.hpp"

namespace gated_mlp_bench {
namespace {

using Json = nlohmann::ordered_json;

[[gnu::format(printf, 1, 2)]] std::string format(const char* form, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, form);
  std::vsnprintf(text, sizeof(text), form, arguments);
  va_end(arguments);
  return text;
}

std::string percent(double value, double ceiling) {
  return ceiling > 0 ? std::to_string(std::lround(100 * value / ceiling)) + "%" : "-";
}

bool contains(const std::vector<std::string>& names, const char* part) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.find(part) != std::string::npos; });
}

std::string row_of(const Seen& seen, const Outcome& outcome, const Ceilings& ceilings) {
  const bool whole = seen.way->result == Result::kMlp;
  const bool computes = seen.way->result != Result::kNothing;
  const Spread& us = seen.microseconds;
  std::string row =
      format("  %-16s %9.2f %9.2f..%-9.2f", seen.way->name, us.median, us.low, us.high);
  row += computes ? format("%8.1f %5s", seen.tflops, percent(seen.tflops, ceilings.tflops).c_str())
                  : format("%8s %5s", "-", "-");
  row += format("%9.0f %5s %7s", seen.gbs, percent(seen.gbs, ceilings.gbs).c_str(),
                whole ? percent(seen.gbs, outcome.same_bytes_gbs()).c_str() : "-");
  row += computes ? format("  %.2e", seen.error) : format("  %8s", "-");
  if (whole) row += format("  %9.2f", us.median / outcome.kiln().microseconds.median);
  return row + "\n";
}

const char* reason(const Seen& seen) {
  if (contains(seen.kernels, "splitKreduce")) {
    return "cuBLASLt split k here, and a kernel of its own adds the parts";
  }
  return seen.kernels.size() > static_cast<std::size_t>(seen.way->launches)
             ? "a library took more kernels for a step than one"
             : "a library took one kernel for more than a step";
}

}  // namespace

const Seen* Outcome::best_rival() const {
  const Seen* best = nullptr;
  for (const Seen& one : seen) {
    if (one.way->result != Result::kMlp || &one == &kiln()) continue;
    if (best == nullptr || one.microseconds.median < best->microseconds.median) best = &one;
  }
  return best;
}

double Outcome::same_bytes_gbs() const {
  const auto read = std::find_if(seen.begin(), seen.end(),
                                 [](const Seen& one) { return one.way == &kReadWeights; });
  return read != seen.end() ? read->gbs : 0;
}

void print_expected(bool cublaslt, bool nvrtc, std::ostream& out) {
  out << "Guess first: the kernels of one forward.\n";
  for (const Way* way : kWays) {
    const bool there = (cublaslt || !way->needs_cublaslt) && (nvrtc || !way->needs_nvrtc);
    out << format("  %-16s %d  %s%s\n", way->name, way->launches, way->what,
                  there ? "" : "  (left out: not installed)");
  }
  out << '\n';
}

void print_ceilings(const Ceilings& ceilings, std::ostream& out) {
  if (ceilings.tflops > 0) {
    out << format("TFLOP/s ceiling %.0f: cuBLASLt's best, 8192 cubed, in this run\n",
                  ceilings.tflops);
  }
  if (ceilings.gbs > 0) {
    out << format("GB/s ceiling %.0f: one kernel that only reads 1 GiB, in this run\n",
                  ceilings.gbs);
  }
  out << '\n';
}

void print_times(const Outcome& outcome, const Ceilings& ceilings, std::ostream& out) {
  out << "M, D, H = " << text_of(outcome.shape) << "\n"
      << format("  %-16s %9s %9s..%-9s%8s %5s%9s %5s %7s  %8s  %9s\n", "", "us", "20%", "80%",
                "TFLOP/s", "of it", "GB/s", "of it", "of read", "error", "time/kiln");
  for (const Seen& seen : outcome.seen) out << row_of(seen, outcome, ceilings);
  if (outcome.same_bytes_gbs() > 0) {
    out << "  of read: of the bare read of the same weights, in the same rounds; it has the ramp "
           "of\n"
           "  a short kernel, which the read of 1 GiB has not\n";
  }
  out << format("  host: %.0f ns to enqueue a forward of kiln", outcome.host_ns);
  if (outcome.bare_ns > 0) out << format(", %.0f ns for two bare launches", outcome.bare_ns);
  out << '\n';
  if (outcome.card.clock > 0) {
    out << format("  under kiln alone, after a second of it: SM clock %.0f MHz, %.0f W\n",
                  outcome.card.clock, outcome.card.power);
  }
  out << '\n';
}

void print_kernels(const Outcome& outcome, std::ostream& out) {
  out << "M, D, H = " << text_of(outcome.shape) << "\n";
  for (const Seen& seen : outcome.seen) {
    if (seen.kernels.empty()) continue;
    out << format("  %-16s %zu:", seen.way->name, seen.kernels.size());
    for (const std::string& kernel : seen.kernels) out << ' ' << kernel;
    out << '\n';
    if (seen.kernels.size() != static_cast<std::size_t>(seen.way->launches)) {
      out << format("    not the %d guessed: %s\n", seen.way->launches, reason(seen));
    }
  }
  out << '\n';
}

Json to_json(const Outcome& outcome, const Ceilings& ceilings) {
  Json contenders = Json::array();
  for (const Seen& seen : outcome.seen) {
    const Spread& us = seen.microseconds;
    Json one = {{"name", seen.way->name},
                {"kernels_expected", seen.way->launches},
                {"kernels", seen.kernels},
                {"us", {{"median", us.median}, {"p20", us.low}, {"p80", us.high}}},
                {"gbs", seen.gbs}};
    if (ceilings.gbs > 0) one["share_of_large_read"] = seen.gbs / ceilings.gbs;
    if (seen.way->result == Result::kMlp && outcome.same_bytes_gbs() > 0) {
      one["share_of_same_bytes_read"] = seen.gbs / outcome.same_bytes_gbs();
    }
    if (seen.way->result != Result::kNothing) {
      one["tflops"] = seen.tflops;
      one["error"] = seen.error;
    }
    contenders.push_back(std::move(one));
  }
  Json json = {{"m", outcome.shape.m},
               {"d", outcome.shape.d},
               {"h", outcome.shape.h},
               {"host_ns", outcome.host_ns},
               {"two_bare_launches_ns", outcome.bare_ns}};
  if (outcome.same_bytes_gbs() > 0) json["same_bytes_read_gbs"] = outcome.same_bytes_gbs();
  if (outcome.card.clock > 0) {
    json["kiln_alone"] = {{"sm_mhz", outcome.card.clock}, {"watts", outcome.card.power}};
  }
  json["contenders"] = std::move(contenders);
  return json;
}

std::string shared_file_of(const std::string& gpu) {
  std::string name;
  for (const char c : gpu) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    const bool capital = c >= 'A' && c <= 'Z';
    if (plain || capital) {
      name += capital ? static_cast<char>(c - 'A' + 'a') : c;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  if (!name.empty() && name.back() != '-') name += '-';
  return name + "shared.json";
}

std::string plot_of(const std::vector<Outcome>& outcomes, const std::string& subtitle) {
  constexpr std::size_t kMostPanels = 6;
  std::vector<Panel> panels;
  if (outcomes.size() <= kMostPanels) {
    for (const Outcome& outcome : outcomes) {
      Panel panel{.title = "M, D, H = " + text_of(outcome.shape), .bars = {}};
      for (const Seen& seen : outcome.seen) {
        const double us = seen.microseconds.median;
        panel.bars.push_back({seen.way->name, us, format("%.4g", us), &seen == &outcome.kiln()});
      }
      panels.push_back(std::move(panel));
    }
    return bar_chart("GeGLU MLP forward and its parts, microseconds, less is better", subtitle,
                     panels);
  }
  Panel panel{.title = "", .bars = {}, .mark = 1};
  for (const Outcome& outcome : outcomes) {
    const Seen* const rival = outcome.best_rival();
    if (rival == nullptr) continue;
    const double ratio = rival->microseconds.median / outcome.kiln().microseconds.median;
    panel.bars.push_back(
        {text_of(outcome.shape), ratio, format("%.2f  %s", ratio, rival->way->name), ratio >= 1});
  }
  return bar_chart("Best rival's time over Kiln's, GeGLU MLP forward, more is better", subtitle,
                   {panel});
}

}  // namespace gated_mlp_bench
