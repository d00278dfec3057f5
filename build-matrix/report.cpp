// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <sstream>

#include "base/join.hpp"
#include "documents/json.hpp"
#include "files.hpp"
#include "ptxas.hpp"

namespace kiln::build {
namespace {

std::string source_names(const VariantPlan& plan) {
  return plan.device.empty() ? "host code only" : join(plan.device, " ", &DeviceSource::stem);
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
