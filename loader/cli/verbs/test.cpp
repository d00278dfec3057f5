// SPDX-License-Identifier: Apache-2.0
//
// kiln test: the numeric check that a version brings, run on this machine against double precision,
// and the record of it, which the settings' "tested" asks for.
#include <memory>
#include <string>

#include "base/draft.hpp"
#include "documents/json.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/check_run.hpp"
#include "loader/cli/verbs/verbs.hpp"

namespace kiln::cli {
namespace {

constexpr std::uint64_t kMostSeconds = 86400;

struct TestRequest {
  bool full = false;
  std::uint64_t limit = 0;  ///< seconds; 0: the default
  std::filesystem::path share;
};

const char* word_of(CheckEnd end) {
  static constexpr const char* kWords[] = {"done", "crashed", "out of time", "failed"};
  static_assert(std::size(kWords) == static_cast<std::size_t>(CheckEnd::kFailed) + 1);
  return kWords[static_cast<std::size_t>(end)];
}

Json document_of(const CheckTarget& target, const CheckRun& run, const TestRecord& record,
                 bool full) {
  Json groups = Json::array();
  for (const auto& [name, group] : run.groups) {
    groups.push_back({{"name", name},
                      {"cases", group.cases},
                      {"failed", group.failed},
                      {"worst", group.worst},
                      {"bound", group.bound}});
  }
  const Package& package = target.installed.package;
  return {{"name", package.config.name},
          {"version", package.config.version},
          {"variant", package.variant.id},
          {"library", record.library.str()},
          {"device", to_string(target.request.device)},
          {"hardware", record.hardware},
          {"driver", record.driver.empty() ? Json() : Json(record.driver)},
          {"full", full},
          {"passed", run.passed()},
          {"end", word_of(run.end)},
          {"problem", run.problem.empty() ? Json() : Json(run.problem)},
          {"cases", run.cases},
          {"failed", run.failed},
          {"seconds", run.seconds},
          {"bytes_fetched", target.bytes_fetched},
          {"checks", std::move(groups)},
          {"failures", run.failures}};
}

void print_run(const CheckTarget& target, const CheckRun& run, const TestRecord& record) {
  print("%s on %s%s\n", target.subject.c_str(), record.hardware.c_str(),
        record.driver.empty() ? "" : (", driver " + record.driver).c_str());
  const int width = name_column(run);
  for (const auto& [name, group] : run.groups) {
    print("  %-*s %6llu cases", width, name.c_str(), static_cast<unsigned long long>(group.cases));
    if (group.bound > 0) print(", error at most %.1e of %.1e", group.worst, group.bound);
    if (group.failed > 0) print(", %llu FAILED", static_cast<unsigned long long>(group.failed));
    print("\n");
  }
  for (const std::string& failure : run.failures) print("FAILED %s\n", failure.c_str());
}

/// Why it did not pass.
std::string verdict(const CheckTarget& target, const CheckRun& run) {
  const std::string subject = "test " + target.subject + ": ";
  if (run.end != CheckEnd::kDone) return subject + run.problem;
  if (run.cases == 0) return subject + "the check compared nothing. Tell its publisher";
  return subject + std::to_string(run.failed) + " of " + std::to_string(run.cases) +
         " cases differ from double precision by more than is allowed. Do not use this variant "
         "here (\"deny\" in the settings), and send its publisher what --share writes";
}

int run_test(const Options& options, const TestRequest& asked) {
  if (!asked.share.empty()) check_replaceable(asked.share);  // before minutes of work
  const Spec& spec = options.specs.front();
  CheckTarget target = find_target(options.request_for(spec), spec);
  if (!brings_check(target)) {
    throw Error(ErrorCode::kNotFound,
                "test " + target.subject +
                    ": the version brings no check for this machine, so it cannot be tested here. "
                    "Its publisher says: " +
                    target.installed.package.variant.tested);
  }
  install_check(target);
  const std::chrono::seconds limit =
      asked.limit != 0 ? std::chrono::seconds(asked.limit) : check_time(asked.full);
  const CheckRun run = run_check(target, {.full = asked.full, .time = limit}, options.request.stop);
  const Package& package = target.installed.package;
  TestRecord record = record_of(target, run);
  record.full = asked.full;
  Json document = document_of(target, run, record, asked.full);
  print_run(target, run, record);
  if (const std::optional<TestRecord> before = failed_before(record)) {
    throw Error(ErrorCode::kIntegrity,
                "test " + target.subject + ": these " + std::to_string(record.cases) +
                    " cases pass, but of all cases some failed here: " + before->place() +
                    ". That record stays until '" +
                    test_command(package.config.name, package.config.version, package.variant,
                                 target.request.device, true) +
                    "' passes");
  }
  const std::filesystem::path kept = keep_record(record);
  document["record"] = kept.string();
  if (run.passed()) {
    print("passed: %llu cases in %.1f s. The record is %s\n",
          static_cast<unsigned long long>(run.cases), run.seconds, kept.c_str());
  }
  if (!asked.share.empty()) {
    record.manifest = {};
    replace_file(asked.share, to_json(record).dump(2) + "\n", 0666);
    document["shared"] = asked.share.string();
    print("for its publisher, who gives it to 'kiln registry publish --records': %s\n",
          asked.share.c_str());
  }
  print_json("test", std::move(document));
  if (run.passed()) return 0;
  if (!options.json) tell_error(verdict(target, run));
  return static_cast<int>(ErrorCode::kIntegrity);
}

}  // namespace

void test(KernelCommand& command) {
  command.takes_kernel();
  const auto asked = std::make_shared<TestRequest>();
  command.flag("--full", asked->full, "All cases; without it those that take less than a minute");
  command.number("--limit", asked->limit, 1, kMostSeconds,
                 "Seconds that it may take; default 60, with --full 3600");
  command.option("--share", asked->share, "FILE", "Also write a record for the publisher");
  command.example("rms-norm@1", "its numeric check on this machine, and the record of it");
  command.example("rms-norm@1 --device cpu --full", "all cases, of the variant for this CPU");
  command.example("rms-norm@1 --share tested.json", "what a publisher can add to the version");
  command.runs([asked](const Options& options) { return run_test(options, *asked); });
}

}  // namespace kiln::cli
