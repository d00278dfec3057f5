// SPDX-License-Identifier: Apache-2.0
#include "documents/requirements.hpp"

#include <limits>

#include "base/number.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

constexpr std::string_view kSchema = "kiln.requirements/";
constexpr std::uint64_t kVersion = 1;

void check_schema(const JsonView& document, std::string_view subject) {
  const std::string schema = document.at("schema").string();
  const std::string_view number =
      schema.starts_with(kSchema) ? std::string_view(schema).substr(kSchema.size()) : "";
  const std::uint64_t version = parse_decimal(number, std::numeric_limits<int>::max()).value_or(0);
  if (version == kVersion) return;
  if (version > kVersion) {
    throw Error(ErrorCode::kUpgrade, std::string(subject) + ": schema is " + schema +
                                         ", this kiln " KILN_VERSION " reads " +
                                         std::string(kSchema) + std::to_string(kVersion) +
                                         ". Upgrade kiln");
  }
  document.at("schema").fail("found " + quote(schema) + ", expected " + std::string(kSchema) +
                             std::to_string(kVersion));
}

Requirements parse(const Json& json, std::string_view subject) {
  const JsonView document(json, std::string(subject));
  check_schema(document, subject);
  Requirements requirements{.registry = document.string_or("registry", "")};
  const JsonView kernels = document.at("kernels");
  if (!kernels.json().is_object()) kernels.fail("is no object");
  for (const auto& item : kernels.json().items()) {
    const JsonView kernel = kernels.at(item.key());
    if (!is_package_name(item.key())) kernel.fail("is no package name");
    const std::uint64_t version = kernel.at("version").unsigned_integer();
    if (version < 1 || version > std::numeric_limits<int>::max()) {
      kernel.at("version").fail("found " + std::to_string(version) +
                                ", expected a published version, from 1");
    }
    requirements.kernels.emplace(item.key(), static_cast<int>(version));
  }
  return requirements;
}

}  // namespace

Requirements parse_requirements(std::string_view text, std::string_view subject) {
  try {
    return parse(parse_json(text, subject), subject);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIntegrity) throw;
    throw Error(ErrorCode::kUsage, error.what());
  }
}

}  // namespace kiln
