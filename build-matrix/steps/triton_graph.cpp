// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/steps/triton_graph.hpp"

#include <algorithm>
#include <system_error>

#include "documents/json.hpp"

namespace kiln::build {

namespace fs = std::filesystem;

std::vector<fs::path> triton_sources(const fs::path& source) {
  std::vector<fs::path> files;
  std::error_code failed;
  for (const auto& entry : fs::recursive_directory_iterator(source.parent_path(), failed)) {
    if (entry.path().extension() == ".py") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

std::string triton_job(const ImagePlan& image, const TritonTool& tool, const fs::path& source,
                       const std::string& name) {
  Json forms = Json::array();
  for (const TritonForm& form : image.forms) {
    Json options = parse_json(form.options, form.function);
    options["function"] = form.function;
    forms.push_back(std::move(options));
  }
  const Json job = {{"source", source.string()},
                    {"name", name},
                    {"kernel", image.stem},
                    {"target", to_string(image.code)},
                    {"ptx", ptx_version(tool.toolkit)},
                    {"ptxas", ptxas_for(tool.toolkit)},
                    {"forms", std::move(forms)}};
  return dump_json(job);
}

Step triton_step(const ImagePlan& image, const TritonTool& tool, const fs::path& source,
                 const fs::path& job, const fs::path& folder) {
  const std::string out(kOut);
  const bool ptx = image.code.kind == DeviceCode::Kind::kPtx;
  const std::string name = image.stem + (ptx ? ".ptx" : ".cubin");
  const fs::path runner = tool.script.parent_path() / "triton_said.py";
  Step step = {
      .kind = "triton",
      .what = "",
      .command = {(tool.compiler.folder / "python3").string(), "-s", "-S", "-B", runner.string(),
                  tool.compiler.folder.string(), job.string(), out, image.stem},
      // All that the compiler keeps goes with the step's folder, and sets have one order.
      .environment = {"LC_ALL=C", "PYTHONHASHSEED=0", "HOME=" + out, "TRITON_CACHE_DIR=" + out},
      .tool = tool.compiler.digest,
      .tool_folder = tool.compiler.folder,
      .inputs = triton_sources(source),
      .folder = folder,
      .outputs = {image.stem + ".ptxas.txt", image.stem + ".json", name},
      .stamp = folder / (name + ".stamp")};
  step.inputs.push_back(tool.script);
  step.inputs.push_back(runner);
  step.inputs.push_back(job);
  return step;
}

}  // namespace kiln::build
