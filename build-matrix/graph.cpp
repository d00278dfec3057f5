// SPDX-License-Identifier: Apache-2.0
#include "graph.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string_view>

#include "base/digest.hpp"
#include "base/join.hpp"
#include "codegen.hpp"
#include "documents/json.hpp"
#include "files.hpp"
#include "includes.hpp"
#include "kiln/error.hpp"
#include "ninja.hpp"
#include "nvrtc.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

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

std::string joined(const std::vector<std::string>& words) {
  return join(words, " ", shell_quoted);
}

std::string object_name(std::string source) {
  if (source.starts_with("../")) source.erase(0, 3);
  std::ranges::replace(source, '/', '_');
  return source + ".o";
}

// What is left of a path below a folder; empty if it is not in there.
fs::path below(const fs::path& folder, const fs::path& path) {
  fs::path rest = path.lexically_relative(fs::absolute(folder).lexically_normal());
  return !rest.empty() && *rest.begin() == ".." ? fs::path() : rest;
}

// Whose an image is, and where its source's headers are looked for.
struct ImageOwner {
  std::string name;  // of the package
  fs::path folder;
  std::vector<fs::path> headers;
};

// Writes one package's part of the graph. Paths of outputs are relative to the work folder, in
// which ninja runs.
class PackageGraph {
 public:
  PackageGraph(const Job& job, Version glibc, const Toolchain& toolchain, const Places& places,
               NinjaFile& ninja)
      : job_(job), glibc_(glibc), toolchain_(toolchain), places_(places), ninja_(ninja) {
    exports_ = generate_exports(job.package);
    const fs::path gen = places.work() / job.package.name / "gen";
    write_if_changed(gen / "package.gen.hpp", generate_header(job.package));
    write_if_changed(gen / "exports.map", exports_);
    folders_ = {job.folder / "csrc", gen, places.sdk / "include", places.abi,
                places.work() / "include"};
    prefixes_ = {{places.sdk, "sdk"}, {places.abi, "abi"}, {places.work(), "work"}};
    packages_ = {{job.folder, job.package.name}};
    for (const std::string& name : job.package.shared_packages()) share(name);
    for (const auto& [folder, name] : packages_) prefixes_.emplace_back(folder, name);
    collect_dev();
  }

  Recipe add(const VariantPlan& plan) {
    const Ingredients ingredients = collect(plan);
    Recipe recipe = make_recipe(job_.package, plan, glibc_, ingredients);
    const std::string folder = job_.package.name + "/" + plan.id;
    write_if_changed(places_.work() / folder / "recipe.json", dump_json(to_json(recipe)) + "\n");
    write_if_changed(places_.work() / folder / "package.gen.cpp",
                     generate_glue(job_.package, {.backend = backend_of(plan),
                                                  .build_id = recipe.build_id,
                                                  .libraries = recipe.libraries}));

    std::vector<std::string> objects = host_objects(plan);
    objects.push_back(compile(folder + "/package.gen.cpp", folder + "/package.gen.o", plan.cpu));
    std::vector<std::string> logs;
    if (plan.is_cuda()) {
      add_images(plan, folder, logs);
      objects.push_back(compile(folder + "/images.gen.cpp", folder + "/images.gen.o", plan.cpu));
    }
    const std::string library = folder + "/" + recipe.library();
    link(plan, recipe, objects, library);
    pack(recipe, folder, library, logs);
    return recipe;
  }

 private:
  void share(const std::string& name) {
    const fs::path folder = job_.folder.parent_path() / name;
    if (!fs::exists(folder / "package.json")) {
      throw Error(ErrorCode::kBuild, "build " + job_.package.name + ": it shares sources of " +
                                         name + ", and there is no " + folder.string() +
                                         "; put that package beside it");
    }
    folders_.push_back(folder / "csrc");
    packages_.emplace_back(folder, name);
  }

  // What a user of the package compiles against: its own headers, those that they include of the
  // packages whose sources it shares, and its card. None of it is an ingredient of a library.
  void collect_dev() {
    std::vector<fs::path> folders;
    for (const auto& [folder, name] : packages_) folders.push_back(folder / "include");
    std::vector<fs::path> own;
    if (fs::is_directory(folders.front())) {
      for (const fs::directory_entry& each : fs::recursive_directory_iterator(folders.front())) {
        if (each.is_regular_file()) own.push_back(each.path());
      }
    }
    for (const fs::path& header : include_closure(own, folders)) {
      for (const fs::path& folder : folders) {
        const fs::path inside = below(folder, header);
        if (inside.empty()) continue;
        dev_.emplace("include/" + inside.generic_string(), header);
        break;
      }
    }
    if (fs::is_regular_file(job_.folder / "CARD.md")) {
      dev_.emplace("CARD.md", job_.folder / "CARD.md");
    }
  }

  fs::path path_of(const std::string& source) const {
    return (job_.folder / source).lexically_normal();
  }

  const std::string& hash(const fs::path& path) {
    std::string& known = hashes_[path];
    if (known.empty()) known = Digest::of(read_file(path)).hex();
    return known;
  }

  std::vector<fs::path> host_sources(const VariantPlan& plan) const {
    std::vector<fs::path> sources;
    for (const std::string& source : plan.host) sources.push_back(path_of(source));
    for (const std::string& source : sdk_sources(backend_of(plan))) {
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

  // Without the section of the other backend: its sources and levels are nothing of this variant's.
  std::string own_part_of_package_json(const VariantPlan& plan) const {
    const fs::path path = job_.folder / "package.json";
    Json document = parse_json(read_file(path), path.string());
    document.erase(plan.is_cuda() ? "cpu" : "cuda");
    return Digest::of(document.dump()).hex();
  }

  Ingredients collect(const VariantPlan& plan) {
    Ingredients ingredients;
    std::vector<fs::path> sources = host_sources(plan);
    for (const ImagePlan& image : plan.images) sources.push_back(path_of(image.source));
    for (const fs::path& path : include_closure(sources, folders_)) {
      ingredients.sources[portable_name(path)] = hash(path);
    }
    ingredients.sources["package/package.json"] = own_part_of_package_json(plan);
    // What the generators make of package.json, so that a change in them is a change of the build.
    const GlueFacts facts{.backend = backend_of(plan), .build_id = "", .libraries = plan.libraries};
    ingredients.sources["work/gen/exports.map"] = Digest::of(exports_).hex();
    ingredients.sources["work/package.gen.cpp"] =
        Digest::of(generate_glue(job_.package, facts)).hex();
    ingredients.host_flags = compile_flags(plan.cpu, glibc_);
    std::ranges::copy(link_flags(plan.cpu, glibc_), std::back_inserter(ingredients.host_flags));
    ingredients.zig = toolchain_.zig_version;
    if (plan.is_cuda()) {
      ingredients.device_options = device_options(*plan.target);
      ingredients.nvrtc = toolchain_.device.at(*plan.toolkit).version;
    }
    return ingredients;
  }

  std::string compile(const std::string& source, const std::string& object, CpuLevel cpu) {
    if (ninja_.has(object)) return object;
    std::vector<std::string> flags = compile_flags(cpu, glibc_);
    for (const fs::path& folder : folders_) flags.push_back("-I" + folder.string());
    for (const auto& [prefix, name] : prefixes_) {
      flags.push_back("-ffile-prefix-map=" + prefix.string() + "=" + name);
    }
    ninja_.build(
        {.rule = "compile",
         .outputs = {object},
         .inputs = {source},
         .variables = {{"flags", joined(flags)}, {"what", job_.package.name + " " + object}},
         .depfile = object + ".d"});
    return object;
  }

  std::vector<std::string> host_objects(const VariantPlan& plan) {
    const std::string folder = job_.package.name + "/host/" + (plan.is_cuda() ? "cuda-" : "cpu-") +
                               to_string(plan.cpu) + "/";
    std::vector<std::string> objects;
    for (const std::string& source : plan.host) {
      const std::string path = path_of(source).string();
      objects.push_back(compile(path, folder + object_name(source), plan.cpu));
    }
    for (const std::string& source : sdk_sources(backend_of(plan))) {
      const std::string path = (places_.sdk / "src" / source).string();
      objects.push_back(compile(path, folder + "sdk_" + object_name(source), plan.cpu));
    }
    return objects;
  }

  // A device source that reads files of one package alone belongs to it: its image is the same in
  // every package that has it, and is compiled once. Else it may be another one in each of them.
  const ImageOwner& owner_of(const fs::path& source) {
    const auto known = owners_.find(source);
    if (known != owners_.end()) return known->second;
    ImageOwner owner{.name = job_.package.name, .folder = job_.folder};
    for (const auto& package : packages_) owner.headers.push_back(package.first / "csrc");
    const std::set<fs::path> read = include_closure({source}, owner.headers);
    for (const auto& package : packages_) {
      const fs::path& folder = package.first;
      const auto has_it = [&](const fs::path& file) { return !below(folder, file).empty(); };
      if (std::ranges::all_of(read, has_it)) owner = {package.second, folder, {folder / "csrc"}};
    }
    return owners_.emplace(source, owner).first->second;
  }

  // An image depends on toolkit, source and what it is compiled to, not on the host's CPU: x86_64
  // and aarch64 share it.
  void add_images(const VariantPlan& plan, const std::string& folder,
                  std::vector<std::string>& logs) {
    const DeviceCompiler& compiler = toolchain_.device.at(*plan.toolkit);
    std::vector<std::string> images;
    for (const ImagePlan& planned : plan.images) {
      const fs::path source = path_of(planned.source);
      const ImageOwner& owner = owner_of(source);
      const std::string code = to_string(planned.code);
      const std::string built_for = "cu" + to_string(*plan.toolkit) + "-" + code;
      const std::string stem = owner.name + "/device/" + built_for + "/" + planned.stem;
      const bool ptx = planned.code.kind == DeviceCode::Kind::kPtx;
      const std::string image = stem + (ptx ? ".ptx" : ".cubin");
      const std::string log = stem + ".ptxas.txt";
      images.push_back(image);
      logs.push_back(log);
      if (ninja_.has(image)) continue;
      std::vector<std::string> words = {"--nvrtc",   compiler.library.string(),
                                        "--name",    source.lexically_relative(owner.folder),
                                        "--target",  code,
                                        "--log",     log,
                                        "--depfile", image + ".d",
                                        "--subject", owner.name + " " + built_for,
                                        "--include", compiler.include.string()};
      for (const fs::path& headers : owner.headers) {
        words.insert(words.end(), {"--include", headers.string()});
      }
      for (const std::string& option : device_options(planned.code)) {
        words.push_back("--option=" + option);
      }
      ninja_.build(
          {.rule = "nvrtc",
           .outputs = {image, log},
           .inputs = {source.string()},
           .variables = {{"image", shell_quoted(image)}, {"words", joined(words)}, {"what", image}},
           .depfile = image + ".d"});
    }
    ninja_.build({.rule = "images",
                  .outputs = {folder + "/images.gen.cpp"},
                  .inputs = images,
                  .implicit = {places_.self.string()}});
  }

  void link(const VariantPlan& plan, const Recipe& recipe, const std::vector<std::string>& objects,
            const std::string& library) {
    const std::string exports = job_.package.name + "/gen/exports.map";
    std::vector<std::string> flags = link_flags(plan.cpu, glibc_);
    flags.push_back("-Wl,-soname," + recipe.library());
    flags.push_back("-Wl,--version-script=" + exports);
    ninja_.build({.rule = "link",
                  .outputs = {library},
                  .inputs = objects,
                  .implicit = {exports},
                  .variables = {{"flags", joined(flags)}, {"what", library}}});
  }

  void pack(const Recipe& recipe, const std::string& folder, const std::string& library,
            const std::vector<std::string>& logs) {
    const std::string recipe_file = folder + "/recipe.json";
    const std::string package_json = (job_.folder / "package.json").string();
    const std::string license = license_of(job_, places_).string();
    const std::string target = (places_.out / job_.package.name / recipe.variant).string();
    std::vector<std::string> words = {"--recipe",   recipe_file, "--library", library,  "--package",
                                      package_json, "--license", license,     "--into", target};
    if (recipe.toolkit) words.insert(words.end(), {"--cuobjdump", toolchain_.cuobjdump.string()});
    for (const std::string& log : logs) words.insert(words.end(), {"--log", log});
    std::vector<std::string> inputs = {library, recipe_file, package_json, license,
                                       places_.self.string()};
    inputs.insert(inputs.end(), logs.begin(), logs.end());
    for (const auto& [path, file] : dev_) {
      words.insert(words.end(), {"--dev", path, file.string()});
      inputs.push_back(file.string());
    }
    std::vector<std::string> outputs;
    for (const char* name : {"descriptor.json", "layer.tar.zst", "config.json", "manifest.json",
                             "inspect.json", "ptxas.txt"}) {
      outputs.push_back(target + "/" + name);
    }
    if (!dev_.empty()) outputs.push_back(target + "/dev.tar.zst");
    outputs.push_back(target + "/" + recipe.library());
    ninja_.build({.rule = "pack",
                  .outputs = outputs,
                  .inputs = inputs,
                  .variables = {{"words", joined(words)}, {"what", folder}}});
  }

  const Job& job_;
  Version glibc_;
  const Toolchain& toolchain_;
  const Places& places_;
  NinjaFile& ninja_;
  std::string exports_;
  std::vector<fs::path> folders_;                           // of headers
  std::vector<std::pair<fs::path, std::string>> packages_;  // this one, then those that it shares
  std::vector<std::pair<fs::path, std::string>> prefixes_;  // what they are called in the library
  std::map<fs::path, std::string> hashes_;
  std::map<fs::path, ImageOwner> owners_;  // of device sources
  std::map<std::string, fs::path> dev_;    // the files of the dev layer, by their paths in it
};

void write_rules(const Toolchain& toolchain, const Places& places, NinjaFile& ninja) {
  const auto program = [](const fs::path& path) {
    std::string text;
    for (const char c : shell_quoted(path.string())) text += c == '$' ? "$$" : std::string(1, c);
    return text;
  };
  const std::string zig = program(toolchain.zig) + " c++";
  const std::string step = program(places.self) + " step";
  ninja.rule("compile", zig + " $flags -MD -MF $out.d -c $in -o $out", "compile $what");
  ninja.rule("link", zig + " $flags $in -lm -ldl -lpthread -o $out", "link $what");
  ninja.rule("nvrtc", step + " nvrtc --source $in --out $image $words", "nvrtc $what", true);
  ninja.rule("images", step + " images --out $out $in", "images $out", true);
  ninja.rule("pack", step + " pack $words", "pack $what");
}

}  // namespace

fs::path license_of(const Job& job, const Places& places) {
  if (fs::exists(job.folder / "LICENSE")) return job.folder / "LICENSE";
  if (job.package.license == "Apache-2.0") return places.license;
  throw Error(ErrorCode::kBuild, "build " + job.package.name + ": its licence is " +
                                     job.package.license + ", and there is no " +
                                     (job.folder / "LICENSE").string() + " with the text");
}

std::vector<Recipe> write_graph(const std::vector<Job>& jobs, Version glibc,
                                const Toolchain& toolchain, const Places& places) {
  // dlpack.h alone: the folder it is installed in holds the headers of this machine's libc too.
  write_if_changed(places.work() / "include" / "dlpack" / "dlpack.h",
                   read_file(places.dlpack / "dlpack" / "dlpack.h"));
  NinjaFile ninja;
  write_rules(toolchain, places, ninja);
  std::vector<Recipe> recipes;
  for (const Job& job : jobs) {
    PackageGraph graph(job, glibc, toolchain, places, ninja);
    for (const VariantPlan& plan : job.variants) recipes.push_back(graph.add(plan));
  }
  write_if_changed(places.work() / "build.ninja", ninja.text());
  return recipes;
}

}  // namespace kiln::build
