// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/verbs/cool_down.hpp"

#include <algorithm>
#include <ctime>
#include <optional>

#include "base/quote.hpp"
#include "documents/names.hpp"
#include "loader/cli/frame/output.hpp"
#include "settings/settings.hpp"
#include "trust/metadata.hpp"

namespace kiln::cli {
namespace {

Catalog catalog_of(const std::string& name, const Options& options, const std::string& registry) {
  Request request = options.request;
  request.registry = registry;
  return {name, request};
}

std::chrono::seconds age_of(const Project& project) {
  if (project.newest_after.empty()) return load_settings().newest_after;
  if (const std::optional<std::chrono::seconds> age = parse_age(project.newest_after)) return *age;
  throw Error(ErrorCode::kUsage, "--newest-after " + quote(project.newest_after) +
                                     ": expected a time like '7 days' or '12 hours', or 0");
}

}  // namespace

void takes_cool_down(Command& command, Project& project) {
  command.option("--newest-after", project.newest_after, "TIME",
                 "How long ago the newest version must have been published, like '7 days'; default "
                 "newest_after of the settings, else 0");
}

CoolDown::CoolDown(const Project& project, const Options& options)
    : options_(options), age_(age_of(project)), now_(std::time(nullptr)) {
  options_.tell_offline();
}

std::vector<PublishedVersion> CoolDown::obtainable(const std::string& name,
                                                   const std::string& registry) {
  return catalog_of(name, options_, registry).obtainable();
}

int CoolDown::newest_version(const std::string& name, const std::string& registry) {
  Catalog catalog = catalog_of(name, options_, registry);
  if (age_.count() == 0) return catalog.newest_version();
  const std::vector<PublishedVersion> versions = catalog.obtainable();
  if (kiln::newest_of(versions) == 0) return catalog.newest_version();  // throws: all taken back
  if (const int newest = newest_of(name, versions, 0); newest != 0) return newest;
  const std::string version = std::to_string(kiln::newest_of(versions));
  const bool has_times = std::ranges::any_of(
      versions, [](const PublishedVersion& each) { return each.published.has_value(); });
  throw Error(has_times ? ErrorCode::kNotFound : ErrorCode::kTrust,
              "find the newest " + name + " in " + catalog.registry() + ": newest_after is " +
                  age_text(age_) +
                  (has_times ? ", and every version is younger"
                             : ", and no signature says here when a version was published") +
                  ". Name the version that you want, " + name + "@" + version +
                  ", or take the newest as it is: --newest-after 0");
}

int CoolDown::newest_of(const std::string& name, const std::vector<PublishedVersion>& versions,
                        int locked) {
  const Aged aged = newest_aged(versions, age_, now_);
  for (const PublishedVersion& each : aged.passed) {
    if (each.version > locked) note(name, each, false);
  }
  return aged.version;
}

void CoolDown::note_named(const std::string& name, int version, const std::string& registry) {
  if (age_.count() == 0) return;
  const std::vector<PublishedVersion> versions = obtainable(name, registry);
  const auto found = std::ranges::find(versions, version, &PublishedVersion::version);
  if (found != versions.end() && !is_aged(*found, age_, now_)) note(name, *found, true);
}

void CoolDown::note(const std::string& name, const PublishedVersion& version, bool taken) {
  const std::string what = label(name, version.version);
  std::string published = "no signature says when it was published";
  Json from;
  if (version.published) {
    from = trust::to_text(*version.published + age_.count());
    published = "published " + trust::to_text(*version.published) + ", it counts from " +
                from.get<std::string>();
  }
  young_.push_back(
      {{"name", name},
       {"version", version.version},
       {"published", version.published ? Json(trust::to_text(*version.published)) : Json()},
       {"counts_from", from},
       {"taken", taken}});
  print("%s is %s: newest_after is %s; %s\n", what.c_str(),
        taken ? "taken, as it is named" : "passed over", age_text(age_).c_str(), published.c_str());
}

}  // namespace kiln::cli
