// SPDX-License-Identifier: Apache-2.0
//
// Steps: what execute calls kiln-build back for: one device source through NVRTC, the host code of
// launches, the images' source, and one variant's library inspected and packed. Each reads files
// and writes files, and throws Error(kBuild) with the step's name and its subject.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/cli/verbs.hpp"
#include "build-matrix/codegen/codegen.hpp"
#include "build-matrix/codegen/launch_code.hpp"
#include "build-matrix/compilers/nvrtc.hpp"
#include "build-matrix/library/existing.hpp"
#include "build-matrix/library/inspect.hpp"
#include "build-matrix/library/pack.hpp"
#include "build-matrix/plan/recipe.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "loader/cli/frame/output.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

struct NvrtcStep {
  fs::path nvrtc;
  fs::path source;
  std::string name;     // of the source, in messages
  std::string subject;  // "geglu-mlp cu12.9-sm_90a-x86_64"
  std::string target;
  std::vector<fs::path> includes;
  std::vector<std::string> options;
  fs::path out;
  fs::path log;
};

struct LaunchesStep {
  fs::path package;
  std::string target;
  std::vector<fs::path> facts;  // of each kernel, NAME.json
  fs::path out;
};

struct ImagesStep {
  std::vector<fs::path> images;
  fs::path out;
  fs::path beside;  // where it will lie
};

struct PackStep {
  fs::path recipe;
  fs::path library;
  fs::path cuobjdump;
  fs::path package;
  fs::path license;
  std::vector<fs::path> logs;
  std::vector<std::string> dev;  // of each file, its path in the layer and where it is
  fs::path into;
};

void run(const NvrtcStep& step) {
  const auto target = parse_device_code(step.target);
  if (!target) throw Error(ErrorCode::kUsage, "step nvrtc: no such target: " + step.target);
  const Nvrtc compiler(step.nvrtc);
  std::vector<std::string> options = step.options;
  for (const fs::path& include : step.includes) options.push_back("-I" + include.string());
  const Compiled compiled = compiler.compile(read_file(step.source), step.name, *target, options);
  if (!compiled.ok) {
    std::string text = "nvrtc " + step.subject + ": " + step.source.string() +
                       " does not compile for " + step.target + " (" + step.nvrtc.string() +
                       "):\n" + compiled.log;
    if (compiled.log.find("cannot open source file") != std::string::npos) {
      text +=
          "If it is a header of CUB, Thrust, libcu++ or CUTLASS, name them under \"headers\" of "
          "package.json's \"cuda\": cccl, cutlass";
    }
    throw Error(ErrorCode::kBuild, text);
  }
  std::string log = "== " + step.name + " for " + step.target + ", " +
                    std::to_string(compiled.image.size()) + " bytes\n" + stable_log(compiled.log);
  if (target->kind == DeviceCode::Kind::kPtx) log += "PTX: the driver chooses the registers\n";
  write_file(step.log, log);
  write_file(step.out, compiled.image);
}

void run(const LaunchesStep& step) {
  const auto target = parse_device_code(step.target);
  if (!target) throw Error(ErrorCode::kUsage, "step launches: no such target: " + step.target);
  const Package package =
      parse_package(read_file(step.package), step.package.parent_path().filename().string(),
                    step.package.string());
  std::map<std::string, TritonFacts> facts;
  for (const fs::path& file : step.facts) {
    const TritonFacts& read = facts[file.stem().string()] =
        parse_triton_facts(read_file(file), file.string());
    const fs::path log = file.parent_path() / (file.stem().string() + ".ptxas.txt");
    cli::print("%s%s", too_large(read, *target).c_str(),
               performance_losses(read_file(log)).c_str());
  }
  write_file(step.out, generate_launches(package, *target, facts));
}

void run(const ImagesStep& step) {
  std::vector<DeviceImage> images;
  for (const fs::path& image : step.images) {
    const std::string name = image.stem().string();
    images.push_back({.stem = name.substr(name.rfind('+') + 1),  // without its source's folder
                      .path = image.lexically_relative(step.beside).string(),
                      .sha256 = Digest::of(read_file(image)).hex(),
                      .ptx = image.extension() == ".ptx"});
  }
  write_file(step.out, generate_images(images));
}

Facts facts_of(const PackStep& step, const Recipe& recipe, const std::string& library) {
  const Package package =
      parse_package(read_file(step.package), recipe.package, step.package.string());
  const auto binary = std::ranges::find_if(
      package.binaries, [&recipe](const Binary& each) { return each.variant() == recipe.variant; });
  if (binary == package.binaries.end()) {
    return inspect(library, recipe, package.ops, step.cuobjdump, step.into);
  }
  return inspect_existing(package, *binary, step.library, recipe, step.cuobjdump, step.into);
}

void run(const PackStep& step) {
  const Recipe recipe = parse_recipe(read_file(step.recipe), step.recipe.string());
  const std::string library = read_file(step.library);
  const Facts facts = facts_of(step, recipe, library);
  Json report = to_json(facts);
  report["library"] = {{"digest", Digest::of(library).str()}, {"size", library.size()}};
  std::vector<ArchiveEntry> dev;
  for (std::size_t i = 0; i + 1 < step.dev.size(); i += 2) {
    dev.push_back({.path = step.dev[i], .bytes = read_file(step.dev[i + 1])});
  }
  const Packed packed = pack(
      {recipe, facts, library, read_file(step.package), read_file(step.license), std::move(dev)});
  std::string ptxas;
  for (const fs::path& log : step.logs) ptxas += read_file(log);
  write_file(step.into / "ptxas.txt", ptxas);
  write_file(step.into / "inspect.json", report.dump(2) + "\n");
  write_file(step.into / recipe.library(), library);
  fs::permissions(step.into / recipe.library(), fs::perms(0755));
  write_file(step.into / "layer.tar.zst", packed.layer);
  if (!packed.dev.empty()) write_file(step.into / kDevArchive, packed.dev);
  write_file(step.into / "config.json", packed.config);
  write_file(step.into / "manifest.json", packed.manifest);
  write_file(step.into / "descriptor.json", packed.descriptor);
}

template <class Step>
void runs(cli::Command& command, const std::shared_ptr<Step>& step) {
  command.has_no_document();
  command.runs([step](const cli::Call&) {
    run(*step);
    return 0;
  });
}

}  // namespace

void nvrtc_step(cli::Command& command) {
  const auto step = std::make_shared<NvrtcStep>();
  command.option("--nvrtc", step->nvrtc, "FILE", "").required();
  command.option("--source", step->source, "FILE", "").required();
  command.option("--name", step->name, "NAME", "").required();
  command.option("--subject", step->subject, "NAME", "").required();
  command.option("--target", step->target, "TARGET", "").required();
  command.option("--include", step->includes, "FOLDER", "");
  command.option("--out", step->out, "FILE", "").required();
  command.option("--log", step->log, "FILE", "").required();
  command.option("--option", step->options, "OPTION", "");
  runs(command, step);
}

void launches_step(cli::Command& command) {
  const auto step = std::make_shared<LaunchesStep>();
  command.option("--package", step->package, "FILE", "").required();
  command.option("--target", step->target, "TARGET", "").required();
  command.option("--out", step->out, "FILE", "").required();
  command.option("facts", step->facts, "FILE", "");
  runs(command, step);
}

void images_step(cli::Command& command) {
  const auto step = std::make_shared<ImagesStep>();
  command.option("--out", step->out, "FILE", "").required();
  command.option("--beside", step->beside, "FOLDER", "").required();
  command.option("images", step->images, "FILE", "");
  runs(command, step);
}

void pack_step(cli::Command& command) {
  const auto step = std::make_shared<PackStep>();
  command.option("--recipe", step->recipe, "FILE", "").required();
  command.option("--library", step->library, "FILE", "").required();
  command.option("--cuobjdump", step->cuobjdump, "FILE", "");
  command.option("--package", step->package, "FILE", "").required();
  command.option("--license", step->license, "FILE", "").required();
  command.option("--log", step->logs, "FILE", "");
  command.option("--dev", step->dev, "PATH FILE", "");  // given in pairs
  command.option("--into", step->into, "FOLDER", "").required();
  runs(command, step);
}

}  // namespace kiln::build
