// SPDX-License-Identifier: Apache-2.0
#include "documents/requirements.hpp"

#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

constexpr std::string_view kRequirementsSchema = "kiln.requirements/1";

Requirements read_requirements(const Json& json, std::string_view subject) {
  const JsonView document(json, std::string(subject));
  check_schema(document, kRequirementsSchema, "");
  document.expect_members({"schema", "registry", "note", "kernels"});
  Requirements requirements{.registry = document.string_or("registry", "")};
  for (const auto& [name, kernel] : document.at("kernels").members()) {
    if (!is_package_name(name)) kernel.fail("is not a package name");
    kernel.expect_members({"version", "note"});
    requirements.kernels.emplace(name, kernel.at("version").version_number());
  }
  return requirements;
}

}  // namespace

Requirements parse_requirements(std::string_view text, std::string_view subject) {
  try {
    return read_requirements(parse_json(text, subject), subject);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIntegrity) throw;
    throw Error(ErrorCode::kUsage, error.what());
  }
}

std::string edit_requirements(std::string_view text, std::string_view subject,
                              const std::map<std::string, int>& versions) {
  parse_requirements(text, subject);
  nlohmann::ordered_json document = nlohmann::ordered_json::parse(text);
  nlohmann::ordered_json& kernels = document["kernels"];
  for (const auto& [name, version] : versions) {
    if (version == 0) {
      kernels.erase(name);
    } else {
      kernels[name]["version"] = version;
    }
  }
  constexpr int kIndent = 2;
  return document.dump(kIndent) + "\n";
}

}  // namespace kiln
