// SPDX-License-Identifier: Apache-2.0
//
// kiln build: from packages to archives. Reads the matrix and the packages, chooses the variants,
// writes the graph, runs its steps and says what came out.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "base/draft.hpp"
#include "base/file_lock.hpp"
#include "base/quote.hpp"
#include "build-matrix/cli/verbs.hpp"
#include "documents/host.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "execute.hpp"
#include "files.hpp"
#include "graph.hpp"
#include "here.hpp"
#include "kiln/error.hpp"
#include "loader/cli/frame/output.hpp"
#include "ops_header.hpp"
#include "probe/probe.hpp"
#include "report.hpp"
#include "settings/environment.hpp"
#include "toolchain.hpp"
#include "trial.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

using Tell = std::function<void(const std::string&)>;

struct BuildRequest {
  std::vector<std::string> packages;
  std::string only;  ///< patterns; empty: all, or with `here` none beside those
  bool here = false;
  std::string host;  ///< file of facts; as `here`, of that machine
  unsigned jobs = std::max(1U, std::thread::hardware_concurrency());
  fs::path toolchains;
  fs::path out = "build/kernels";
  fs::path package_root = "packages";
  fs::path matrix = KILN_MATRIX_FILE;
  fs::path sdk = KILN_SDK_DIR;
  fs::path abi = KILN_ABI_INCLUDE_DIR;
  bool list = false;
  bool timings = false;
  bool try_out = false;
};

fs::path default_toolchains() {
  const std::string_view folder = environment().text("KILN_TOOLCHAINS");
  return folder.empty() ? "build/toolchains" : folder;
}

std::vector<fs::path> find_folders(const BuildRequest& request) {
  std::vector<fs::path> folders;
  for (const std::string& package : request.packages) {
    const bool is_path = package.find('/') != std::string::npos;
    folders.push_back(is_path ? fs::path(package) : request.package_root / package);
    if (!fs::exists(folders.back() / "package.json")) {
      throw Error(ErrorCode::kNotFound, "build " + package + ": there is no " +
                                            (folders.back() / "package.json").string() +
                                            "; name a folder, or a package in --packages");
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
                                          "; run it in the source tree or give --packages");
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

[[noreturn]] void fail_nothing_wanted(const BuildRequest& request) {
  if (request.only.empty()) {
    throw Error(ErrorCode::kNoVariant,
                "build: no variant fits the machine; 'kiln host' shows what this one is, and "
                "'kiln build --list' what could be built. Name variants with --only");
  }
  throw Error(ErrorCode::kUsage, "build: no variant matches --only '" + request.only +
                                     "'; kiln-build --list shows what there is");
}

std::vector<Job> choose(const BuildRequest& request, const Matrix& matrix) {
  std::vector<Job> jobs;
  bool any = false;
  for (const fs::path& folder : find_folders(request)) {
    Job job{.package = {}, .folder = fs::canonical(folder), .all = {}, .variants = {}};
    job.package = parse_package(read_file(job.folder / "package.json"),
                                job.folder.filename().string(), (folder / "package.json").string());
    job.all = expand(matrix, job.package);
    choose_variants(request, matrix, job);
    any = any || !job.variants.empty();
    jobs.push_back(std::move(job));
  }
  if (!any) fail_nothing_wanted(request);
  return jobs;
}

// What an earlier matrix made and this one does not would otherwise be published with the rest.
void remove_stale(const Job& job, const fs::path& out, const Tell& tell) {
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(out / job.package.name, failed)) {
    const std::string id = entry.path().filename().string();
    const bool known =
        std::ranges::find(job.all.variants, id, &VariantPlan::id) != job.all.variants.end();
    if (!known && fs::exists(entry.path() / "descriptor.json")) {
      tell(entry.path().string() + " is no variant any more: removed");
      fs::remove_all(entry.path());
    }
  }
}

void check_out(const fs::path& out) {
  if (out.string().find(':') != std::string::npos) {
    throw Error(ErrorCode::kUsage, "build: --out is " + quote(out.string()) +
                                       ", and zig keeps nothing in a folder with a colon in its "
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
  const fs::path path = work / "lock";
  FileDescriptor file = try_open(path, O_RDWR | O_CREAT, 0644);
  if (!file.valid()) fail_file("open", path, errno);
  return FileLock::wait(std::move(file), LockMode::kExclusive, {{}, tell}, path);
}

Toolchain find_for(const std::vector<Job>& jobs, const BuildRequest& request) {
  std::set<Version> toolkits;
  std::set<std::string> headers;
  bool triton = false;
  for (const Job& job : jobs) {
    for (const VariantPlan& plan : job.variants) {
      headers.insert(plan.headers.begin(), plan.headers.end());
      triton = triton || plan.is_triton();
      if (plan.toolkit && !plan.is_triton()) toolkits.insert(*plan.toolkit);
    }
  }
  return find_toolchain(fs::absolute(request.toolchains).lexically_normal(), toolkits, headers,
                        triton);
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

int build(const BuildRequest& request, const cli::Call& call) {
  const Matrix matrix = parse_matrix(read_file(request.matrix), request.matrix.string());
  const std::vector<Job> jobs = choose(request, matrix);
  if (request.list) {
    for (const Job& job : jobs) list_variants(job, call.json, std::cout);
    return 0;
  }
  const fs::path out = fs::absolute(request.out).lexically_normal();
  check_out(out);
  Places places{.out = out,
                .self = fs::read_symlink("/proc/self/exe"),
                .environment = steps_environment(),
                .sdk = fs::canonical(request.sdk),
                .abi = fs::canonical(request.abi),
                .dlpack = KILN_DLPACK_INCLUDE_DIR,
                .license = KILN_LICENSE_FILE,
                .triton_step = KILN_TRITON_STEP};
  for (const Job& job : jobs) check_can_be_listed(job.folder);
  for (const fs::path& folder : {out, places.sdk, places.abi}) check_can_be_listed(folder);
  Toolchain toolchain = find_for(jobs, request);
  const Tell tell = cli::steps_on_stderr(call.quiet);
  const FileLock alone = lock_folder(places.work(), tell);
  identify(toolchain, places.work() / "tools");
  places.self_digest = tree_digest(places.self, places.work() / "tools");
  for (const Job& job : jobs) remove_stale(job, out, tell);
  std::ostream nowhere(nullptr);
  std::ostream& progress = call.quiet ? nowhere : call.json ? std::cerr : std::cout;
  for (const Job& job : jobs) write_ops_header(job, progress);
  Sources sources(tool_folders(toolchain));
  const std::vector<Step> steps = write_graph(jobs, matrix.glibc, toolchain, places, sources);
  const std::vector<Took> took =
      execute(steps, sources, places.work() / "running", request.jobs, progress);
  if (took.empty()) progress << "all " << steps.size() << " steps are up to date\n";
  if (request.timings) print_timings(took, progress);
  if (request.try_out) offer_for_trial(jobs, out, call.json ? std::cerr : std::cout);
  for (const Job& job : jobs) report_built(job, out, call.json, std::cout);
  return 0;
}

}  // namespace

void build_verb(cli::Command& command) {
  const auto request = std::make_shared<BuildRequest>();
  request->toolchains = default_toolchains();
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
  constexpr std::uint64_t kMostJobs = 4096;
  command
      .number("-j,--jobs", request->jobs, 1, kMostJobs,
              "Steps at a time; default: one for each CPU")
      .last_counts();
  const auto place = [&command](const char* names, fs::path& where, const char* kind,
                                const char* help) {
    command.option(names, where, kind, help).last_counts();
  };
  place("--toolchains", request->toolchains, "FOLDER",
        "Where ci/toolchains put the compilers; default: $KILN_TOOLCHAINS, else build/toolchains");
  place("-o,--out", request->out, "FOLDER", "Where the archives go; default: build/kernels");
  place("--packages", request->package_root, "FOLDER", "Default: packages");
  place("--matrix", request->matrix, "FILE", "Default: the source tree's matrix.json");
  place("--sdk", request->sdk, "FOLDER", "Default: the source tree's build-matrix/sdk");
  place("--abi", request->abi, "FOLDER", "The folder of kiln/abi.h; default: the source tree's");
  command.flag("--list", request->list, "Show what would be built and what not, and why");
  command.flag("--try", request->try_out,
               "Also publish what was built to OUT/.try, anew after each change, and say the "
               "environment in which programs load it from there");
  command.flag("--timings", request->timings, "Also say which steps took how much CPU time");
  command.example("geglu-mlp --here", "what this machine takes of one package");
  command.example("--only 'cu12.9-*,cpu-*'", "these variants of every package");
  command.example("--list --json", "what would be built, for a program");
  command.runs([request](const cli::Call& call) { return build(*request, call); });
}

}  // namespace kiln::build
