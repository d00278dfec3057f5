// SPDX-License-Identifier: Apache-2.0
//
// kiln-build: from packages to archives. The command line and nothing else: it reads the matrix and
// the packages, chooses the variants, writes the graph, runs its steps and says what came out.
#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
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
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "execute.hpp"
#include "files.hpp"
#include "graph.hpp"
#include "here.hpp"
#include "kiln/error.hpp"
#include "loader/cli/frame/complete.hpp"
#include "loader/cli/frame/result.hpp"
#include "loader/cli/frame/usage.hpp"
#include "new.hpp"
#include "ops_header.hpp"
#include "probe/probe.hpp"
#include "report.hpp"
#include "steps.hpp"
#include "toolchain.hpp"
#include "trial.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> packages;
  std::string only;  ///< patterns; empty: all, or with `here` none beside those
  bool here = false;
  unsigned jobs = std::max(1U, std::thread::hardware_concurrency());
  fs::path toolchains;
  fs::path out = "build/kernels";
  fs::path package_root = "packages";
  fs::path matrix = KILN_MATRIX_FILE;
  fs::path sdk = KILN_SDK_DIR;
  fs::path abi = KILN_ABI_INCLUDE_DIR;
  bool list = false;
  bool json = false;
  bool timings = false;
  bool try_out = false;
};

fs::path default_toolchains() {
  const char* prefix = std::getenv("KILN_TOOLCHAINS");
  return prefix != nullptr && *prefix != '\0' ? fs::path(prefix) : fs::path("build/toolchains");
}

std::vector<fs::path> find_folders(const Options& options) {
  std::vector<fs::path> folders;
  for (const std::string& package : options.packages) {
    const bool is_path = package.find('/') != std::string::npos;
    folders.push_back(is_path ? fs::path(package) : options.package_root / package);
    if (!fs::exists(folders.back() / "package.json")) {
      throw Error(ErrorCode::kNotFound, "build " + package + ": there is no " +
                                            (folders.back() / "package.json").string() +
                                            "; name a folder, or a package in --packages");
    }
  }
  if (!folders.empty()) return folders;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(options.package_root, failed)) {
    const bool hidden = entry.path().filename().string().starts_with('.');
    if (!hidden && fs::exists(entry.path() / "package.json")) folders.push_back(entry.path());
  }
  if (folders.empty()) {
    throw Error(ErrorCode::kNotFound, "build: no package in " + options.package_root.string() +
                                          "; run it in the source tree or give --packages");
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

/// Whether a variant of the package is asked for, by its id.
std::function<bool(const VariantPlan&)> wanted(const Options& options, const Matrix& matrix,
                                               const Job& job) {
  std::set<std::string> taken;
  if (options.here) {
    Host host = probe_host();
    if (!host.driver_problem.empty()) {
      throw Error(ErrorCode::kDevice, "build --here: which GPUs this machine has cannot be told: " +
                                          host.driver_problem + ". Or name variants with --only");
    }
    probe_libraries(host, libraries_of(job.all.variants));
    taken = taken_here(host, job.package, job.all.variants, matrix.glibc);
  }
  const std::string only = options.only.empty() && !options.here ? "*" : options.only;
  return [taken, only](const VariantPlan& plan) {
    return taken.contains(plan.id) || (!only.empty() && matches(plan.id, only));
  };
}

[[noreturn]] void fail_nothing_wanted(const Options& options) {
  if (options.only.empty()) {
    throw Error(ErrorCode::kNoVariant,
                "build: no variant fits this machine; 'kiln host' shows what it is, and "
                "'kiln build --list' what could be built. Name variants with --only");
  }
  throw Error(ErrorCode::kUsage, "build: no variant matches --only '" + options.only +
                                     "'; kiln-build --list shows what there is");
}

std::vector<Job> choose(const Options& options, const Matrix& matrix) {
  std::vector<Job> jobs;
  bool any = false;
  for (const fs::path& folder : find_folders(options)) {
    Job job{.package = {}, .folder = fs::canonical(folder), .all = {}, .variants = {}};
    job.package = parse_package(read_file(job.folder / "package.json"),
                                job.folder.filename().string(), (folder / "package.json").string());
    job.all = expand(matrix, job.package);
    std::ranges::copy_if(job.all.variants, std::back_inserter(job.variants),
                         wanted(options, matrix, job));
    any = any || !job.variants.empty();
    jobs.push_back(std::move(job));
  }
  if (!any) fail_nothing_wanted(options);
  return jobs;
}

// What an earlier matrix made and this one does not would otherwise be published with the rest.
void remove_stale(const Job& job, const fs::path& out) {
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(out / job.package.name, failed)) {
    const std::string id = entry.path().filename().string();
    const bool known =
        std::ranges::find(job.all.variants, id, &VariantPlan::id) != job.all.variants.end();
    if (!known && fs::exists(entry.path() / "descriptor.json")) {
      std::cerr << "kiln-build: " << entry.path().string() << " is no variant any more: removed\n";
      fs::remove_all(entry.path());
    }
  }
}

// One build in a folder at a time.
FileLock lock_folder(const fs::path& work) {
  fs::create_directories(work);
  const fs::path path = work / "lock";
  FileDescriptor file = try_open(path, O_RDWR | O_CREAT, 0644);
  if (!file.valid()) fail_file("open", path, errno);
  const auto tell = [](const std::string& note) { std::cerr << "kiln-build: " << note << "\n"; };
  return FileLock::wait(std::move(file), LockMode::kExclusive, {{}, tell}, path);
}

Toolchain find_for(const std::vector<Job>& jobs, const Options& options) {
  std::set<Version> toolkits;
  for (const Job& job : jobs) {
    for (const VariantPlan& plan : job.variants) {
      if (plan.toolkit) toolkits.insert(*plan.toolkit);
    }
  }
  return find_toolchain(fs::absolute(options.toolchains).lexically_normal(), toolkits);
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
    if (const char* value = std::getenv(name)) kept.push_back(std::string(name) + "=" + value);
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

int build(const Options& options) {
  const Matrix matrix = parse_matrix(read_file(options.matrix), options.matrix.string());
  const std::vector<Job> jobs = choose(options, matrix);
  if (options.list) {
    for (const Job& job : jobs) list_variants(job, options.json, std::cout);
    return 0;
  }
  const fs::path out = fs::absolute(options.out).lexically_normal();
  Places places{.out = out,
                .self = fs::read_symlink("/proc/self/exe"),
                .environment = steps_environment(),
                .sdk = fs::canonical(options.sdk),
                .abi = fs::canonical(options.abi),
                .dlpack = KILN_DLPACK_INCLUDE_DIR,
                .license = KILN_LICENSE_FILE};
  for (const Job& job : jobs) check_can_be_listed(job.folder);
  for (const fs::path& folder : {out, places.sdk, places.abi}) check_can_be_listed(folder);
  Toolchain toolchain = find_for(jobs, options);
  const FileLock alone = lock_folder(places.work());
  identify(toolchain, places.work() / "tools");
  places.self_digest = tree_digest(places.self, places.work() / "tools");
  for (const Job& job : jobs) remove_stale(job, out);
  std::ostream& progress = options.json ? std::cerr : std::cout;
  for (const Job& job : jobs) write_ops_header(job, progress);
  Sources sources(tool_folders(toolchain));
  const std::vector<Step> steps = write_graph(jobs, matrix.glibc, toolchain, places, sources);
  const std::vector<Took> took =
      execute(steps, sources, places.work() / "running", options.jobs, progress);
  if (took.empty()) progress << "all " << steps.size() << " steps are up to date\n";
  if (options.timings) print_timings(took, progress);
  if (options.try_out) {
    offer_for_trial(jobs, out, progress);
  }
  for (const Job& job : jobs) report_built(job, out, options.json, std::cout);
  return 0;
}

void print_new(const NewPackage& package, bool json) {
  const std::vector<std::string> files = write_new_package(package);
  const std::string folder = package.folder.string();
  if (json) {
    std::cout << Json{{"schema", "kiln.new/1"}, {"folder", folder}, {"files", files}}.dump(2)
              << "\n";
    return;
  }
  for (const std::string& file : files) std::cout << folder << "/" << file << "\n";
  std::cout << "It builds as it is. " << folder << "/README.md has the commands; the first one:\n"
            << "  kiln build " << (folder.find('/') == std::string::npos ? "./" : "") << folder
            << " --here --try\n";
}

/// `kiln new NAME`.
void add_new(CLI::App& app) {
  struct Asked {
    fs::path folder;
    bool cpu = false;
    bool cuda = false;
    bool json = false;
  };
  const auto asked = std::make_shared<Asked>();
  CLI::App& command = *app.add_subcommand("new", "Write the folder of a package to start from");
  command.add_option("name", asked->folder, "The package's name, or the path of its folder")
      ->required()
      ->type_name("FOLDER");
  command.add_flag("--cpu", asked->cpu, "For the CPU; default: both");
  command.add_flag("--cuda", asked->cuda, "For GPUs; default: both");
  command.add_flag("--json", asked->json, "Answer in JSON on stdout");
  command.footer(
      "Examples:\n"
      "  kiln new row-scale                              for the CPU and for GPUs\n"
      "  kiln new packages/row-scale --cpu               for the CPU alone");
  command.callback([asked] {
    const bool both = !asked->cpu && !asked->cuda;
    print_new({asked->folder, both || asked->cpu, both || asked->cuda}, asked->json);
  });
}

int run(int argc, char** argv) {
  Options options;
  options.toolchains = default_toolchains();
  CLI::App app("Builds kernel packages for every target of the matrix, one archive a variant.",
               "kiln-build");
  app.add_option("package", options.packages,
                 "Package names, or paths of their folders; default: all of --packages")
      ->type_name("FOLDER");
  app.add_option("--only", options.only,
                 "Only the variants that match: 'cu12.9-sm_90a-*', 'cpu-*,*-aarch64'")
      ->take_last();
  app.add_flag("--here", options.here,
               "Only what this machine takes: a variant for its CPU, and one for each kind of its "
               "GPUs; with --only, those as well");
  app.add_option("-j,--jobs", options.jobs, "Steps at a time; default: one for each CPU")
      ->check(CLI::PositiveNumber)
      ->take_last();
  const auto add_place = [&app](const char* name, fs::path& place, const char* kind,
                                const char* help) {
    app.add_option(name, place, help)->take_last()->type_name(kind);
  };
  add_place("--toolchains", options.toolchains, "FOLDER",
            "Where ci/toolchains put the compilers; default: $KILN_TOOLCHAINS, else "
            "build/toolchains");
  add_place("--out", options.out, "FOLDER", "Where the archives go; default: build/kernels");
  add_place("--packages", options.package_root, "FOLDER", "Default: packages");
  add_place("--matrix", options.matrix, "FILE", "Default: the source tree's matrix.json");
  add_place("--sdk", options.sdk, "FOLDER", "Default: the source tree's build-matrix/sdk");
  add_place("--abi", options.abi, "FOLDER", "The folder of kiln/abi.h; default: the source tree's");
  app.add_flag("--list", options.list, "Show what would be built and what not, and why");
  app.add_flag("--json", options.json, "Answer in JSON on stdout; progress goes to stderr");
  app.add_flag("--try", options.try_out,
               "Also publish what was built to OUT/.try, anew after each change, and say the "
               "environment in which programs load it from there");
  app.add_flag("--timings", options.timings, "Also say which steps took how much CPU time");
  add_steps(app);
  add_new(app);
  if (kiln::cli::asks_to_complete(argc, argv)) return kiln::cli::complete(app, argc, argv);
  if (const std::optional<int> answered = kiln::cli::parse(app, argc, argv)) return *answered;
  return app.get_subcommands().empty() ? build(options) : 0;
}

}  // namespace
}  // namespace kiln::build

int main(int argc, char** argv) {
  return kiln::cli::run_program("kiln-build", argc, argv, [&] {
    const int code = kiln::build::run(argc, argv);
    kiln::cli::flush_result();
    return code;
  });
}
