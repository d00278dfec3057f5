// SPDX-License-Identifier: Apache-2.0
#include "steps.hpp"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "codegen.hpp"
#include "documents/json.hpp"
#include "files.hpp"
#include "inspect.hpp"
#include "kiln/error.hpp"
#include "nvrtc.hpp"
#include "pack.hpp"
#include "recipe.hpp"

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
    throw Error(ErrorCode::kBuild, "nvrtc " + step.subject + ": " + step.source.string() +
                                       " does not compile for " + step.target + " (" +
                                       step.nvrtc.string() + "):\n" + compiled.log);
  }
  std::string log = "== " + step.name + " for " + step.target + ", " +
                    std::to_string(compiled.image.size()) + " bytes\n" + stable_log(compiled.log);
  if (target->kind == DeviceCode::Kind::kPtx) log += "PTX: the driver chooses the registers\n";
  write_file(step.log, log);
  write_file(step.out, compiled.image);
}

void run(const ImagesStep& step) {
  std::vector<DeviceImage> images;
  for (const fs::path& image : step.images) {
    images.push_back({.stem = image.stem().string(),
                      .path = image.lexically_relative(step.beside).string(),
                      .sha256 = Digest::of(read_file(image)).hex(),
                      .ptx = image.extension() == ".ptx"});
  }
  write_file(step.out, generate_images(images));
}

void run(const PackStep& step) {
  const Recipe recipe = parse_recipe(read_file(step.recipe), step.recipe.string());
  const std::string library = read_file(step.library);
  const Facts facts = inspect(library, recipe, step.cuobjdump, step.into);
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

/// A command whose options `declare` binds to a Step, which runs once they are parsed.
template <class Step>
CLI::App& add_step(CLI::App& parent, const char* name, const std::shared_ptr<Step>& step) {
  CLI::App& app = *parent.add_subcommand(name);
  app.callback([step] { run(*step); });
  return app;
}

}  // namespace

void add_steps(CLI::App& app) {
  CLI::App& steps = *app.add_subcommand("step", "One step of a build, which calls it")->group("");
  steps.require_subcommand(1);

  const auto nvrtc = std::make_shared<NvrtcStep>();
  CLI::App& compiling = add_step(steps, "nvrtc", nvrtc);
  compiling.add_option("--nvrtc", nvrtc->nvrtc)->required();
  compiling.add_option("--source", nvrtc->source)->required();
  compiling.add_option("--name", nvrtc->name)->required();
  compiling.add_option("--subject", nvrtc->subject)->required();
  compiling.add_option("--target", nvrtc->target)->required();
  compiling.add_option("--include", nvrtc->includes)->expected(1)->take_all();
  compiling.add_option("--out", nvrtc->out)->required();
  compiling.add_option("--log", nvrtc->log)->required();
  compiling.add_option("--option", nvrtc->options)->expected(1)->take_all();

  const auto images = std::make_shared<ImagesStep>();
  CLI::App& embedding = add_step(steps, "images", images);
  embedding.add_option("--out", images->out)->required();
  embedding.add_option("--beside", images->beside)->required();
  embedding.add_option("images", images->images);

  const auto pack = std::make_shared<PackStep>();
  CLI::App& packing = add_step(steps, "pack", pack);
  packing.add_option("--recipe", pack->recipe)->required();
  packing.add_option("--library", pack->library)->required();
  packing.add_option("--cuobjdump", pack->cuobjdump);
  packing.add_option("--package", pack->package)->required();
  packing.add_option("--license", pack->license)->required();
  packing.add_option("--log", pack->logs)->expected(1)->take_all();
  packing.add_option("--dev", pack->dev)->expected(2)->take_all();
  packing.add_option("--into", pack->into)->required();
}

}  // namespace kiln::build
