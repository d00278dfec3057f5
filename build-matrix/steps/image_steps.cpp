// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/steps/image_steps.hpp"

#include <string>
#include <utility>

#include "build-matrix/base/files.hpp"
#include "build-matrix/compilers/nvrtc.hpp"
#include "build-matrix/steps/ingredients.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

// Where an image of a toolkit is made, and what for.
struct ImagePlace {
  std::string built_for;  // "cu12.9-sm_90"
  fs::path image;
  fs::path beside(const std::string& ending) const {
    return image.parent_path() / (image.stem().string() + ending);
  }
};

// Forms of a Triton kernel are what this package's launches ask for: another package shares none.
ImagePlace place_of(PackageBuild& build, const VariantPlan& plan, const ImagePlan& image) {
  std::string built_for = "cu" + to_string(*plan.toolkit) + "-" + to_string(image.code);
  for (const std::string& name : plan.headers) built_for += "-" + name;
  const bool ptx = image.code.kind == DeviceCode::Kind::kPtx;
  std::string owner_name = build.job.package.name;
  fs::path name = image.stem + ".py";
  if (!image.is_triton()) {
    const fs::path source = build.files.path_of(image.source);
    const Owner& owner = build.files.owner_of_image(source);
    owner_name = owner.name;
    name = owner.name_of(source);
  }
  name.replace_extension(ptx ? ".ptx" : ".cubin");
  return {built_for, build.places.work() / owner_name / "device" / built_for / name};
}

void add_triton_image(PackageBuild& build, const VariantPlan& plan, const ImagePlan& image,
                      const ImagePlace& place) {
  const fs::path source = build.files.path_of(image.source);
  const fs::path job = place.beside(".forms.json");
  const TritonTool tool = triton_tool(build, plan);
  write_if_changed(job, triton_job(image, tool, source, image.source));
  Step step = triton_step(image, tool, source, job, place.image.parent_path());
  step.what = build.in_work(place.image);
  build.steps.add(std::move(step));
}

// The headers of the toolchain are as much of the compiler as its own: their bytes are in its
// digest, and none of them is followed.
void add_image(PackageBuild& build, const ImagePlan& planned, const VariantPlan& plan,
               const Owner& owner, const std::string& built_for, const fs::path& image) {
  const DeviceCompiler& compiler = build.toolchain.device.at(*plan.toolkit);
  std::string tool = compiler.digest + " " + nvrtc_step_digest();
  const fs::path source = build.files.path_of(planned.source);
  const std::string name = image.filename().string();
  const std::string log = image.stem().string() + ".ptxas.txt";
  std::vector<std::string> command = {build.places.self.string(),
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
  const auto include = [&](const fs::path& headers) {
    command.insert(command.end(), {"--include", headers.string()});
  };
  std::vector<fs::path> searched = {compiler.include};
  searched.insert(searched.end(), owner.headers.begin(), owner.headers.end());
  for (const fs::path& headers : searched) include(headers);
  for (const std::string& component : plan.headers) {
    const Headers& headers = build.toolchain.headers.at(component);
    for (const fs::path& folder : headers.folders) include(folder);
    tool += " " + headers.digest;
  }
  for (const std::string& option : device_options(planned.code)) {
    command.push_back("--option=" + option);
  }
  build.steps.add({.kind = "nvrtc",
                   .what = build.in_work(image),
                   .command = std::move(command),
                   .environment = build.places.environment,
                   .tool = std::move(tool),
                   .inputs = {source},
                   .searched = std::move(searched),
                   .folder = image.parent_path(),
                   .outputs = {name, log},
                   .stamp = image.string() + ".stamp"});
}

}  // namespace

void add_launches(PackageBuild& build, const VariantPlan& plan) {
  const fs::path folder = build.folder_of(plan);
  const fs::path package_json = build.job.folder / "package.json";
  Step step = {.kind = "launches",
               .what = build.in_work(folder / kLaunches),
               .command = {build.places.self.string(), "step", "launches", "--package",
                           package_json.string(), "--target", to_string(*plan.target), "--out",
                           made(kLaunches)},
               .environment = build.places.environment,
               .tool = build.places.self_digest,
               .inputs = {package_json},
               .folder = folder,
               .outputs = {kLaunches},
               .stamp = folder / (std::string(kLaunches) + ".stamp")};
  for (const ImagePlan& image : plan.images) {
    const ImagePlace place = place_of(build, plan, image);
    step.inputs.push_back(place.beside(".ptxas.txt"));
    step.inputs.push_back(place.beside(".json"));
    step.command.push_back(step.inputs.back().string());
  }
  build.steps.add(std::move(step));
}

std::vector<fs::path> add_images(PackageBuild& build, const VariantPlan& plan) {
  const fs::path folder = build.folder_of(plan);
  std::vector<fs::path> logs;
  std::vector<std::string> command = {
      build.places.self.string(), "step",     "images",       "--out",
      made("images.gen.cpp"),     "--beside", folder.string()};
  std::vector<fs::path> images;
  for (const ImagePlan& planned : plan.images) {
    const ImagePlace place = place_of(build, plan, planned);
    images.push_back(place.image);
    logs.push_back(place.beside(".ptxas.txt"));
    command.push_back(place.image.string());
    if (planned.is_triton()) {
      add_triton_image(build, plan, planned, place);
    } else {
      add_image(build, planned, plan,
                build.files.owner_of_image(build.files.path_of(planned.source)), place.built_for,
                place.image);
    }
  }
  build.steps.add({.kind = "images",
                   .what = build.in_work(folder / "images.gen.cpp"),
                   .command = std::move(command),
                   .environment = build.places.environment,
                   .tool = build.places.self_digest,
                   .inputs = images,
                   .folder = folder,
                   .outputs = {"images.gen.cpp"},
                   .stamp = folder / "images.gen.cpp.stamp"});
  return logs;
}

}  // namespace kiln::build
