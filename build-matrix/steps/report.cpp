// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/steps/report.hpp"

#include <algorithm>
#include <iomanip>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <sstream>
#include <utility>

#include "base/join.hpp"
#include "base/number.hpp"
#include "build-matrix/base/files.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

Json to_json(const std::vector<KernelUse>& kernels) {
  Json all = Json::array();
  for (const KernelUse& use : kernels) {
    all.push_back({{"kernel", use.kernel},
                   {"target", use.target},
                   {"registers", use.registers},
                   {"stack_bytes", use.stack},
                   {"spilled_bytes", use.spilled}});
  }
  return all;
}

std::string source_names(const VariantPlan& plan) {
  return plan.images.empty() ? "host code only" : join(plan.images, " ", &ImagePlan::stem);
}

std::string images_text(const Json& report) {
  std::string text;
  for (const Json& image : report.at("images")) {
    text += " " + image.at("stem").get<std::string>() + ":" + image.at("code").get<std::string>();
  }
  return text;
}

/// How many, the most registers of one, and what all spill together.
std::string kernels_text(const std::vector<KernelUse>& kernels) {
  std::uint64_t registers = 0;
  std::uint64_t spilled = 0;
  for (const KernelUse& use : kernels) {
    registers = std::max(registers, use.registers);
    spilled += use.spilled;
  }
  std::ostringstream text;
  text << std::right << std::setw(9) << kernels.size() << std::setw(11) << registers << std::setw(9)
       << spilled << " ";
  return text.str();
}

/// What stands behind `words`; empty if they do not stand there.
std::string_view after(std::string_view line, std::string_view words) {
  const std::size_t at = line.find(words);
  return at == std::string_view::npos ? std::string_view() : line.substr(at + words.size());
}

std::string_view between(std::string_view line, std::string_view begin, std::string_view end) {
  const std::string_view rest = after(line, begin);
  return rest.substr(0, rest.find(end));
}

/// The number directly before `unit`, and directly behind `before` if that is given.
std::optional<std::uint64_t> number_before(std::string_view line, std::string_view unit,
                                           std::string_view before = "") {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return std::nullopt;
  line = line.substr(0, end);
  const std::size_t begin = line.find_last_not_of("0123456789") + 1;
  if (!line.substr(0, begin).ends_with(before)) return std::nullopt;
  return parse_decimal(line.substr(begin), std::numeric_limits<std::uint64_t>::max());
}

}  // namespace

std::vector<KernelUse> read_ptxas(const std::string& log, std::string_view subject) {
  std::vector<KernelUse> kernels;
  std::optional<KernelUse> open;
  bool has_stack = false;
  bool has_registers = false;
  const auto close = [&] {
    if (open && !(has_stack && has_registers)) {
      throw Error(ErrorCode::kBuild, std::string(subject) +
                                         ": ptxas does not say what registers and spills " +
                                         open->kernel + " for " + open->target + " has");
    }
    if (open) kernels.push_back(*std::exchange(open, std::nullopt));
    has_stack = has_registers = false;
  };
  for (const std::string_view line : split(log, '\n')) {
    const std::string_view entry = after(line, "Compiling entry function '");
    if (!entry.empty()) {
      close();
      open = KernelUse{.kernel = std::string(entry.substr(0, entry.find('\''))),
                       .target = std::string(between(entry, "' for '", "'"))};
    }
    if (!open) continue;
    // A function that it calls has a line of its own.
    const std::optional<std::uint64_t> stores = number_before(line, " bytes spill stores");
    const std::optional<std::uint64_t> loads = number_before(line, " bytes spill loads");
    const std::optional<std::uint64_t> stack = number_before(line, " bytes stack frame");
    if (stack && stores && loads) {
      has_stack = true;
      open->stack += *stack;
      open->spilled += *stores + *loads;
    }
    const std::optional<std::uint64_t> registers =
        has_registers ? std::nullopt : number_before(line, " registers", "Used ");
    if (registers) {
      has_registers = true;
      open->registers = *registers;
    }
  }
  close();
  return kernels;
}

namespace {

/// By toolkit, of the variants that are wanted.
std::map<Version, std::string> risks_of(const Job& job) {
  std::map<Version, std::string> risks;
  for (const VariantPlan& plan : job.variants) {
    if (!plan.risk.empty()) risks.emplace(*plan.toolkit, plan.risk);
  }
  return risks;
}

}  // namespace

void list_variants(const Job& job, bool json, std::ostream& out) {
  if (json) {
    Json variants = Json::array();
    Json excluded = Json::array();
    for (const VariantPlan& plan : job.variants) variants.push_back(plan.id);
    Json risks = Json::object();
    for (const auto& [toolkit, risk] : risks_of(job)) risks[to_string(toolkit)] = risk;
    for (const ExcludedVariant& variant : job.all.excluded) {
      excluded.push_back({{"variant", variant.id}, {"reason", variant.reason}});
    }
    Json devices = Json::array();
    for (const Choice& choice : job.choices) {
      devices.push_back({{"device", to_string(choice.device)},
                         {"variant", choice.variant.empty() ? Json() : Json(choice.variant)},
                         {"why", choice.why}});
    }
    out << dump_json({{"schema", "kiln.build.list/1"},
                      {"package", job.package.name},
                      {"version", job.package.version},
                      {"variants", std::move(variants)},
                      {"devices", std::move(devices)},
                      {"risks", std::move(risks)},
                      {"excluded", std::move(excluded)}})
        << "\n";
    return;
  }
  out << job.package.name << "@" << job.package.version << ": " << job.variants.size()
      << " variants to build\n";
  for (const VariantPlan& plan : job.variants) {
    out << "  " << std::left << std::setw(30) << plan.id << source_names(plan) << "\n";
  }
  for (const Choice& choice : job.choices) {
    out << to_string(choice.device) << " takes "
        << (choice.variant.empty() ? "nothing" : choice.variant) << ": " << choice.why << "\n";
  }
  for (const auto& [toolkit, risk] : risks_of(job)) {
    out << "the compiler of CUDA " << to_string(toolkit) << ": " << risk << "\n";
  }
  out << job.all.excluded.size() << " combinations are not built\n";
  for (const ExcludedVariant& variant : job.all.excluded) {
    out << "  " << std::left << std::setw(30) << variant.id << variant.reason << "\n";
  }
}

void report_built(const Job& job, const std::filesystem::path& folder, bool json,
                  std::ostream& out) {
  Json variants = Json::array();
  std::uintmax_t total = 0;
  if (!json) {
    out << "  " << std::left << std::setw(30) << "variant" << std::right << std::setw(10)
        << "archive" << std::setw(10) << "library"
        << "  glibc  kernels  registers  spilled  images\n";
  }
  for (const VariantPlan& plan : job.variants) {
    const std::filesystem::path at = folder / job.package.name / plan.id;
    const Json report = parse_json(read_file(at / "inspect.json"), (at / "inspect.json").string());
    const std::uintmax_t archive = std::filesystem::file_size(at / "layer.tar.zst");
    const std::uint64_t library = report.at("library").at("size").get<std::uint64_t>();
    const std::vector<KernelUse> kernels =
        read_ptxas(read_file(at / "ptxas.txt"), (at / "ptxas.txt").string());
    total += archive;
    if (json) {
      Json entry = report;
      entry["variant"] = plan.id;
      entry["folder"] = at.string();
      entry["archive_size"] = archive;
      entry["kernels"] = to_json(kernels);
      variants.push_back(std::move(entry));
    } else {
      out << "  " << std::left << std::setw(30) << plan.id << std::right << std::setw(10) << archive
          << std::setw(10) << library << "  " << std::left << std::setw(5)
          << report.at("glibc").get<std::string>() << kernels_text(kernels) << " "
          << images_text(report) << "\n";
    }
  }
  if (json) {
    out << dump_json({{"schema", "kiln.build/1"},
                      {"package", job.package.name},
                      {"version", job.package.version},
                      {"variants", std::move(variants)}})
        << "\n";
  } else {
    out << job.package.name << "@" << job.package.version << ": " << job.variants.size()
        << " archives, " << total << " bytes, in " << (folder / job.package.name).string() << "\n";
  }
}

}  // namespace kiln::build
