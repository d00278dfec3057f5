// SPDX-License-Identifier: Apache-2.0
//
// kiln diff: what differs between two versions of a package, or two variants of one: what their
// documents say, and on this machine what the two compute: the cases of one check are run on both,
// and their outputs are compared bit by bit.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/join.hpp"
#include "documents/json.hpp"
#include "documents/ops.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/check_run.hpp"
#include "loader/cli/verbs/compare_values.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "store/unpack.hpp"

namespace kiln::cli {
namespace {

struct DiffRequest {
  std::string against;
  bool documents_only = false;
  bool full = false;
};

// ---- what the documents say ----

/// A fact of a variant by its name, as people read it.
using Facts = std::map<std::string, std::string>;

Json schema_of(const Package& package) {
  const auto& files = package.config.files;
  constexpr const char* kName = "package.json";
  const auto file = std::ranges::find(files, kName, &ArchiveFile::path);
  if (file == files.end()) return Json::object();
  const std::string what = kName + std::string(" of ") + package.subject;
  return parse_json(read_unpacked(package.folder, *file, what), what);
}

void add_ops(const Package& package, Facts& facts) {
  const Json json = schema_of(package);
  const JsonView schema(json, "package.json of " + package.subject);
  for (const char* key : {"summary", "license"}) facts[key] = schema.string_or(key, "none");
  for (const JsonView& op : schema.items_of("ops")) {
    const std::string name = "op " + op.at("name").string();
    facts[name] = signature_text(package.config.name, op);
    facts[name + ", what it computes"] = op.string_or("doc", "");
  }
}

void add_build(const Config& config, Facts& facts) {
  if (config.build.empty()) return;
  const Json build = parse_json(config.build, "build");
  for (const auto& [key, value] : build.items()) {
    facts["built with " + key] = value.is_string() ? value.get<std::string>() : dump_json(value);
  }
}

Facts facts_of(const CheckTarget& target) {
  const Package& package = target.installed.package;
  const Needs& needs = package.config.needs;
  const VariantManifest& manifest = package.manifest;
  Facts facts = {{"variant", package.variant.id},
                 {"min loader", package.config.requires_.min_loader},
                 {"CPU", to_string(needs.cpu)},
                 {"glibc", to_string(needs.glibc)},
                 {"GPU code", join(needs.device_code, " ",
                                   [](const DeviceCode& code) { return to_string(code); })},
                 {"libraries", join(needs.libraries, " ")},
                 {"tested", package.variant.tested},
                 {"build id", package.config.build_id},
                 {"library", library_file(package.config).digest.str()},
                 {"library's size", std::to_string(library_file(package.config).size) + " bytes"},
                 {"download", std::to_string(manifest.layer.size) + " bytes"},
                 {"dev layer", manifest.has_dev() ? manifest.dev.digest.str() : "none"}};
  if (needs.toolkit) facts["CUDA toolkit"] = to_string(*needs.toolkit);
  if (needs.min_driver) facts["oldest driver's CUDA"] = to_string(*needs.min_driver);
  std::vector<std::string> variants;
  for (const Variant& each : target.installed.choice.version.index.variants) {
    variants.push_back(each.id);
  }
  std::ranges::sort(variants);
  facts["variants of the version"] = join(variants, " ");
  add_build(package.config, facts);
  add_ops(package, facts);
  return facts;
}

struct Change {
  std::string what;
  std::optional<std::string> before;  ///< nothing: it is not there
  std::optional<std::string> after;
};

std::vector<Change> changes_of(const Facts& before, const Facts& after) {
  std::map<std::string, Change> all;
  for (const auto& [name, text] : before) all[name] = {name, text, std::nullopt};
  for (const auto& [name, text] : after) {
    Change& change = all[name];
    change.what = name;
    change.after = text;
  }
  std::vector<Change> changes;
  for (auto& [name, change] : all) {
    if (change.before != change.after) changes.push_back(std::move(change));
  }
  return changes;
}

Json to_json(const Change& change) {
  const auto text = [](const std::optional<std::string>& value) {
    return value ? Json(*value) : Json();
  };
  return {{"what", change.what}, {"before", text(change.before)}, {"after", text(change.after)}};
}

void print_changes(const std::vector<Change>& changes) {
  if (changes.empty()) print("what the documents say is the same\n");
  for (const Change& change : changes) {
    print("%s\n", change.what.c_str());
    if (change.before) print("  - %s\n", change.before->c_str());
    if (change.after) print("  + %s\n", change.after->c_str());
  }
}

// ---- what they compute ----

struct Computed {
  std::string problem;  ///< why it is not known, or not whole; empty: it is
  std::vector<GroupDifference> groups = {};
  CheckRun before = {};
  CheckRun after = {};
};

/// The cases of one check, the later version's where it brings one, on both.
Computed compute(CheckTarget& before, CheckTarget& after, const DiffRequest& asked,
                 const std::stop_token& stop) {
  CheckTarget* const with = brings_check(after) ? &after : brings_check(before) ? &before : nullptr;
  if (with == nullptr) return {.problem = "neither version brings a check for this machine"};
  install_check(*with);
  before.check = after.check = with->spec;
  const CheckLimits limits = {.full = asked.full, .values = true, .time = check_time(asked.full)};
  Computed computed{.problem = {}};
  computed.before = run_check(before, limits, stop);
  computed.after = run_check(after, limits, stop);
  for (const auto& [target, run] :
       {std::pair(&before, &computed.before), std::pair(&after, &computed.after)}) {
    if (run->end == CheckEnd::kDone) continue;
    computed.problem += (computed.problem.empty() ? "" : "; ") +
                        ("the check of " + target->subject) + ": " + run->problem;
  }
  computed.groups = compare_values(computed.before, computed.after);
  return computed;
}

Json to_json(const GroupDifference& group) {
  Json ulps = Json::object();
  for (std::size_t i = 0; i < group.ulps.size(); ++i) ulps[kUlpWords[i]] = group.ulps[i];
  return {{"name", group.name},
          {"cases", group.cases},
          {"values", group.values},
          {"equal", group.values - group.different()},
          {"ulps", std::move(ulps)},
          {"error_before", group.error_before},
          {"error_after", group.error_after}};
}

Json times_of(const Computed& computed) {
  Json times = Json::array();
  for (const auto& [op, after] : computed.after.ops) {
    const auto before = computed.before.ops.find(op);
    if (before == computed.before.ops.end()) continue;
    if (before->second.calls == 0 || after.calls == 0) continue;  // its check did not get so far
    times.push_back({{"op", op},
                     {"calls", after.calls},
                     {"seconds_before", before->second.seconds},
                     {"seconds_after", after.seconds}});
  }
  return times;
}

void print_computed(const Computed& computed, const Json& times) {
  const int width = name_column(computed.after);
  for (const GroupDifference& group : computed.groups) {
    const double share = group.values == 0
                             ? 100.0
                             : 100.0 * static_cast<double>(group.values - group.different()) /
                                   static_cast<double>(group.values);
    print("%-*s %10llu values, %.3f %% equal; error %.2e, was %.2e", width, group.name.c_str(),
          static_cast<unsigned long long>(group.values), share, group.error_after,
          group.error_before);
    for (std::size_t i = 1; i < group.ulps.size(); ++i) {
      if (group.ulps[i] == 0) continue;
      print("; %s ULP: %llu", kUlpWords[i], static_cast<unsigned long long>(group.ulps[i]));
    }
    print("\n");
  }
  for (const Json& each : times) {
    print("time of %-16s %8.1f us a call, was %.1f\n", each["op"].get<std::string>().c_str(),
          1e6 * each["seconds_after"].get<double>(), 1e6 * each["seconds_before"].get<double>());
  }
  if (!computed.problem.empty()) print("not compared: %s\n", computed.problem.c_str());
}

Json side_of(const CheckTarget& target) {
  const Package& package = target.installed.package;
  return {{"name", package.config.name},
          {"version", package.config.version},
          {"variant", package.variant.id},
          {"manifest", package.variant.manifest.digest.str()}};
}

std::pair<CheckTarget, CheckTarget> find_both(const Options& options, const DiffRequest& asked) {
  const Spec& first = options.specs.front();
  const Spec& second = options.specs.back();
  if (options.specs.size() > 2 || (options.specs.size() == 1) == asked.against.empty()) {
    throw Error(ErrorCode::kUsage,
                "diff: name two versions of a package, such as geglu-mlp@1 geglu-mlp@2, or one "
                "with two variants, --variant and --against");
  }
  if (first.name != second.name) {
    throw Error(ErrorCode::kUsage, "diff " + first.text() + " " + second.text() +
                                       ": these are two packages. Name versions of one");
  }
  Request before = options.request_for(first);
  Request after = options.request_for(second);
  if (!asked.against.empty()) after.variant = asked.against;
  return {find_target(before, first), find_target(after, second)};
}

int run_diff(const Options& options, const DiffRequest& asked) {
  auto [before, after] = find_both(options, asked);
  print("%s -> %s\n", before.subject.c_str(), after.subject.c_str());
  const std::vector<Change> changes = changes_of(facts_of(before), facts_of(after));
  print_changes(changes);
  Json document = {{"before", side_of(before)},
                   {"after", side_of(after)},
                   {"changes", Json::array()},
                   {"computed", nullptr}};
  for (const Change& change : changes) document["changes"].push_back(to_json(change));
  if (!asked.documents_only) {
    const Computed computed = compute(before, after, asked, options.request.stop);
    Json groups = Json::array();
    for (const GroupDifference& group : computed.groups) groups.push_back(to_json(group));
    const Json times = times_of(computed);
    document["computed"] = {{"problem", computed.problem.empty() ? Json() : Json(computed.problem)},
                            {"outputs", std::move(groups)},
                            {"times", times}};
    print_computed(computed, times);
  }
  print_json("diff", std::move(document));
  return 0;
}

}  // namespace

void diff(KernelCommand& command) {
  command.takes_named_packages();
  command.takes_choice();
  command.takes_cache();
  const auto asked = std::make_shared<DiffRequest>();
  command.option("--against", asked->against, "VARIANT",
                 "With one version: another variant of it, which this machine can run");
  command.flag("--documents", asked->documents_only,
               "Only what the documents say; nothing is computed");
  command.flag("--full", asked->full, "Compute all cases of the check");
  command.example("geglu-mlp@1 geglu-mlp@2", "what changed, and which outputs on this machine");
  command.example("geglu-mlp@1 --device cpu --variant cpu-x86-64-v3 --against cpu-x86-64-v4",
                  "two variants of one version");
  command.runs([asked](const Options& options) { return run_diff(options, *asked); });
}

}  // namespace kiln::cli
