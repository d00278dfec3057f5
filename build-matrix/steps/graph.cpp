// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/steps/graph.hpp"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "build-matrix/base/files.hpp"
#include "build-matrix/codegen/calls.hpp"
#include "build-matrix/compilers/zig.hpp"
#include "build-matrix/library/device_code.hpp"
#include "build-matrix/library/existing.hpp"
#include "build-matrix/library/pack.hpp"
#include "build-matrix/steps/image_steps.hpp"
#include "build-matrix/steps/ingredients.hpp"
#include "documents/check_file.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

void append(std::vector<std::string>& words, std::initializer_list<std::string> more) {
  words.insert(words.end(), more);
}

// Writes one package's part of the graph.
class PackageGraph {
 public:
  explicit PackageGraph(PackageBuild build)
      : build_(std::move(build)), zig_environment_(zig_environment()) {
    add_checks();
  }

  void add(const VariantPlan& plan) {
    const fs::path folder = build_.folder_of(plan);
    if (plan.binary && !take_in(plan, *plan.binary)) return;
    const Ingredients ingredients = collect_ingredients(build_, plan);
    const Recipe recipe = make_recipe(build_.job.package, plan, allowed_glibc(plan), ingredients);
    write_if_changed(folder / "recipe.json", dump_json(to_json(recipe)) + "\n");
    write_if_changed(folder / "package.gen.cpp",
                     generate_glue(build_.job.package, glue_facts(plan, recipe.build_id)));

    std::vector<fs::path> objects = host_objects(plan);
    objects.push_back(
        compile_generated(folder / "package.gen.cpp", folder / "package.gen.o", plan.cpu));
    std::vector<fs::path> logs;
    if (plan.is_triton()) {
      add_launches(build_, plan);
      objects.push_back(compile_generated(folder / kLaunches, folder / "launches.gen.o", plan.cpu));
    }
    if (plan.is_cuda() && !plan.binary) {
      logs = add_images(build_, plan);
      objects.push_back(
          compile_generated(folder / "images.gen.cpp", folder / "images.gen.o", plan.cpu));
    }
    link(plan, recipe, objects, folder);
    pack(recipe, folder, folder / recipe.library(), logs);
  }

 private:
  Version allowed_glibc(const VariantPlan& plan) const {
    return plan.binary ? std::max(build_.glibc, plan.binary->glibc) : build_.glibc;
  }

  // What exists. A library with Kiln's ABI is packed as it is, and then nothing is left to do;
  // of another the files are copied beside the source that calls it.
  bool take_in(const VariantPlan& plan, const Binary& binary) {
    std::vector<fs::path> files;
    for (const std::string& file : binary.carries) files.push_back(build_.files.path_of(file));
    files.push_back(build_.files.path_of(binary.file));
    const Existing existing =
        check_existing(build_.job.package, binary, files, build_.toolchain.cuobjdump);
    const fs::path folder = build_.folder_of(plan);
    if (binary.abi == Binary::Abi::kKiln) {
      Recipe recipe = make_recipe(build_.job.package, plan, binary.glibc, {});
      recipe.build_id = existing.build_id;
      recipe.build = dump_json({{"source", build_.sources.digest(files.back()).str()}});
      write_if_changed(folder / "recipe.json", dump_json(to_json(recipe)) + "\n");
      pack(recipe, folder, files.back(), {});
      return false;
    }
    for (std::size_t i = 0; i < files.size(); ++i) {
      write_if_changed(folder / carried_name(i), read_file(files[i]));
    }
    const bool ptx = binary.abi == Binary::Abi::kCuda && is_ptx(read_file(files.back()));
    write_if_changed(folder / kCalls,
                     generate_calls(build_.job.package, binary, existing.sonames, ptx));
    return true;
  }

  // zig believes the times of files where it has compiled them before, so it remembers nothing of a
  // step. What it builds of its own sources for a target, start-up objects and libc++, takes most
  // of a minute: it is kept beside the compilers, for every build that has them.
  std::vector<std::string> zig_environment() const {
    const fs::path compilers = build_.toolchain.zig.parent_path().parent_path();
    const std::string kept = build_.toolchain.zig_digest.substr(0, 16);
    const fs::path beside = compilers / "zig-cache" / kept;
    fs::path nearest = beside / "h";  // zig's own; another user may have made it
    while (::access(nearest.c_str(), F_OK) != 0 && nearest != compilers) {
      nearest = nearest.parent_path();
    }
    const bool ours = ::access(nearest.c_str(), W_OK) == 0;
    const fs::path global = ours ? beside : build_.places.work() / ".zig-cache" / kept;
    return {"ZIG_GLOBAL_CACHE_DIR=" + global.string(), "ZIG_LOCAL_CACHE_DIR=" + made("zig"),
            "LC_ALL=C"};
  }

  // Objects of a variant's own sources lie beside its recipe, all others with whom they belong to.
  fs::path compile_generated(const fs::path& source, const fs::path& object, CpuLevel cpu) {
    return compile(source, object, compile_flags(cpu, build_.glibc), build_.files.own());
  }

  fs::path compile_owned(const fs::path& source, const Owner& owner, const std::string& folder,
                         const std::vector<std::string>& flags) {
    const fs::path object =
        build_.places.work() / owner.name / folder / (owner.name_of(source) + ".o");
    return compile(source, object, flags, owner);
  }

  // Our folders are searched before the compiler's for "…" and after them for <…>, so that no file
  // of ours is read where the compiler's own headers name theirs.
  fs::path compile(const fs::path& source, const fs::path& object,
                   const std::vector<std::string>& flags, const Owner& owner) {
    std::vector<std::string> command = {build_.toolchain.zig.string(), "c++"};
    std::ranges::copy(flags, std::back_inserter(command));
    command.push_back("-Werror=date-time");
    for (const fs::path& each : owner.headers) append(command, {"-iquote", each.string()});
    for (const fs::path& each : owner.headers) append(command, {"-idirafter", each.string()});
    for (const auto& [prefix, name] : owner.prefixes) {
      command.push_back("-ffile-prefix-map=" + prefix.string() + "=" + name);
    }
    const std::string name = object.filename().string();
    append(command,
           {"-MD", "-MF", made(std::string(kReadList)), "-c", source.string(), "-o", made(name)});
    build_.steps.add({.kind = "compile",
                      .what = build_.in_work(object),
                      .command = std::move(command),
                      .environment = zig_environment_,
                      .tool = build_.toolchain.zig_digest,
                      .tool_folder = build_.toolchain.zig.parent_path(),
                      .inputs = {source},
                      .searched = owner.headers,
                      .folder = object.parent_path(),
                      .outputs = {name},
                      .stamp = object.string() + ".stamp"});
    return object;
  }

  // The package's numeric check, for each architecture that it is for: the dev layer is the same
  // for all variants. None of it is an ingredient of a library.
  void add_checks() {
    if (build_.job.package.check.empty() || build_.places.check.empty()) return;
    std::set<Arch> arches;
    for (const VariantPlan& plan : build_.job.all.variants) arches.insert(plan.cpu.arch);
    for (const Arch arch : arches) {
      build_.files.add_dev(check_file(arch), add_check({.arch = arch, .level = 1}));
    }
  }

  static std::string check_folder(CpuLevel cpu) {
    return "check/" + std::string(to_string(cpu.arch));
  }

  fs::path add_check(CpuLevel cpu) {
    const fs::path folder = build_.places.work() / build_.job.package.name / check_folder(cpu);
    const std::vector<std::string> flags = check_compile_flags(cpu, build_.glibc);
    const fs::path exports = build_.places.check / "exports.map";
    std::vector<std::string> command = {build_.toolchain.zig.string(), "c++"};
    std::ranges::copy(check_link_flags(cpu, build_.glibc), std::back_inserter(command));
    command.push_back("-Wl,--version-script=" + exports.string());
    std::vector<fs::path> inputs = {exports};
    const auto take = [&](const fs::path& source) {
      inputs.push_back(
          compile_owned(source, build_.files.owner_of_check(source), check_folder(cpu), flags));
      command.push_back(inputs.back().string());
    };
    for (const std::string& source : build_.job.package.check) take(build_.files.path_of(source));
    take(build_.places.check / "entry.cpp");
    return add_link(std::move(command), std::move(inputs), folder / "check.so");
  }

  fs::path add_link(std::vector<std::string> command, std::vector<fs::path> inputs,
                    const fs::path& library) {
    const std::string name = library.filename().string();
    append(command, {"-o", made(name)});
    build_.steps.add({.kind = "link",
                      .what = build_.in_work(library),
                      .command = std::move(command),
                      .environment = zig_environment_,
                      .tool = build_.toolchain.zig_digest,
                      .inputs = std::move(inputs),
                      .folder = library.parent_path(),
                      .outputs = {name},
                      .stamp = library.string() + ".stamp"});
    return library;
  }

  std::vector<fs::path> host_objects(const VariantPlan& plan) {
    const auto flags = compile_flags(plan.cpu, build_.glibc);
    std::vector<fs::path> objects;
    const auto take = [&](const fs::path& source) {
      objects.push_back(compile_owned(source, build_.files.owner_of_object(source),
                                      "host/" + to_string(plan.cpu), flags));
    };
    for (const std::string& source : plan.host) take(build_.files.path_of(source));
    if (plan.binary) {
      const fs::path calls = build_.folder_of(plan) / kCalls;
      objects.push_back(compile_generated(calls, calls.string() + ".o", plan.cpu));
    }
    for (const std::string& source : sdk_sources_of(plan)) {
      take(build_.places.sdk / "src" / source);
    }
    return objects;
  }

  void link(const VariantPlan& plan, const Recipe& recipe, const std::vector<fs::path>& objects,
            const fs::path& folder) {
    const fs::path exports = build_.places.work() / build_.job.package.name / "gen" / "exports.map";
    std::vector<std::string> command = {build_.toolchain.zig.string(), "c++"};
    std::ranges::copy(link_flags(plan.cpu, build_.glibc), std::back_inserter(command));
    append(command,
           {"-Wl,-soname," + recipe.library(), "-Wl,--version-script=" + exports.string()});
    for (const fs::path& object : objects) command.push_back(object.string());
    append(command, {"-lm", "-ldl", "-lpthread"});
    std::vector<fs::path> inputs = objects;
    inputs.push_back(exports);
    add_link(std::move(command), std::move(inputs), folder / recipe.library());
  }

  void pack(const Recipe& recipe, const fs::path& folder, const fs::path& library,
            const std::vector<fs::path>& logs) {
    const fs::path package_json = build_.job.folder / "package.json";
    const fs::path license = license_of(build_.job, build_.places);
    std::vector<std::string> command = {build_.places.self.string(),
                                        "step",
                                        "pack",
                                        "--recipe",
                                        (folder / "recipe.json").string(),
                                        "--library",
                                        library.string(),
                                        "--package",
                                        package_json.string(),
                                        "--license",
                                        license.string(),
                                        "--into",
                                        std::string(kOut)};
    if (recipe.toolkit) append(command, {"--cuobjdump", build_.toolchain.cuobjdump.string()});
    for (const fs::path& log : logs) append(command, {"--log", log.string()});
    std::vector<fs::path> inputs = {library, folder / "recipe.json", package_json, license};
    inputs.insert(inputs.end(), logs.begin(), logs.end());
    for (const auto& [path, file] : build_.files.dev()) {
      append(command, {"--dev", path, "--dev", file.string()});
      inputs.push_back(file);
    }
    Step step = {.kind = "pack",
                 .what = build_.job.package.name + "/" + recipe.variant,
                 .command = std::move(command),
                 .environment = build_.places.environment,
                 .tool = build_.places.self_digest + " " + build_.toolchain.cuobjdump_digest,
                 .inputs = std::move(inputs),
                 .folder = build_.places.out / build_.job.package.name / recipe.variant,
                 .outputs = {"layer.tar.zst", "config.json", "manifest.json", "inspect.json",
                             "ptxas.txt", recipe.library()},
                 .stamp = folder / "packed.stamp"};
    (build_.files.dev().empty() ? step.absent : step.outputs).push_back(kDevArchive);
    step.outputs.push_back("descriptor.json");  // last: a folder that has it is whole
    build_.steps.add(std::move(step));
  }

  PackageBuild build_;
  std::vector<std::string> zig_environment_;
};

}  // namespace

fs::path license_of(const Job& job, const Places& places) {
  if (fs::exists(job.folder / "LICENSE")) return job.folder / "LICENSE";
  if (job.package.license == "Apache-2.0") return places.license;
  throw Error(ErrorCode::kBuild, "build " + job.package.name + ": its licence is " +
                                     job.package.license + ", and there is no " +
                                     (job.folder / "LICENSE").string() + " with the text");
}

namespace {

// What is made of a folder is found again by the folder's name.
void expect_names_to_differ(const std::vector<Job>& jobs) {
  std::map<std::string, fs::path> folders;
  const auto add = [&](const std::string& name, const fs::path& folder) {
    const auto [known, is_new] = folders.emplace(name, folder);
    if (is_new || known->second == folder) return;
    throw Error(ErrorCode::kUsage, "build: " + known->second.string() + " and " + folder.string() +
                                       " are both called " + name +
                                       "; expected one folder of a name in one build. Build one "
                                       "after the other, each with an --out of its own");
  };
  for (const Job& job : jobs) {
    add(job.package.name, job.folder.lexically_normal());
    for (const std::string& name : job.package.shared_folders()) {
      add(name, (job.folder.parent_path() / name).lexically_normal());
    }
  }
}

}  // namespace

std::vector<Step> write_graph(const std::vector<Job>& jobs, Version glibc,
                              const Toolchain& toolchain, const Places& places, Sources& sources) {
  expect_names_to_differ(jobs);
  // dlpack.h alone: the folder it is installed in holds the headers of this machine's libc too.
  write_if_changed(places.work() / "include" / "dlpack" / "dlpack.h",
                   read_file(places.dlpack / "dlpack" / "dlpack.h"));
  StepList steps;
  for (const Job& job : jobs) {
    PackageGraph graph({job, glibc, toolchain, places, sources, steps, {job, places, sources}});
    for (const VariantPlan& plan : job.variants) graph.add(plan);
  }
  return std::move(steps.list);
}

}  // namespace kiln::build
