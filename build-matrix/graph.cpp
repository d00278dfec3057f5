// SPDX-License-Identifier: Apache-2.0
#include "graph.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string_view>

#include "base/digest.hpp"
#include "base/join.hpp"
#include "calls.hpp"
#include "codegen.hpp"
#include "device_code.hpp"
#include "documents/json.hpp"
#include "existing.hpp"
#include "files.hpp"
#include "kiln/error.hpp"
#include "launch_code.hpp"
#include "nvrtc.hpp"
#include "ops_header.hpp"
#include "ops_stub.hpp"
#include "pack.hpp"
#include "triton_graph.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLaunches = "launches.gen.cpp";
constexpr const char* kCalls = "calls.gen.cpp";

bool carries_libraries(const VariantPlan& plan) {
  return plan.binary && plan.binary->abi == Binary::Abi::kTvmFfi;
}

Backend backend_of(const VariantPlan& plan) {
  return plan.is_cuda() ? Backend::kCuda : Backend::kCpu;
}

// zig's words for a level, by its number: for aarch64 the baseline is armv8-a.
constexpr std::array<std::string_view, 6> kX86_64Machines = {
    "x86_64",
    "x86_64_v2",
    "x86_64_v3",
    "x86_64_v4",
    "x86_64_v4+avx512bf16",
    "x86_64_v4+avx512bf16+amx_tile+amx_bf16"};

std::vector<std::string> target_flags(CpuLevel cpu, Version glibc) {
  std::string machine = "baseline";
  if (cpu.arch == Arch::kX86_64) {
    machine = kX86_64Machines.at(static_cast<std::size_t>(cpu.level - 1));
  }
  return {"-target", std::string(to_string(cpu.arch)) + "-linux-gnu." + to_string(glibc),
          "-mcpu=" + machine};
}

// Without exceptions, RTTI and a C++ library a package needs nothing but glibc. zig turns on traps
// for undefined behaviour unless told not to. A switch over dtypes names those of the schema alone:
// the checker lets no others through.
std::vector<std::string> compile_flags(CpuLevel cpu, Version glibc) {
  std::vector<std::string> flags = target_flags(cpu, glibc);
  flags.insert(flags.end(),
               {"-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
                "-fno-threadsafe-statics", "-fno-sanitize=undefined", "-g0", "-Wall", "-Wextra",
                "-Wno-switch", "-Wno-missing-field-initializers", "-Wno-c23-extensions"});
  return flags;
}

std::vector<std::string> link_flags(CpuLevel cpu, Version glibc) {
  std::vector<std::string> flags = target_flags(cpu, glibc);
  // nodelete: threads that a package keeps, and what it gave to the driver, outlive a dlclose.
  flags.insert(flags.end(), {"-shared", "-nostdlib++", "-s", "-Wl,-z,defs", "-Wl,-z,noexecstack",
                             "-Wl,-z,nodelete", "-Wl,--as-needed"});
  return flags;
}

std::string object_name(std::string source) {
  if (source.starts_with("../")) source.erase(0, 3);
  std::ranges::replace(source, '/', '_');
  return source + ".o";
}

void append(std::vector<std::string>& words, std::initializer_list<std::string> more) {
  words.insert(words.end(), more);
}

/// A file that a step makes, as its command names it.
std::string made(const std::string& name) {
  return std::string(kOut) + "/" + name;
}

// Where the headers of a package, or of a folder beside it, are looked for.
std::vector<fs::path> headers_of(const fs::path& folder) {
  return {folder / "csrc", folder};
}

// Whose an image is, and where its source's headers are looked for.
struct ImageOwner {
  std::string name;  // of the package, or of the folder beside it
  fs::path folder;
  std::vector<fs::path> headers;
};

// The steps of all packages so far, and what they make.
struct Steps {
  std::vector<Step> list;
  std::set<fs::path> outputs;

  void add(Step step) {
    for (const std::string& name : step.outputs) outputs.insert(step.folder / name);
    list.push_back(std::move(step));
  }
};

// Writes one package's part of the graph.
class PackageGraph {
 public:
  PackageGraph(const Job& job, Version glibc, const Toolchain& toolchain, const Places& places,
               Sources& sources, Steps& steps)
      : job_(job),
        glibc_(glibc),
        toolchain_(toolchain),
        places_(places),
        sources_(sources),
        steps_(steps) {
    exports_ = generate_exports(job.package);
    const fs::path gen = places.work() / job.package.name / "gen";
    write_if_changed(gen / "package.gen.hpp", generate_header(job.package));
    ops_header_ = places.work() / job.package.name / ops_header_path(job.package);
    write_if_changed(ops_header_, generate_ops_header(job.package));
    ops_stub_ = places.work() / job.package.name / ops_stub_path(job.package);
    write_if_changed(ops_stub_, generate_ops_stub(job.package));
    write_if_changed(gen / "exports.map", exports_);
    folders_ = headers_of(job.folder);
    folders_.insert(folders_.end(),
                    {gen, places.sdk / "include", places.abi, places.work() / "include"});
    prefixes_ = {{places.sdk, "sdk"}, {places.abi, "abi"}, {places.work(), "work"}};
    packages_ = {{job.folder, job.package.name}};
    for (const std::string& name : job.package.shared_folders()) share(name);
    for (const auto& [folder, name] : packages_) prefixes_.emplace_back(folder, name);
    collect_dev();
  }

  void add(const VariantPlan& plan) {
    const fs::path folder = folder_of(plan);
    if (plan.binary && !take_in(plan, *plan.binary)) return;
    const Ingredients ingredients = collect(plan);
    const Recipe recipe = make_recipe(job_.package, plan, allowed_glibc(plan), ingredients);
    write_if_changed(folder / "recipe.json", dump_json(to_json(recipe)) + "\n");
    write_if_changed(folder / "package.gen.cpp",
                     generate_glue(job_.package, {.backend = backend_of(plan),
                                                  .build_id = recipe.build_id,
                                                  .libraries = recipe.libraries,
                                                  .carries = carries_libraries(plan)}));

    std::vector<fs::path> objects = host_objects(plan);
    objects.push_back(compile(folder / "package.gen.cpp", folder / "package.gen.o", plan.cpu));
    std::vector<fs::path> logs;
    if (plan.is_triton()) {
      add_launches(plan, folder);
      objects.push_back(compile(folder / kLaunches, folder / "launches.gen.o", plan.cpu));
    }
    if (plan.is_cuda() && !plan.binary) {
      add_images(plan, folder, logs);
      objects.push_back(compile(folder / "images.gen.cpp", folder / "images.gen.o", plan.cpu));
    }
    link(plan, recipe, objects, folder);
    pack(recipe, folder, folder / recipe.library(), logs);
  }

 private:
  fs::path folder_of(const VariantPlan& plan) const {
    return places_.work() / job_.package.name / plan.id;
  }

  Version allowed_glibc(const VariantPlan& plan) const {
    return plan.binary ? std::max(glibc_, plan.binary->glibc) : glibc_;
  }

  // What exists. A library with Kiln's ABI is packed as it is, and then nothing is left to do;
  // of another the files are copied beside the source that calls it.
  bool take_in(const VariantPlan& plan, const Binary& binary) {
    std::vector<fs::path> files;
    for (const std::string& file : binary.carries) files.push_back(path_of(file));
    files.push_back(path_of(binary.file));
    const Existing existing = check_existing(job_.package, binary, files, toolchain_.cuobjdump);
    const fs::path folder = folder_of(plan);
    if (binary.abi == Binary::Abi::kKiln) {
      Recipe recipe = make_recipe(job_.package, plan, binary.glibc, {});
      recipe.build_id = existing.build_id;
      recipe.build = dump_json({{"source", sources_.digest(files.back()).str()}});
      write_if_changed(folder / "recipe.json", dump_json(to_json(recipe)) + "\n");
      pack(recipe, folder, files.back(), {});
      return false;
    }
    for (std::size_t i = 0; i < files.size(); ++i) {
      write_if_changed(folder / carried_name(i), read_file(files[i]));
    }
    const bool ptx = binary.abi == Binary::Abi::kCuda && is_ptx(read_file(files.back()));
    write_if_changed(folder / kCalls, generate_calls(job_.package, binary, existing.sonames, ptx));
    return true;
  }

  void share(const std::string& name) {
    const fs::path folder = job_.folder.parent_path() / name;
    if (!fs::is_directory(folder)) {
      throw Error(ErrorCode::kBuild, "build " + job_.package.name + ": it shares sources of " +
                                         name + ", and there is no " + folder.string() +
                                         "; put that folder beside it");
    }
    std::ranges::copy(headers_of(folder), std::back_inserter(folders_));
    packages_.emplace_back(folder, name);
  }

  // What a user of the package writes programs against: its own headers, those that they include
  // of the folders whose sources it shares, its Python modules and its card. None of it is an
  // ingredient of a library.
  void collect_dev() {
    std::vector<fs::path> folders;
    for (const auto& [folder, name] : packages_) folders.push_back(folder / "include");
    std::vector<fs::path> own;
    if (fs::is_directory(folders.front())) {
      for (const fs::directory_entry& each : fs::recursive_directory_iterator(folders.front())) {
        if (each.is_regular_file()) own.push_back(each.path());
      }
    }
    for (const fs::path& header : sources_.closure(own, folders)) {
      for (const fs::path& folder : folders) {
        const fs::path inside = below(folder, header);
        if (inside.empty()) continue;
        dev_.emplace("include/" + inside.generic_string(), header);
        break;
      }
    }
    dev_[ops_header_path(job_.package)] = ops_header_;  // not the folder's, which may be older
    dev_[ops_stub_path(job_.package)] = ops_stub_;
    for (const std::string& module : job_.package.python) {
      dev_.emplace("python/" + fs::path(module).filename().string(), path_of(module));
    }
    if (fs::is_regular_file(job_.folder / "CARD.md")) {
      dev_.emplace("CARD.md", job_.folder / "CARD.md");
    }
  }

  fs::path path_of(const std::string& source) const {
    return (job_.folder / source).lexically_normal();
  }

  static std::vector<std::string> sdk_sources_of(const VariantPlan& plan) {
    std::vector<std::string> sources = sdk_sources(backend_of(plan));
    if (carries_libraries(plan)) sources.emplace_back("carried.cpp");
    return sources;
  }

  std::vector<fs::path> host_sources(const VariantPlan& plan) const {
    std::vector<fs::path> sources;
    for (const std::string& source : plan.host) sources.push_back(path_of(source));
    if (plan.binary) sources.push_back(folder_of(plan) / kCalls);
    for (const std::string& source : sdk_sources_of(plan)) {
      sources.push_back(places_.sdk / "src" / source);
    }
    return sources;
  }

  // Named by the root they lie under, so that the build id is the same in every folder.
  std::string portable_name(const fs::path& path) const {
    const std::pair<fs::path, std::string> roots[] = {{job_.folder, "package"},
                                                      {places_.sdk, "sdk"},
                                                      {places_.abi, "abi"},
                                                      {places_.work() / job_.package.name, "work"},
                                                      {places_.work() / "include", "dlpack"},
                                                      {job_.folder.parent_path(), "packages"}};
    for (const auto& [root, name] : roots) {
      const fs::path inside = below(root, path);
      if (!inside.empty()) return name + "/" + inside.string();
    }
    return "elsewhere/" + path.filename().string();
  }

  // Without the section of the other backend and the Python modules: they are nothing of this
  // variant's library.
  std::string own_part_of_package_json(const VariantPlan& plan) const {
    const fs::path path = job_.folder / "package.json";
    Json document = parse_json(read_file(path), path.string());
    document.erase(plan.is_cuda() ? "cpu" : "cuda");
    document.erase("python");
    document.erase("binaries");  // what counts of them is in calls.gen.cpp
    return Digest::of(document.dump()).hex();
  }

  Ingredients collect(const VariantPlan& plan) {
    Ingredients ingredients;
    std::vector<fs::path> sources = host_sources(plan);
    for (const ImagePlan& image : plan.images) {
      if (!image.is_triton()) sources.push_back(path_of(image.source));
    }
    if (plan.is_triton()) sources.push_back(places_.sdk / "include/kiln/sdk/launch.hpp");
    for (const fs::path& path : sources_.closure(sources, folders_)) {
      ingredients.sources[portable_name(path)] = sources_.digest(path).hex();
    }
    ingredients.sources["package/package.json"] = own_part_of_package_json(plan);
    // What the generators make of package.json, so that a change in them is a change of the build.
    const GlueFacts facts{.backend = backend_of(plan),
                          .build_id = "",
                          .libraries = plan.libraries,
                          .carries = carries_libraries(plan)};
    ingredients.sources["work/gen/exports.map"] = Digest::of(exports_).hex();
    ingredients.sources["work/package.gen.cpp"] =
        Digest::of(generate_glue(job_.package, facts)).hex();
    ingredients.host_flags = compile_flags(plan.cpu, glibc_);
    std::ranges::copy(link_flags(plan.cpu, glibc_), std::back_inserter(ingredients.host_flags));
    ingredients.zig = toolchain_.zig_version;
    if (plan.is_triton()) {
      collect_triton(plan, ingredients);
    } else if (plan.target) {
      ingredients.device_options = device_options(*plan.target);
      ingredients.device_compiler = {"nvrtc", toolchain_.device.at(*plan.toolkit).version};
      for (const std::string& name : plan.headers) {
        ingredients.headers[name] = toolchain_.headers.at(name).version;
        ingredients.sources["toolchain/" + name] = toolchain_.headers.at(name).digest;
      }
    }
    return ingredients;
  }

  TritonTool triton_tool(const VariantPlan& plan) const {
    return {*toolchain_.triton, places_.triton_step, *plan.toolkit};
  }

  void collect_triton(const VariantPlan& plan, Ingredients& ingredients) {
    const TritonTool tool = triton_tool(plan);
    for (const ImagePlan& image : plan.images) {
      const fs::path source = path_of(image.source);
      for (const fs::path& file : triton_sources(source)) {
        ingredients.sources[portable_name(file)] = sources_.digest(file).hex();
      }
      ingredients.device_options.push_back(triton_job(image, tool, image.source, image.source));
    }
    ingredients.sources["build-matrix/triton_step.py"] = sources_.digest(tool.script).hex();
    ingredients.sources["work/launches.gen.cpp"] =
        Digest::of(launches_outline(job_.package, *plan.target)).hex();
    ingredients.device_compiler = {tool.compiler.folder.filename().string(), tool.compiler.version};
  }

  // How messages and progress name what lies in the work folder.
  std::string in_work(const fs::path& path) const {
    return path.lexically_relative(places_.work()).string();
  }

  // zig believes the times of files where it has compiled them before, so it remembers nothing of a
  // step. What it builds of its own sources, the start-up objects of each target, it may keep.
  std::vector<std::string> zig_environment() const {
    const std::string kept = "zig-cache/" + toolchain_.zig_digest.substr(0, 16);
    return {"ZIG_GLOBAL_CACHE_DIR=" + (places_.work() / kept).string(),
            "ZIG_LOCAL_CACHE_DIR=" + made("zig"), "LC_ALL=C"};
  }

  // Our folders are searched before the compiler's for "…" and after them for <…>, so that no file
  // of ours is read where the compiler's own headers name theirs.
  fs::path compile(const fs::path& source, const fs::path& object, CpuLevel cpu) {
    if (steps_.outputs.contains(object)) return object;
    std::vector<std::string> command = {toolchain_.zig.string(), "c++"};
    std::ranges::copy(compile_flags(cpu, glibc_), std::back_inserter(command));
    command.push_back("-Werror=date-time");
    for (const fs::path& folder : folders_) append(command, {"-iquote", folder.string()});
    for (const fs::path& folder : folders_) append(command, {"-idirafter", folder.string()});
    for (const auto& [prefix, name] : prefixes_) {
      command.push_back("-ffile-prefix-map=" + prefix.string() + "=" + name);
    }
    const std::string name = object.filename().string();
    append(command,
           {"-MD", "-MF", made(std::string(kReadList)), "-c", source.string(), "-o", made(name)});
    steps_.add({.kind = "compile",
                .what = in_work(object),
                .command = std::move(command),
                .environment = zig_environment(),
                .tool = toolchain_.zig_digest,
                .tool_folder = toolchain_.zig.parent_path(),
                .inputs = {source},
                .searched = folders_,
                .folder = object.parent_path(),
                .outputs = {name},
                .stamp = object.string() + ".stamp"});
    return object;
  }

  std::vector<fs::path> host_objects(const VariantPlan& plan) {
    const fs::path folder = places_.work() / job_.package.name / "host" /
                            ((plan.is_cuda() ? "cuda-" : "cpu-") + to_string(plan.cpu));
    std::vector<fs::path> objects;
    for (const std::string& source : plan.host) {
      objects.push_back(compile(path_of(source), folder / object_name(source), plan.cpu));
    }
    if (plan.binary) {
      const fs::path calls = folder_of(plan) / kCalls;
      objects.push_back(compile(calls, calls.string() + ".o", plan.cpu));
    }
    for (const std::string& source : sdk_sources_of(plan)) {
      objects.push_back(
          compile(places_.sdk / "src" / source, folder / ("sdk_" + object_name(source)), plan.cpu));
    }
    return objects;
  }

  // A device source that reads files of one folder alone belongs to it: its image is the same in
  // every package that has it, and is compiled once. Else it may be another one in each of them.
  const ImageOwner& owner_of(const fs::path& source) {
    const auto known = owners_.find(source);
    if (known != owners_.end()) return known->second;
    ImageOwner owner{.name = job_.package.name, .folder = job_.folder};
    for (const auto& package : packages_) {
      std::ranges::copy(headers_of(package.first), std::back_inserter(owner.headers));
    }
    const std::set<fs::path> read = sources_.closure({source}, owner.headers);
    for (const auto& package : packages_) {
      const fs::path& folder = package.first;
      const auto has_it = [&](const fs::path& file) { return !below(folder, file).empty(); };
      if (std::ranges::all_of(read, has_it)) owner = {package.second, folder, headers_of(folder)};
    }
    return owners_.emplace(source, owner).first->second;
  }

  // Where an image of a toolkit is made, and what for.
  struct ImagePlace {
    std::string built_for;  // "cu12.9-sm_90"
    fs::path image;
    fs::path beside(const std::string& ending) const {
      return image.parent_path() / (image.stem().string() + ending);
    }
  };

  // Forms of a Triton kernel are what this package's launches ask for: another package shares none.
  ImagePlace place_of(const VariantPlan& plan, const ImagePlan& image) {
    std::string built_for = "cu" + to_string(*plan.toolkit) + "-" + to_string(image.code);
    for (const std::string& name : plan.headers) built_for += "-" + name;
    const std::string& owner =
        image.is_triton() ? job_.package.name : owner_of(path_of(image.source)).name;
    const bool ptx = image.code.kind == DeviceCode::Kind::kPtx;
    return {built_for, places_.work() / owner / "device" / built_for /
                           (image.stem + (ptx ? ".ptx" : ".cubin"))};
  }

  // The host code of a package that has launches in place of it.
  void add_launches(const VariantPlan& plan, const fs::path& folder) {
    const fs::path package_json = job_.folder / "package.json";
    Step step = {
        .kind = "launches",
        .what = in_work(folder / kLaunches),
        .command = {places_.self.string(), "step", "launches", "--package", package_json.string(),
                    "--target", to_string(*plan.target), "--out", made(kLaunches)},
        .environment = places_.environment,
        .tool = places_.self_digest,
        .inputs = {package_json},
        .folder = folder,
        .outputs = {kLaunches},
        .stamp = folder / (std::string(kLaunches) + ".stamp")};
    for (const ImagePlan& image : plan.images) {
      step.inputs.push_back(place_of(plan, image).beside(".json"));
      step.command.push_back(step.inputs.back().string());
    }
    steps_.add(std::move(step));
  }

  void add_triton_image(const VariantPlan& plan, const ImagePlan& image, const ImagePlace& place) {
    const fs::path source = path_of(image.source);
    const fs::path job = place.beside(".forms.json");
    const TritonTool tool = triton_tool(plan);
    write_if_changed(job, triton_job(image, tool, source, image.source));
    Step step = triton_step(image, tool, source, job, place.image.parent_path());
    step.what = in_work(place.image);
    steps_.add(std::move(step));
  }

  // An image depends on toolkit, source and what it is compiled to, not on the host's CPU: x86_64
  // and aarch64 share it.
  void add_images(const VariantPlan& plan, const fs::path& folder, std::vector<fs::path>& logs) {
    std::vector<std::string> command = {places_.self.string(),  "step",     "images",       "--out",
                                        made("images.gen.cpp"), "--beside", folder.string()};
    std::vector<fs::path> images;
    for (const ImagePlan& planned : plan.images) {
      const ImagePlace place = place_of(plan, planned);
      images.push_back(place.image);
      logs.push_back(place.beside(".ptxas.txt"));
      command.push_back(place.image.string());
      if (steps_.outputs.contains(place.image)) continue;
      if (planned.is_triton()) {
        add_triton_image(plan, planned, place);
      } else {
        add_image(planned, plan, owner_of(path_of(planned.source)), place.built_for, place.image);
      }
    }
    steps_.add({.kind = "images",
                .what = in_work(folder / "images.gen.cpp"),
                .command = std::move(command),
                .environment = places_.environment,
                .tool = places_.self_digest,
                .inputs = images,
                .folder = folder,
                .outputs = {"images.gen.cpp"},
                .stamp = folder / "images.gen.cpp.stamp"});
  }

  // The headers of the toolchain are as much of the compiler as its own: their bytes are in its
  // digest, and none of them is followed.
  void add_image(const ImagePlan& planned, const VariantPlan& plan, const ImageOwner& owner,
                 const std::string& built_for, const fs::path& image) {
    const DeviceCompiler& compiler = toolchain_.device.at(*plan.toolkit);
    std::string tool = compiler.digest + " " + nvrtc_step_digest();
    const fs::path source = path_of(planned.source);
    const std::string name = image.filename().string();
    const std::string log = planned.stem + ".ptxas.txt";
    std::vector<std::string> command = {places_.self.string(),
                                        "step",
                                        "nvrtc",
                                        "--nvrtc",
                                        compiler.library.string(),
                                        "--source",
                                        source.string(),
                                        "--name",
                                        source.lexically_relative(owner.folder),
                                        "--target",
                                        to_string(planned.code),
                                        "--subject",
                                        owner.name + " " + built_for,
                                        "--out",
                                        made(name),
                                        "--log",
                                        made(log)};
    std::vector<fs::path> searched = {compiler.include};
    searched.insert(searched.end(), owner.headers.begin(), owner.headers.end());
    for (const fs::path& headers : searched) append(command, {"--include", headers.string()});
    for (const std::string& component : plan.headers) {
      const Headers& headers = toolchain_.headers.at(component);
      for (const fs::path& folder : headers.folders)
        append(command, {"--include", folder.string()});
      tool += " " + headers.digest;
    }
    for (const std::string& option : device_options(planned.code)) {
      command.push_back("--option=" + option);
    }
    steps_.add({.kind = "nvrtc",
                .what = in_work(image),
                .command = std::move(command),
                .environment = places_.environment,
                .tool = std::move(tool),
                .inputs = {source},
                .searched = std::move(searched),
                .folder = image.parent_path(),
                .outputs = {name, log},
                .stamp = image.string() + ".stamp"});
  }

  void link(const VariantPlan& plan, const Recipe& recipe, const std::vector<fs::path>& objects,
            const fs::path& folder) {
    const fs::path exports = places_.work() / job_.package.name / "gen" / "exports.map";
    std::vector<std::string> command = {toolchain_.zig.string(), "c++"};
    std::ranges::copy(link_flags(plan.cpu, glibc_), std::back_inserter(command));
    append(command,
           {"-Wl,-soname," + recipe.library(), "-Wl,--version-script=" + exports.string()});
    for (const fs::path& object : objects) command.push_back(object.string());
    append(command, {"-lm", "-ldl", "-lpthread", "-o", made(recipe.library())});
    std::vector<fs::path> inputs = objects;
    inputs.push_back(exports);
    const fs::path library = folder / recipe.library();
    steps_.add({.kind = "link",
                .what = in_work(library),
                .command = std::move(command),
                .environment = zig_environment(),
                .tool = toolchain_.zig_digest,
                .inputs = std::move(inputs),
                .folder = folder,
                .outputs = {recipe.library()},
                .stamp = library.string() + ".stamp"});
  }

  void pack(const Recipe& recipe, const fs::path& folder, const fs::path& library,
            const std::vector<fs::path>& logs) {
    const fs::path package_json = job_.folder / "package.json";
    const fs::path license = license_of(job_, places_);
    std::vector<std::string> command = {places_.self.string(),
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
    if (recipe.toolkit) append(command, {"--cuobjdump", toolchain_.cuobjdump.string()});
    for (const fs::path& log : logs) append(command, {"--log", log.string()});
    std::vector<fs::path> inputs = {library, folder / "recipe.json", package_json, license};
    inputs.insert(inputs.end(), logs.begin(), logs.end());
    for (const auto& [path, file] : dev_) {
      append(command, {"--dev", path, "--dev", file.string()});
      inputs.push_back(file);
    }
    Step step = {.kind = "pack",
                 .what = job_.package.name + "/" + recipe.variant,
                 .command = std::move(command),
                 .environment = places_.environment,
                 .tool = places_.self_digest + " " + toolchain_.cuobjdump_digest,
                 .inputs = std::move(inputs),
                 .folder = places_.out / job_.package.name / recipe.variant,
                 .outputs = {"layer.tar.zst", "config.json", "manifest.json", "inspect.json",
                             "ptxas.txt", recipe.library()},
                 .stamp = folder / "packed.stamp"};
    (dev_.empty() ? step.absent : step.outputs).push_back(kDevArchive);
    step.outputs.push_back("descriptor.json");  // last: a folder that has it is whole
    steps_.add(std::move(step));
  }

  const Job& job_;
  Version glibc_;
  const Toolchain& toolchain_;
  const Places& places_;
  Sources& sources_;
  Steps& steps_;
  std::string exports_;
  std::vector<fs::path> folders_;                           // of headers
  std::vector<std::pair<fs::path, std::string>> packages_;  // this one, then those that it shares
  std::vector<std::pair<fs::path, std::string>> prefixes_;  // what they are called in the library
  std::map<fs::path, ImageOwner> owners_;                   // of device sources
  fs::path ops_header_;                                     // what package.json makes of it
  fs::path ops_stub_;                                       // the same for Python
  std::map<std::string, fs::path> dev_;  // the files of the dev layer, by their paths in it
};

}  // namespace

fs::path license_of(const Job& job, const Places& places) {
  if (fs::exists(job.folder / "LICENSE")) return job.folder / "LICENSE";
  if (job.package.license == "Apache-2.0") return places.license;
  throw Error(ErrorCode::kBuild, "build " + job.package.name + ": its licence is " +
                                     job.package.license + ", and there is no " +
                                     (job.folder / "LICENSE").string() + " with the text");
}

std::vector<Step> write_graph(const std::vector<Job>& jobs, Version glibc,
                              const Toolchain& toolchain, const Places& places, Sources& sources) {
  // dlpack.h alone: the folder it is installed in holds the headers of this machine's libc too.
  write_if_changed(places.work() / "include" / "dlpack" / "dlpack.h",
                   read_file(places.dlpack / "dlpack" / "dlpack.h"));
  Steps steps;
  for (const Job& job : jobs) {
    PackageGraph graph(job, glibc, toolchain, places, sources, steps);
    for (const VariantPlan& plan : job.variants) graph.add(plan);
  }
  return std::move(steps.list);
}

}  // namespace kiln::build
