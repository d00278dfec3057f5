// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/steps/ingredients.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/digest.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/codegen/launch_code.hpp"
#include "build-matrix/compilers/nvrtc.hpp"
#include "build-matrix/compilers/zig.hpp"
#include "documents/json.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

Backend backend_of(const VariantPlan& plan) {
  return plan.is_cuda() ? Backend::kCuda : Backend::kCpu;
}

std::vector<fs::path> host_sources(const PackageBuild& build, const VariantPlan& plan) {
  std::vector<fs::path> sources;
  for (const std::string& source : plan.host) sources.push_back(build.files.path_of(source));
  if (plan.binary) sources.push_back(build.folder_of(plan) / kCalls);
  for (const std::string& source : sdk_sources_of(plan)) {
    sources.push_back(build.places.sdk / "src" / source);
  }
  return sources;
}

// Without the section of the other backend and the Python modules: they are nothing of this
// variant's library.
std::string own_part_of_package_json(const PackageBuild& build, const VariantPlan& plan) {
  const fs::path path = build.job.folder / "package.json";
  Json document = parse_json(read_file(path), path.string());
  document.erase(plan.is_cuda() ? "cpu" : "cuda");
  document.erase("python");
  document.erase("check");
  document.erase("binaries");  // what counts of them is in calls.gen.cpp
  return Digest::of(document.dump()).hex();
}

void collect_triton(const PackageBuild& build, const VariantPlan& plan, Ingredients& ingredients) {
  const TritonTool tool = triton_tool(build, plan);
  for (const ImagePlan& image : plan.images) {
    const fs::path source = build.files.path_of(image.source);
    for (const fs::path& file : triton_sources(source)) {
      ingredients.sources[build.files.portable_name(file)] = build.sources.digest(file).hex();
    }
    ingredients.device_options.push_back(triton_job(image, tool, image.source, image.source));
  }
  ingredients.sources["build-matrix/triton_step.py"] = build.sources.digest(tool.script).hex();
  ingredients.sources["work/launches.gen.cpp"] =
      Digest::of(launches_outline(build.job.package, *plan.target)).hex();
  ingredients.device_compiler = {tool.compiler.folder.filename().string(), tool.compiler.version};
}

}  // namespace

GlueFacts glue_facts(const VariantPlan& plan, const std::string& build_id) {
  return {.backend = backend_of(plan),
          .build_id = build_id,
          .libraries = plan.libraries,
          .carries = plan.carries_libraries()};
}

std::vector<std::string> sdk_sources_of(const VariantPlan& plan) {
  std::vector<std::string> sources = sdk_sources(backend_of(plan));
  if (plan.carries_libraries()) sources.emplace_back("carried.cpp");
  if (plan.is_triton()) sources.emplace_back("describe.cpp");
  return sources;
}

TritonTool triton_tool(const PackageBuild& build, const VariantPlan& plan) {
  return {*build.toolchain.triton, build.places.triton_step, *plan.toolkit};
}

Ingredients collect_ingredients(const PackageBuild& build, const VariantPlan& plan) {
  Ingredients ingredients;
  std::vector<fs::path> sources = host_sources(build, plan);
  for (const ImagePlan& image : plan.images) {
    if (!image.is_triton()) sources.push_back(build.files.path_of(image.source));
  }
  if (plan.is_triton()) sources.push_back(build.places.sdk / "include/kiln/sdk/launch.hpp");
  for (const fs::path& path : build.sources.closure(sources, build.files.headers())) {
    ingredients.sources[build.files.portable_name(path)] = build.sources.digest(path).hex();
  }
  ingredients.sources["package/package.json"] = own_part_of_package_json(build, plan);
  // What the generators make of package.json, so that a change in them is a change of the build.
  ingredients.sources["work/gen/exports.map"] = Digest::of(build.files.exports()).hex();
  ingredients.sources["work/package.gen.cpp"] =
      Digest::of(generate_glue(build.job.package, glue_facts(plan, ""))).hex();
  ingredients.host_flags = compile_flags(plan.cpu, build.glibc);
  std::ranges::copy(link_flags(plan.cpu, build.glibc), std::back_inserter(ingredients.host_flags));
  ingredients.zig = build.toolchain.zig_version;
  if (plan.is_triton()) {
    collect_triton(build, plan, ingredients);
  } else if (plan.target) {
    ingredients.device_options = device_options(*plan.target);
    ingredients.device_compiler = {"nvrtc", build.toolchain.device.at(*plan.toolkit).version};
    for (const std::string& name : plan.headers) {
      ingredients.headers[name] = build.toolchain.headers.at(name).version;
      ingredients.sources["toolchain/" + name] = build.toolchain.headers.at(name).digest;
    }
  }
  return ingredients;
}

}  // namespace kiln::build
