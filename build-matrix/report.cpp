// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <regex>
#include <sstream>

#include "base/join.hpp"
#include "documents/json.hpp"
#include "files.hpp"
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

}  // namespace

std::vector<KernelUse> read_ptxas(const std::string& log, std::string_view subject) {
  static const std::regex kEntry("Compiling entry function '([^']+)' for '([^']+)'");
  static const std::regex kStack(
      "([0-9]+) bytes stack frame, ([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads");
  static const std::regex kRegisters("Used ([0-9]+) registers");
  std::vector<KernelUse> kernels;
  for (std::sregex_iterator next(log.begin(), log.end(), kEntry), end; next != end;) {
    const std::smatch entry = *next++;
    const auto begin = entry[0].second;
    const auto stop = next == end ? log.end() : (*next)[0].first;
    std::sregex_iterator stack(begin, stop, kStack);
    std::smatch registers;
    if (stack == end || !std::regex_search(begin, stop, registers, kRegisters)) {
      throw Error(ErrorCode::kBuild, std::string(subject) +
                                         ": ptxas does not say what registers and spills " +
                                         entry.str(1) + " for " + entry.str(2) + " has");
    }
    KernelUse use{entry[1], entry[2], std::stoull(registers[1])};
    for (; stack != end; ++stack) {  // a function that it calls has a line of its own
      use.stack += std::stoull((*stack)[1]);
      use.spilled += std::stoull((*stack)[2]) + std::stoull((*stack)[3]);
    }
    kernels.push_back(std::move(use));
  }
  return kernels;
}

void list_variants(const Job& job, bool json, std::ostream& out) {
  if (json) {
    Json variants = Json::array();
    Json excluded = Json::array();
    for (const VariantPlan& plan : job.variants) variants.push_back(plan.id);
    for (const ExcludedVariant& variant : job.all.excluded) {
      excluded.push_back({{"variant", variant.id}, {"reason", variant.reason}});
    }
    out << dump_json({{"package", job.package.name},
                      {"version", job.package.version},
                      {"variants", std::move(variants)},
                      {"excluded", std::move(excluded)}})
        << "\n";
    return;
  }
  out << job.package.name << "@" << job.package.version << ": " << job.variants.size()
      << " variants to build\n";
  for (const VariantPlan& plan : job.variants) {
    out << "  " << std::left << std::setw(30) << plan.id << source_names(plan) << "\n";
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
    out << dump_json({{"package", job.package.name},
                      {"version", job.package.version},
                      {"variants", std::move(variants)}})
        << "\n";
  } else {
    out << job.package.name << "@" << job.package.version << ": " << job.variants.size()
        << " archives, " << total << " bytes, in " << (folder / job.package.name).string() << "\n";
  }
}

}  // namespace kiln::build
