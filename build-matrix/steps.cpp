// SPDX-License-Identifier: Apache-2.0
#include "steps.hpp"

#include "base/digest.hpp"
#include "codegen.hpp"
#include "documents/json.hpp"
#include "files.hpp"
#include "includes.hpp"
#include "inspect.hpp"
#include "kiln/error.hpp"
#include "nvrtc.hpp"
#include "pack.hpp"
#include "recipe.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

// A depfile is read as make reads it.
std::string make_escaped(const std::string& path) {
  std::string out;
  for (const char c : path) {
    if (c == ' ' || c == '#') out += '\\';
    if (c == '$') out += '$';
    out += c;
  }
  return out;
}

Recipe load_recipe(const fs::path& path) {
  return parse_recipe(read_file(path), path.string());
}

}  // namespace

void run_step(const NvrtcStep& step) {
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
  std::string dependencies = make_escaped(step.out.string()) + ":";
  for (const fs::path& file : include_closure({step.source}, step.includes)) {
    dependencies += " \\\n  " + make_escaped(file.string());
  }
  write_file(step.depfile, dependencies + "\n");
  std::string log = "== " + step.name + " for " + step.target + ", " +
                    std::to_string(compiled.image.size()) + " bytes\n" + stable_log(compiled.log);
  if (target->kind == DeviceCode::Kind::kPtx) log += "PTX: the driver chooses the registers\n";
  write_if_changed(step.log, log);
  write_if_changed(step.out, compiled.image);
}

void run_step(const ImagesStep& step) {
  std::vector<DeviceImage> images;
  for (const fs::path& image : step.images) {
    images.push_back({.stem = image.stem().string(),
                      .path = image.lexically_relative(step.out.parent_path()).string(),
                      .sha256 = Digest::of(read_file(image)).hex(),
                      .ptx = image.extension() == ".ptx"});
  }
  write_if_changed(step.out, generate_images(images));
}

void run_step(const InspectStep& step) {
  const Recipe recipe = load_recipe(step.recipe);
  const Facts facts =
      inspect(step.library, promise_of(recipe), step.cuobjdump, step.out.parent_path());
  const std::string library = read_file(step.library);
  Json report = to_json(facts);
  report["library"] = {{"digest", Digest::of(library).str()}, {"size", library.size()}};
  write_file(step.out, report.dump(2) + "\n");
}

void run_step(const PackStep& step) {
  const std::string report = read_file(step.facts);
  PackInput input{
      .recipe = load_recipe(step.recipe),
      .facts = parse_facts(parse_json(report, step.facts.string()), step.facts.string()),
      .library = read_file(step.library),
      .package_json = read_file(step.package),
      .license = read_file(step.license)};
  const Packed packed = pack(input);
  std::string ptxas;
  for (const fs::path& log : step.logs) ptxas += read_file(log);
  write_file(step.into / "ptxas.txt", ptxas);
  write_file(step.into / "inspect.json", report);
  write_file(step.into / input.recipe.library(), input.library);
  fs::permissions(step.into / input.recipe.library(), fs::perms(0755));
  write_packed(packed, step.into);
}

}  // namespace kiln::build
