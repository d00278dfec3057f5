// SPDX-License-Identifier: Apache-2.0
#include "attest/describe.hpp"

#include <vector>

#include "base/join.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"

namespace kiln::attest {
namespace {

std::string describe_provenance(const JsonView& predicate) {
  const JsonView build = predicate.at("buildDefinition");
  std::string text = "built by " + predicate.at("runDetails").at("builder").at("id").string();
  std::string from = " of ";
  for (const JsonView& each : build.at("resolvedDependencies").items()) {
    text += from + each.at("uri").string();
    from = text.find(" with ") == std::string::npos ? " with " : ", ";
  }
  return text;
}

std::string describe_tests(const JsonView& predicate) {
  std::vector<std::string> places;
  for (const JsonView& record : predicate.at("records").items()) {
    std::vector<std::string> variants;
    for (const JsonView& result : record.at("results").items()) {
      const bool passed = result.at("failed").unsigned_integer() == 0;
      variants.push_back(result.at("variant").string() + (passed ? "" : " FAILED"));
    }
    places.push_back(record.at("hardware").string() + " (" + record.at("date").string() +
                     "): " + join(variants));
  }
  return join(places, "; ");
}

}  // namespace

std::string word_of(const Statement& statement) {
  const Kind* const kind = kind_of_type(statement.predicate_type);
  return kind == nullptr ? statement.predicate_type : std::string(kind->word);
}

std::string describe(const Statement& statement) {
  const std::string word = word_of(statement);
  try {
    const Json json = parse_json(statement.predicate, "predicate");
    const JsonView predicate(json, "predicate");
    if (word == "provenance") return describe_provenance(predicate);
    if (word == "tests") return describe_tests(predicate);
    if (word != "sbom") return "";
    return predicate.at("spdxVersion").string() + ", " +
           std::to_string(predicate.at("packages").items().size()) + " packages, " +
           std::to_string(predicate.at("files").items().size()) + " files";
  } catch (const Error& error) {
    return std::string("not as Kiln writes it: ") + error.what();
  }
}

}  // namespace kiln::attest
