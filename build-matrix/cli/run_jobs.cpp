// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/cli/run_jobs.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <iostream>
#include <set>

#include "base/draft.hpp"
#include "base/file_lock.hpp"
#include "base/join.hpp"
#include "base/process.hpp"
#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/base/process.hpp"
#include "build-matrix/codegen/ops_header.hpp"
#include "build-matrix/compilers/toolchain.hpp"
#include "build-matrix/schema/choices.hpp"
#include "build-matrix/steps/execute.hpp"
#include "build-matrix/steps/report.hpp"
#include "build-matrix/steps/trial.hpp"
#include "build_paths.hpp"
#include "documents/choices.hpp"
#include "kiln/error.hpp"
#include "loader/cli/frame/output.hpp"
#include "settings/environment.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

using Tell = std::function<void(const std::string&)>;

fs::path default_toolchains() {
  const std::string_view folder = environment().text("KILN_TOOLCHAINS");
  return folder.empty() ? "build/toolchains" : folder;
}

// What an earlier matrix made and this one does not would otherwise be published with the rest.
void remove_stale(const Job& job, const fs::path& out, const Tell& tell) {
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(out / job.package.name, failed)) {
    const std::string id = entry.path().filename().string();
    const bool known =
        std::ranges::find(job.all.variants, id, &VariantPlan::id) != job.all.variants.end();
    if (!known && fs::exists(entry.path() / "descriptor.json")) {
      tell(entry.path().string() + " is not a variant any more: removed");
      fs::remove_all(entry.path());
    }
  }
}

void check_out(const fs::path& out) {
  if (out.string().find_first_of(":,") != std::string::npos) {
    throw Error(ErrorCode::kUsage, "build: --out is " + quote(out.string()) +
                                       ", and zig takes no folder with a colon or a comma in its "
                                       "name. Name another");
  }
  std::error_code unknown;
  const fs::file_status found = fs::status(out, unknown);
  if (!fs::exists(found) || fs::is_directory(found)) return;
  throw Error(ErrorCode::kUsage,
              "build: --out is " + quote(out.string()) +
                  ", which is a file; expected a folder, or a path where one can "
                  "be made. Name another");
}

// One build in a folder at a time.
FileLock lock_folder(const fs::path& work, const Tell& tell) {
  fs::create_directories(work);
  const fs::path path = work / ".lock";
  FileDescriptor file = try_open(path, O_RDWR | O_CREAT, 0644);
  if (!file.valid()) fail_file("open", path, errno);
  return FileLock::wait(std::move(file), LockMode::kExclusive, {{}, tell}, path);
}

fs::path prefix_of(const RunRequest& request) {
  return fs::absolute(request.toolchains).lexically_normal();
}

Toolchain find_for(const std::vector<Job>& jobs, const RunRequest& request) {
  std::set<Version> toolkits;
  std::set<std::string> headers;
  bool triton = false;
  bool any_on_gpu = false;
  for (const Job& job : jobs) {
    for (const VariantPlan& plan : job.variants) {
      headers.insert(plan.headers.begin(), plan.headers.end());
      triton = triton || plan.is_triton();
      any_on_gpu = any_on_gpu || plan.is_cuda();
      if (plan.toolkit && !plan.is_triton() && !plan.binary) toolkits.insert(*plan.toolkit);
    }
  }
  return find_toolchain(prefix_of(request), toolkits, headers, triton, any_on_gpu);
}

// The pinned Python, or the machine's: nothing of it gets into an archive.
Finished ask_python(std::vector<std::string> modules, const fs::path& prefix) {
  const fs::path pinned = find_python(prefix);
  modules.insert(modules.begin(), {pinned.empty() ? "python3" : pinned.string(), "-I", "-S", "-B",
                                   "-Xutf8", paths::kPythonSyntax});
  try {
    return run_captured(modules);
  } catch (const Error& error) {
    return {.status = 127, .output = error.what()};  // as a shell has it
  }
}

// No step compiles what the dev layer has for Python: who imports it would find what is wrong.
void check_python(const std::vector<Job>& jobs, const fs::path& prefix, const Tell& tell) {
  constexpr int kFaults = 3;  // python_syntax.py's
  std::set<std::string> modules;
  for (const Job& job : jobs) {
    for (const std::string& module : job.package.python) {
      modules.insert((job.folder / module).lexically_normal().string());
    }
  }
  if (modules.empty()) return;
  const Finished asked = ask_python({modules.begin(), modules.end()}, prefix);
  if (asked.status == 0) return;
  const std::string said = printable_lines(asked.output);
  if (asked.status == kFaults) {
    throw Error(ErrorCode::kBuild,
                "build: Python cannot compile what is named under \"python\":\n" + said +
                    "Mend it, and build again; a program that imports "
                    "the package would end there");
  }
  tell("the syntax of " + join(modules) + " was not checked, since no Python ran (" + said +
       "). Install python3, or run 'ci/toolchains triton " + shell_word(prefix.string()) +
       "' in Kiln's source");
}

// The list of files that a compiler read has no way to say them.
void check_can_be_listed(const fs::path& folder) {
  if (folder.string().find_first_of("\n\\") == std::string::npos) return;
  throw Error(ErrorCode::kUsage, "build: the folder " + quote(folder.string()) +
                                     " has a line break or a backslash in its name, which "
                                     "compilers cannot say. "
                                     "Take another name");
}

// What the steps of this program need of the environment: where its libraries are, and how a
// sanitizer behaves. All else could only change what they make.
std::vector<std::string> steps_environment() {
  std::vector<std::string> kept;
  for (const char* name :
       {"LD_LIBRARY_PATH", "ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
    if (const char* value = environment().get(name))
      kept.push_back(std::string(name) + "=" + value);
  }
  return kept;
}

std::vector<fs::path> tool_folders(const Toolchain& toolchain) {
  std::vector<fs::path> folders = {toolchain.zig.parent_path()};
  for (const auto& compiler : toolchain.device) folders.push_back(compiler.second.include);
  return folders;
}

// Where a package has headers of its own, the one that is made of package.json lies among them:
// they include it, and so do programs that are compiled from the folder.
void write_ops_header(const Job& job, std::ostream& progress) {
  const fs::path header = job.folder / ops_header_path(job.package);
  if (!fs::is_directory(job.folder / "include")) return;
  if (write_if_changed(header, generate_ops_header(job.package))) {
    progress << "wrote " << header.string() << "\n";
  }
}

}  // namespace

void declare_run(cli::Command& command, RunRequest& request) {
  request.toolchains = default_toolchains();
  constexpr std::uint64_t kMostJobs = 4096;
  command
      .number("-j,--jobs", request.jobs, 1, kMostJobs, "Steps at a time; default: one for each CPU")
      .last_counts();
  const auto place = [&command](const char* names, fs::path& where, const char* help) {
    command.option(names, where, "FOLDER", help).last_counts();
  };
  place("--toolchains", request.toolchains,
        "Where ci/toolchains put the compilers; default: $KILN_TOOLCHAINS, else build/toolchains");
  place("-o,--out", request.out, "Where the archives go; default: build/kernels");
  place("--sdk", request.sdk, "Default: the source tree's build-matrix/sdk");
  place("--abi", request.abi, "The folder of kiln/abi.h; default: the source tree's");
  command.flag("--try", request.try_out,
               "Also publish what was built to OUT/.try, anew after each change, and say the "
               "environment in which programs load it from there");
  command.flag("--no-check", request.no_check,
               "Leave out the numeric check, which 'kiln test' runs");
  command.flag("--timings", request.timings, "Also say which steps took how much CPU time");
}

Job read_job(const fs::path& folder, const Matrix& matrix, const std::string& verb) {
  const fs::path schema = folder / "package.json";
  if (!fs::exists(schema)) {
    throw Error(ErrorCode::kNotFound, verb + " " + folder.string() + ": there is no " +
                                          schema.string() + "; name the folder of a package");
  }
  Job job{.package = {}, .folder = fs::canonical(folder), .all = {}, .variants = {}};
  job.package = parse_package(read_file(schema), job.folder.filename().string(), schema.string());
  if (const fs::path choices = folder / kChoicesFile; fs::exists(choices)) {
    check_choices(read_file(choices), job.package, choices.string());
  }
  job.all = expand(matrix, job.package);
  return job;
}

int run_jobs(const std::vector<Job>& jobs, Version glibc, const RunRequest& request,
             const cli::Call& call) {
  const fs::path out = fs::absolute(request.out).lexically_normal();
  check_out(out);
  Places places{.out = out,
                .self = own_program("build"),
                .environment = steps_environment(),
                .sdk = fs::canonical(request.sdk),
                .abi = fs::canonical(request.abi),
                .dlpack = paths::kDlpack,
                .license = paths::kLicense,
                .triton_step = paths::kTritonStep,
                .check = request.no_check ? fs::path() : paths::kCheck,
                .loader = paths::kLoader};
  for (const Job& job : jobs) check_can_be_listed(job.folder);
  for (const fs::path& folder : {out, places.sdk, places.abi}) check_can_be_listed(folder);
  Toolchain toolchain = find_for(jobs, request);
  const Tell tell = cli::steps_on_stderr(call.quiet);
  const FileLock alone = lock_folder(places.work(), tell);
  identify(toolchain, places.work() / ".tools");
  places.self_digest = tree_digest(places.self, places.work() / ".tools");
  check_python(jobs, prefix_of(request), tell);
  for (const Job& job : jobs) remove_stale(job, out, tell);
  std::ostream nowhere(nullptr);
  std::ostream& progress = call.quiet ? nowhere : call.json ? std::cerr : std::cout;
  for (const Job& job : jobs) write_ops_header(job, progress);
  Sources sources(tool_folders(toolchain));
  const std::vector<Step> steps = write_graph(jobs, glibc, toolchain, places, sources);
  const std::vector<Took> took =
      execute(steps, sources, places.work() / ".running", request.jobs, progress);
  if (took.empty()) progress << "all " << steps.size() << " steps are up to date\n";
  if (request.timings) print_timings(took, progress);
  if (request.try_out) offer_for_trial(jobs, out, call.json ? std::cerr : std::cout);
  for (const Job& job : jobs) report_built(job, out, call.json, std::cout);
  return 0;
}

}  // namespace kiln::build
