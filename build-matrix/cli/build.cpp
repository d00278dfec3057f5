// SPDX-License-Identifier: Apache-2.0
//
// kiln build: from packages to archives. Reads the matrix and the packages, chooses the variants,
// writes the graph, runs its steps and says what came out.
#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>

#include "base/join.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/cli/run_jobs.hpp"
#include "build-matrix/cli/verbs.hpp"
#include "build-matrix/plan/here.hpp"
#include "build-matrix/steps/report.hpp"
#include "build_paths.hpp"
#include "documents/host.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "probe/probe.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

struct BuildRequest {
  std::vector<std::string> packages;
  std::string only;  ///< patterns; empty: all, or with `here` none beside those
  bool here = false;
  std::string host;  ///< file of facts; as `here`, of that machine
  fs::path package_root = "packages";
  fs::path matrix = paths::kMatrix;
  bool list = false;
  RunRequest run = {};
};

std::vector<fs::path> find_folders(const BuildRequest& request) {
  std::vector<fs::path> folders;
  for (const std::string& package : request.packages) {
    const bool is_path =
        package.find('/') != std::string::npos || package == "." || package == "..";
    folders.push_back(is_path ? fs::path(package) : request.package_root / package);
    const fs::path document = folders.back() / "package.json";
    if (!is_path && !fs::exists(document)) {
      std::string text = "build " + package;
      text += ": there is no " + document.string();
      text += "; name a folder, as ./" + package;
      throw Error(ErrorCode::kNotFound, text + ", or a package in --packages");
    }
  }
  if (!folders.empty()) return folders;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(request.package_root, failed)) {
    const bool hidden = entry.path().filename().string().starts_with('.');
    if (!hidden && fs::exists(entry.path() / "package.json")) folders.push_back(entry.path());
  }
  if (folders.empty()) {
    throw Error(ErrorCode::kNotFound, "build: no package in " + request.package_root.string() +
                                          "; name a folder, as ./row-scale, run it in the source "
                                          "tree or give --packages");
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

bool is_for_one_machine(const BuildRequest& request) {
  return request.here || !request.host.empty();
}

Host machine_of(const BuildRequest& request, const Job& job) {
  if (request.here && !request.host.empty()) {
    throw Error(ErrorCode::kUsage, "build: --here and --host name two machines; give one of them");
  }
  if (!request.host.empty()) return parse_host(read_file(request.host), request.host);
  Host host = probe_host();
  if (!host.driver_problem.empty()) {
    throw Error(ErrorCode::kDevice, "build --here: which GPUs this machine has cannot be told: " +
                                        host.driver_problem + ". Or name variants with --only");
  }
  probe_libraries(host, libraries_of(job.all.variants));
  return host;
}

/// Which variants of the package are asked for.
void choose_variants(const BuildRequest& request, const Matrix& matrix, Job& job) {
  const bool for_one = is_for_one_machine(request);
  const std::vector<VariantPlan>& all = job.all.variants;
  if (for_one) {
    job.choices = choices_of(machine_of(request, job), job.package, all, matrix.glibc);
  }
  const std::string only = request.only.empty() && !for_one ? "*" : request.only;
  std::ranges::copy_if(all, std::back_inserter(job.variants), [&](const VariantPlan& plan) {
    return std::ranges::find(job.choices, plan.id, &Choice::variant) != job.choices.end() ||
           (!only.empty() && matches(plan.id, only));
  });
}

/// Each pattern of --only, and the machine where one is named, has to have a variant.
void check_choice(const BuildRequest& request, const std::vector<Job>& jobs) {
  const auto any = [&jobs](const auto& of_job) { return std::ranges::any_of(jobs, of_job); };
  for (const std::string_view pattern : split(request.only, ',')) {
    if (pattern.empty()) continue;
    const bool known = any([&](const Job& job) {
      return std::ranges::any_of(
          job.all.variants, [&](const VariantPlan& plan) { return matches(plan.id, pattern); });
    });
    if (known) continue;
    throw Error(ErrorCode::kUsage, "build: no variant matches --only '" + std::string(pattern) +
                                       "'; kiln-build --list shows what there is");
  }
  if (any([](const Job& job) { return !job.variants.empty(); })) return;
  throw Error(ErrorCode::kNoVariant,
              "build: no variant fits the machine; 'kiln host' shows what this one is, and "
              "'kiln build --list' what could be built. A package for GPUs alone has none where "
              "there is no GPU: name variants with --only, or another machine with --host");
}

std::vector<Job> choose(const BuildRequest& request, const Matrix& matrix) {
  std::vector<Job> jobs;
  for (const fs::path& folder : find_folders(request)) {
    Job job = read_job(folder, matrix, "build");
    choose_variants(request, matrix, job);
    jobs.push_back(std::move(job));
  }
  check_choice(request, jobs);
  return jobs;
}

int build(const BuildRequest& request, const cli::Call& call) {
  const Matrix matrix = parse_matrix(read_file(request.matrix), request.matrix.string());
  const std::vector<Job> jobs = choose(request, matrix);
  if (!request.list) return run_jobs(jobs, matrix.glibc, request.run, call);
  for (const Job& job : jobs) list_variants(job, call.json, std::cout);
  return 0;
}

}  // namespace

void build_verb(cli::Command& command) {
  const auto request = std::make_shared<BuildRequest>();
  command.option("package", request->packages, "FOLDER",
                 "Package names, or paths of their folders; default: all of --packages");
  command
      .option("--only", request->only, "PATTERNS",
              "Only the variants that match: 'cu12.9-sm_90a-*', 'cpu-*,*-aarch64'")
      .last_counts();
  command.flag("--here", request->here,
               "Only what this machine takes: a variant for its CPU, and one for each kind of its "
               "GPUs; with --only, those as well");
  command.option("--host", request->host, "FILE",
                 "As --here, of the machine of this facts file (kiln host --json)");
  declare_run(command, request->run);
  command.option("--packages", request->package_root, "FOLDER", "Default: packages").last_counts();
  command.option("--matrix", request->matrix, "FILE", "Default: the source tree's matrix.json")
      .last_counts();
  command.flag("--list", request->list, "Show what would be built and what not, and why");
  command.example("geglu-mlp --here", "what this machine takes of one package");
  command.example("--only 'cu12.9-*,cpu-*'", "these variants of every package");
  command.example("--list --json", "what would be built, for a program");
  command.runs([request](const cli::Call& call) { return build(*request, call); });
}

}  // namespace kiln::build
