// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/records.hpp"

#include <set>

#include "base/draft.hpp"
#include "base/quote.hpp"
#include "base/utc.hpp"
#include "documents/descriptor.hpp"
#include "documents/json.hpp"
#include "documents/variant.hpp"
#include "kiln/error.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "kiln.record/1";
/// Readers take at most 300 bytes of text, and " more" needs room.
constexpr std::size_t kMaxTestedBytes = 270;
/// A GPU's name, a driver's version, a date: longer text is refused.
constexpr std::size_t kMaxWordBytes = 80;

void read_record(const fs::path& file, std::vector<TestResult>& results) {
  const Json document = parse_json(read_document(file, kMaxDocumentBytes), file.string());
  const JsonView record(document, file.string());
  const std::string schema = record.at("schema").string();
  if (schema != kSchema) {
    record.fail("schema is '" + schema + "', expected '" + std::string(kSchema) + "'");
  }
  const auto word = [&](std::string_view key) {
    std::string text = record.at(key).string();
    if (text.empty() || text.size() > kMaxWordBytes || printable(text) != text) {
      record.at(key).fail("expected 1 to 80 bytes of printable text");
    }
    return text;
  };
  const std::string hardware = word("hardware");
  std::string place = hardware;
  if (record.has("driver")) place += ", driver " + word("driver");
  const std::string date = word("date");
  if (!parse_time(date + "T00:00:00Z")) {
    record.at("date").fail("is " + quote(date) + ", expected a day such as 2027-01-31");
  }
  place += ", " + date;
  for (const JsonView& item : record.at("results").items()) {
    results.push_back({file, hardware, place, item.at("variant").string(),
                       Digest::parse(item.at("library").string()),
                       item.at("cases").unsigned_integer(), item.at("failed").unsigned_integer()});
  }
}

/// As many as an annotation may hold, then how many more there are.
std::string joined(const std::set<std::string>& places) {
  std::string text;
  std::size_t taken = 0;
  for (const std::string& place : places) {
    if (taken > 0 && text.size() + place.size() > kMaxTestedBytes) break;
    text += (taken > 0 ? "; " : "") + place;
    ++taken;
  }
  if (taken < places.size()) text += "; " + std::to_string(places.size() - taken) + " more";
  return text;
}

}  // namespace

std::vector<TestResult> read_records(const std::vector<fs::path>& files) {
  std::vector<TestResult> results;
  for (const fs::path& file : files) read_record(file, results);
  return results;
}

TestedPlaces tested_places(const std::vector<TestResult>& results, const Digest& library,
                           const std::string& subject) {
  std::set<std::string> places;
  std::set<std::string> hardware;
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
    hardware.insert(result.hardware);
  }
  if (hardware.size() > kMaxTestedOn) {
    throw Error(ErrorCode::kUsage, "publish " + subject + ": the records name " +
                                       std::to_string(hardware.size()) +
                                       " GPUs and CPUs, an index names at most " +
                                       std::to_string(kMaxTestedOn) + ". Give fewer records");
  }
  return {joined(places), {hardware.begin(), hardware.end()}};
}

}  // namespace kiln::registry
