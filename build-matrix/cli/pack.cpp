// SPDX-License-Identifier: Apache-2.0
//
// kiln pack: binaries that exist, as package.json states them, become variants: each is read and
// compared with what is stated, and packed. What is compiled of the same package is kiln build's.
#include <algorithm>
#include <iterator>
#include <memory>

#include "build-matrix/base/files.hpp"
#include "build-matrix/cli/run_jobs.hpp"
#include "build-matrix/cli/verbs.hpp"
#include "build_paths.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

struct PackRequest {
  std::vector<std::filesystem::path> folders;
  RunRequest run;
};

int pack_folders(const PackRequest& request, const cli::Call& call) {
  const Matrix matrix = parse_matrix(read_file(paths::kMatrix), paths::kMatrix);
  std::vector<Job> jobs;
  for (const std::filesystem::path& folder : request.folders) {
    jobs.push_back(read_job(folder, matrix, "pack"));
    Job& job = jobs.back();
    std::ranges::copy_if(job.all.variants, std::back_inserter(job.variants),
                         [](const VariantPlan& plan) { return plan.binary.has_value(); });
    if (!job.variants.empty()) continue;
    throw Error(ErrorCode::kBuild, "pack " + job.package.name + ": " +
                                       (folder / "package.json").string() +
                                       " has no \"binaries\"; name the files there, or run 'kiln "
                                       "build' for what is compiled");
  }
  return run_jobs(jobs, matrix.glibc, request.run, call);
}

}  // namespace

void pack_verb(cli::Command& command) {
  const auto request = std::make_shared<PackRequest>();
  command
      .option("package", request->folders, "FOLDER",
              "Folders with a package.json that names binaries, and with these")
      .required();
  declare_run(command, request->run);
  command.example("./add-one", "into build/kernels/add-one, from where it is published");
  command.example("./add-one --try", "and a registry of its own, to call it at once");
  command.runs([request](const cli::Call& call) { return pack_folders(*request, call); });
}

}  // namespace kiln::build
