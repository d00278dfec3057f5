// SPDX-License-Identifier: Apache-2.0
#include "documents/host.hpp"

#include <limits>
#include <set>
#include <utility>

#include "base/quote.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "documents/variant.hpp"

namespace kiln {

namespace {

constexpr std::string_view kHostSchema = "kiln.host/1";
constexpr std::size_t kMaxGpus = 1024;
constexpr std::size_t kMaxLibraries = 4096;

Json version_or_null(const std::optional<Version>& version) {
  return version ? Json(to_string(*version)) : Json(nullptr);
}

std::optional<Version> parse_version_or_null(const JsonView& view) {
  if (view.json().is_null()) return std::nullopt;
  return parse_version_fact(view);
}

/// The elements of an array, or the members of an object, no more than a real machine has.
template <class Entries>
Entries bounded(const JsonView& list, Entries entries, std::size_t most) {
  if (entries.size() <= most) return entries;
  list.fail("has " + std::to_string(entries.size()) + " entries, at most " + std::to_string(most) +
            " are read");
}

std::vector<Gpu> parse_gpus(const JsonView& list) {
  std::vector<Gpu> gpus;
  for (const JsonView& item : bounded(list, list.items(), kMaxGpus)) {
    const JsonView ordinal = item.at("ordinal");
    const std::uint64_t number = ordinal.unsigned_integer();
    if (number > std::numeric_limits<int>::max()) ordinal.fail("is too large for an ordinal");
    Gpu gpu{.ordinal = static_cast<int>(number),
            .name = parse_text(item.at("name")),
            .capability = parse_version_fact(item.at("capability"))};
    if (!gpus.empty() && gpu.ordinal <= gpus.back().ordinal) {
      ordinal.fail("found " + std::to_string(number) + " after " +
                   std::to_string(gpus.back().ordinal) + ", expected ascending ordinals");
    }
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

void parse_libraries(const JsonView& libraries, Host& host) {
  for (const auto& [soname, found] : bounded(libraries, libraries.members(), kMaxLibraries)) {
    if (!is_soname(soname)) {
      libraries.fail("found " + quote(soname) + ", expected a library's name, \"libcublas.so.12\"");
    }
    (found.boolean() ? host.libraries : host.absent).push_back(soname);
  }
}

}  // namespace

Json to_json(const Host& host) {
  Json gpus = host.gpus_asked ? Json::array() : Json(nullptr);
  for (const Gpu& gpu : host.gpus) {
    gpus.push_back(
        {{"ordinal", gpu.ordinal}, {"name", gpu.name}, {"capability", to_string(gpu.capability)}});
  }
  Json libraries = Json::object();
  for (const std::string& soname : host.absent) libraries[soname] = false;
  for (const std::string& soname : host.libraries) libraries[soname] = true;
  Json document = {
      {"schema", kHostSchema},
      {"arch", std::string(to_string(host.arch))},
      {"cpu", to_string(host.cpu)},
      {"glibc", version_or_null(host.glibc)},
      {"driver", version_or_null(host.driver)},
      {"driver_version", host.driver_version.empty() ? Json(nullptr) : Json(host.driver_version)},
      {"gpus", std::move(gpus)},
      {"libraries", std::move(libraries)},
      {"overridden", host.overridden}};
  if (!host.driver_problem.empty()) document["driver_problem"] = host.driver_problem;
  return document;
}

std::string serialize_host(const Host& host) {
  return dump_json(to_json(host));
}

Host parse_host(std::string_view document, std::string_view origin) {
  const std::string subject = "facts file " + std::string(origin);
  const Json json = parse_json(document, subject);
  const JsonView view(json, subject);
  check_schema(view, kHostSchema, ", as 'kiln host --json' writes it");
  Host host{.arch = parse_fact(view.at("arch"), parse_arch, "x86_64 or aarch64"),
            .cpu = parse_cpu_fact(view.at("cpu")),
            .glibc = parse_version_or_null(view.at("glibc")),
            .driver = parse_version_or_null(view.at("driver")),
            .gpus = parse_gpus(view.at("gpus")),
            .origin = std::string(origin)};
  if (host.cpu.arch != host.arch) {
    view.at("cpu").fail("is " + to_string(host.cpu) + ", which is not a level of " +
                        std::string(to_string(host.arch)));
  }
  // A Kiln that did not ask for it, or could not tell, wrote the file.
  if (view.has("driver_version") && !view.at("driver_version").json().is_null()) {
    host.driver_version = parse_driver_fact(view.at("driver_version"));
  }
  if (view.has("driver_problem")) host.driver_problem = parse_text(view.at("driver_problem"));
  parse_libraries(view.at("libraries"), host);
  if (view.has("overridden")) {
    const JsonView list = view.at("overridden");
    for (const JsonView& item : bounded(list, list.items(), kMaxLibraries)) {
      host.overridden.push_back(parse_text(item));
    }
  }
  return host;
}

std::vector<std::string> unknown_libraries(const Host& host, const Index& index) {
  std::set<std::string> unknown;
  for (const Variant& variant : index.variants) {
    if (variant.needs.cpu.arch != host.arch) continue;
    unknown.insert(variant.needs.libraries.begin(), variant.needs.libraries.end());
  }
  for (const std::string& soname : host.libraries) unknown.erase(soname);
  for (const std::string& soname : host.absent) unknown.erase(soname);
  return {unknown.begin(), unknown.end()};
}

}  // namespace kiln
