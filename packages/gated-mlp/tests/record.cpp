// SPDX-License-Identifier: Apache-2.0
#include "record.hpp"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/digest.hpp"
#include "machine.hpp"

namespace gated_mlp_test {
namespace {

using Json = nlohmann::ordered_json;

std::string read_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::string first_line(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  return text.substr(0, text.find('\n'));
}

std::string gpu_name(const kiln::Resolution& resolution) {
  for (const kiln::Gpu& gpu : resolution.host.gpus) {
    if (gpu.ordinal == resolution.device.ordinal) return gpu.name;
  }
  return "unknown GPU";
}

}  // namespace

void write_record(const std::filesystem::path& file, const std::vector<Variant>& variants,
                  const std::string& commit) {
  const kiln::Resolution& resolution = variants.front().kernel.resolution();
  const bool gpu = variants.front().memory.is_gpu();
  Json record;
  record["schema"] = "kiln.record/1";
  record["hardware"] = gpu ? gpu_name(resolution) : cpu_name();
  if (gpu) {
    record["driver"] = first_line("/sys/module/nvidia/version");
    record["cuda"] = kiln::to_string(resolution.host.driver.value());
  }
  record["date"] = today();
  record["commit"] = commit;
  record["results"] = Json::array();
  for (const Variant& variant : variants) {
    Json result;
    result["variant"] = std::string(variant.kernel.variant());
    result["library"] = kiln::Digest::of(read_file(variant.kernel.library())).str();
    result["cases"] = variant.tally.cases;
    result["failed"] = variant.tally.failed;
    result["worst"] = Json::object();
    for (const auto& [dtype, error] : variant.tally.worst) result["worst"][dtype] = error;
    record["results"].push_back(result);
  }
  std::ofstream stream(file);
  stream << record.dump(2) << '\n';
  stream.flush();
  if (!stream) throw std::runtime_error("cannot write the record " + file.string());
}

}  // namespace gated_mlp_test
