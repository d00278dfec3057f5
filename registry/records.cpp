// SPDX-License-Identifier: Apache-2.0
#include "records.hpp"

#include <set>

#include "durable.hpp"
#include "json.hpp"
#include "kiln/error.hpp"
#include "manifest.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "kiln.record/1";

std::vector<TestResult> read_record(const fs::path& file) {
  const Json document = parse_json(read_document(file, kMaxDocumentBytes), file.string());
  const JsonView record(document, file.string());
  const std::string schema = record.at("schema").string();
  if (schema != kSchema) {
    record.fail("schema is '" + schema + "', expected '" + std::string(kSchema) + "'");
  }
  const std::string place = record.at("gpu").string() + ", driver " + record.at("driver").string() +
                            ", " + record.at("date").string();
  std::vector<TestResult> results;
  for (const JsonView& item : record.at("results").items()) {
    results.push_back({file, place, item.at("variant").string(),
                       Digest::parse(item.at("library").string()),
                       item.at("cases").unsigned_integer(), item.at("failed").unsigned_integer()});
  }
  return results;
}

}  // namespace

std::vector<TestResult> read_records(const std::vector<fs::path>& files) {
  std::vector<TestResult> all;
  for (const fs::path& file : files) {
    const std::vector<TestResult> results = read_record(file);
    all.insert(all.end(), results.begin(), results.end());
  }
  return all;
}

std::string tested_text(const std::vector<TestResult>& results, const Digest& library,
                        const std::string& subject) {
  std::set<std::string> places;
  for (const TestResult& result : results) {
    if (result.library != library) continue;
    if (result.failed > 0 || result.cases == 0) {
      throw Error(ErrorCode::kIntegrity,
                  "publish " + subject + ": record " + result.file.string() + " says that " +
                      std::to_string(result.failed) + " of " + std::to_string(result.cases) +
                      " cases failed on " + result.place + ", expected none of at least one, for " +
                      library.str() +
                      "; nothing was written. Fix the kernel, build and test it again");
    }
    places.insert(result.place + ", " + std::to_string(result.cases) + " cases");
  }
  std::string text;
  for (const std::string& place : places) text += (text.empty() ? "" : "; ") + place;
  return text;
}

}  // namespace kiln::registry
