// SPDX-License-Identifier: Apache-2.0
#include "install/tested_here.hpp"

#include <algorithm>
#include <ctime>
#include <optional>
#include <system_error>
#include <utility>

#include "base/draft.hpp"
#include "base/quote.hpp"
#include "base/utc.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "install/kept.hpp"
#include "kiln/error.hpp"
#include "probe/hardware.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRecordSchema = "kiln.record/1";
constexpr Kept kRecords{"tested", "record", "kiln test"};
constexpr std::size_t kMaxTestedBytes = 300;  // of a variant's `tested`, as its readers have it

std::string today() {
  return to_text(std::time(nullptr)).substr(0, std::string_view("2027-01-31").size());
}

std::string file_name(const TestRecord& record) {
  return record.manifest.hex() + "." + place_word(record.hardware + "\n" + record.driver) + ".json";
}

TestRecord parse_kept(const Json& document, const fs::path& file) {
  const JsonView view(document, file.string());
  view.expect_members({"schema", "hardware", "driver", "cuda", "date", "results"});
  const std::vector<JsonView> results = view.at("results").items();
  if (view.at("schema").string() != kRecordSchema || results.size() != 1) {
    view.fail("it is not as 'kiln test' wrote it");
  }
  const JsonView& result = results.front();
  TestRecord record{.hardware = view.at("hardware").string(),
                    .driver = view.string_or("driver", ""),
                    .cuda = view.string_or("cuda", ""),
                    .date = view.at("date").string(),
                    .variant = result.at("variant").string(),
                    .library = Digest::parse(result.at("library").string()),
                    .manifest = Digest::parse(result.at("manifest").string()),
                    .cases = result.at("cases").unsigned_integer(),
                    .failed = result.at("failed").unsigned_integer(),
                    .full = result.has("full") && result.at("full").boolean()};
  if (file_name(record) != file.filename()) {
    view.fail("it speaks of " + record.manifest.str() + " on " + quote(record.hardware) +
              ", for which its name would be " + file_name(record));
  }
  return record;
}

std::optional<TestRecord> read_record(const fs::path& file) {
  const std::optional<Json> document = read_kept(kRecords, file);
  if (!document) return std::nullopt;  // removed meanwhile
  try {
    return parse_kept(*document, file);
  } catch (const Error& error) {
    fail_kept(kRecords, error.what());
  }
}

/// Of the hardware and driver that this machine has. Whether a GPU of that name is there is the
/// resolver's to see.
bool counts_here(const TestRecord& record) {
  if (!record.cuda.empty()) return record.driver == driver_release();
  const std::string model = cpu_model();
  return model.empty() || record.hardware == model;
}

void add_passed(Variant& variant, const TestRecord& record) {
  std::vector<std::string>& names = variant.tested_on;
  const auto place = std::ranges::lower_bound(names, record.hardware);
  if (place != names.end() && *place == record.hardware) return;
  names.insert(place, record.hardware);
  const std::string here = "here on " + record.place();
  if (variant.tested == kUntested) {
    variant.tested = here;
  } else if (variant.tested.size() + here.size() + 2 <= kMaxTestedBytes) {
    variant.tested += "; " + here;
  }
}

}  // namespace

std::string TestRecord::place() const {
  std::string text = hardware;
  if (!driver.empty()) text += ", driver " + driver;
  text += ", " + date + ", ";
  if (!passed()) text += std::to_string(failed) + " of ";
  return text + std::to_string(cases) + " cases" + (passed() ? "" : " failed");
}

TestRecord record_of_today(const Host& host, Device device) {
  TestRecord record{.hardware = hardware_name(host, device), .date = today()};
  if (device.kind == Device::Kind::kCuda) {
    record.driver = driver_release();
    if (host.driver) record.cuda = to_string(*host.driver);
  }
  return record;
}

Json to_json(const TestRecord& record) {
  Json result = {{"variant", record.variant},
                 {"library", record.library.str()},
                 {"cases", record.cases},
                 {"failed", record.failed},
                 {"worst", record.worst}};
  if (!record.manifest.empty()) {  // it is this machine's
    result["manifest"] = record.manifest.str();
    result["full"] = record.full;
  }
  Json document = {{"schema", kRecordSchema},
                   {"hardware", record.hardware},
                   {"date", record.date},
                   {"results", Json::array({std::move(result)})}};
  if (!record.driver.empty()) document["driver"] = record.driver;
  if (!record.cuda.empty()) document["cuda"] = record.cuda;
  return document;
}

fs::path keep_record(const TestRecord& record) {
  return keep(kRecords, file_name(record), to_json(record));
}

std::optional<TestRecord> failed_before(const TestRecord& record) {
  if (record.full || !record.passed()) return std::nullopt;
  const fs::path folder = folder_of(kRecords);
  std::optional<TestRecord> before =
      folder.empty() ? std::nullopt : read_record(folder / file_name(record));
  if (before && (before->passed() || !before->full)) before.reset();
  return before;
}

std::vector<TestRecord> records_here(const Digest& manifest) {
  std::vector<TestRecord> records;
  const fs::path folder = folder_of(kRecords);
  if (folder.empty()) return records;
  std::vector<fs::path> files;
  std::error_code absent;
  for (fs::directory_iterator each(folder, absent), end; !absent && each != end;
       each.increment(absent)) {
    const std::string name = each->path().filename().string();
    if (name.starts_with(manifest.hex() + ".") && name.ends_with(".json")) {
      files.push_back(each->path());
    }
  }
  if (absent && absent != std::errc::no_such_file_or_directory &&
      absent != std::errc::not_a_directory) {
    fail_file("read", folder, absent.value());
  }
  std::ranges::sort(files);
  for (const fs::path& file : files) {
    std::optional<TestRecord> record = read_record(file);
    if (record && counts_here(*record)) records.push_back(std::move(*record));
  }
  return records;
}

std::string test_command(const std::string& name, int version, const Variant& variant,
                         Device device, bool full) {
  if (variant.needs.is_cpu()) device = Device::cpu();
  return "kiln test " + label(name, version) + " --device " + to_string(device) + " --variant " +
         variant.id + (full ? " --full" : "");
}

std::vector<FailedHere> add_tested_here(Index& index, Device device) {
  std::vector<FailedHere> failed;
  for (Variant& variant : index.variants) {
    for (const TestRecord& record : records_here(variant.manifest.digest)) {
      if (!record.passed()) {
        failed.push_back(
            {record.manifest, record.cuda.empty() ? "" : record.hardware,
             record.place() + "; '" +
                 test_command(index.name, index.version, variant, device, record.full) +
                 "' runs it again"});
        continue;
      }
      add_passed(variant, record);
    }
  }
  return failed;
}

}  // namespace kiln
