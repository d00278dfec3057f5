// SPDX-License-Identifier: Apache-2.0
#include "registry/attest/predicates.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "documents/descriptor.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "registry/folder/records.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBuildType = "urn:kiln:build:v1";

/// All pins of the components that a variant was made with; the compiler's own has its version.
void add_pins(const Config& config, const std::vector<Pin>& pins,
              std::map<std::string, Pin>& used) {
  for (const auto& [compiler, version] : compilers_of(config)) {
    const std::string component = component_of(compiler, config);
    bool found = false;
    for (const Pin& pin : pins) {
      if (pin.component != component) continue;
      used.emplace(purl_of(pin), pin);
      found = found || pin.version == version;
    }
    if (found) continue;
    std::string text = "attest " + label(config.name, config.version) + " " + config.variant;
    text.append(": it was made with ").append(compiler).append(" ").append(version);
    text.append(", and no line of [").append(component);
    throw Error(ErrorCode::kIntegrity, text +
                                           "] pins that version; nothing was signed. Give the "
                                           "toolchains.lock that it was built with");
  }
}

Json dependency(const Pin& pin) {
  return {{"name", pin.name}, {"uri", purl_of(pin)}, {"digest", {{"sha256", pin.digest.hex()}}}};
}

/// What blanks part.
std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r\v\f";
  std::vector<std::string_view> words;
  for (std::size_t at = line.find_first_not_of(kBlanks); at != std::string_view::npos;
       at = line.find_first_not_of(kBlanks, at)) {
    words.push_back(line.substr(at, line.find_first_of(kBlanks, at) - at));
    at += words.back().size();
  }
  return words;
}

}  // namespace

std::map<std::string, std::string> compilers_of(const Config& config) {
  std::map<std::string, std::string> compilers;
  if (config.build.empty()) return compilers;
  const Json json = parse_json(config.build, "build of " + config.variant);
  for (const auto& [name, value] : JsonView(json, "build of " + config.variant).members()) {
    if (name != "source") compilers.emplace(name, value.string());
  }
  return compilers;
}

std::string component_of(const std::string& compiler, const Config& config) {
  if (compiler == "nvrtc" && config.needs.toolkit)
    return "cuda-" + to_string(*config.needs.toolkit);
  return compiler;
}

std::string purl_of(const Pin& pin) {
  return "pkg:pypi/" + pin.name + "@" + pin.version;
}

std::vector<Pin> parse_pins(const std::string& text, const std::string& file) {
  std::vector<Pin> pins;
  std::string component;
  for (const std::string_view line : split(text, '\n')) {
    std::vector<std::string_view> words = words_of(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    const std::string_view first = words.front();
    if (words.size() == 1 && first.starts_with('[') && first.ends_with(']')) {
      component = first.substr(1, first.size() - 2);
      if (!component.empty() && is_word(component, ".-")) continue;
    }
    const std::size_t equal = std::min(first.find("=="), first.size());
    const std::string_view name = first.substr(0, equal);
    const std::string_view version = first.substr(std::min(equal + 2, first.size()));
    constexpr std::string_view kHash = "--hash=sha256:";
    std::optional<Digest> digest;
    if (words.size() == 2 && words[1].starts_with(kHash)) {
      digest = Digest::from_hex(words[1].substr(kHash.size()));
    }
    const bool is_pin =
        !name.empty() && is_word(name, "._-") && !version.empty() && is_word(version, "._+-");
    if (!digest || !is_pin) {
      throw Error(ErrorCode::kIntegrity,
                  "read " + file + ": found the line " + quote(line) +
                      ", expected [section] or name==version --hash=sha256:…");
    }
    pins.push_back({component, std::string(name), std::string(version), *digest});
  }
  return pins;
}

Json provenance(const WholeVersion& version, const Origin& origin) {
  std::map<std::string, Pin> used;
  Json ids = Json::array();
  Json details = Json::object();
  for (const BuiltVariant& each : version.variants) {
    const Config& config = each.config;
    add_pins(config, origin.pins, used);
    ids.push_back(config.variant);
    details[config.variant] = {{"manifest", each.variant.manifest.digest.str()},
                               {"library", each.library.str()},
                               {"build_id", config.build_id}};
    if (!config.build.empty()) {
      details[config.variant]["build"] = parse_json(config.build, "build of " + config.variant);
    }
  }
  Json dependencies = Json::array();
  dependencies.push_back({{"uri", "git+" + origin.source + "@" + origin.commit},
                          {"digest", {{"gitCommit", origin.commit}}}});
  for (const auto& [name, pin] : used) dependencies.push_back(dependency(pin));
  Json run = {{"builder", {{"id", origin.builder}, {"version", {{"kiln", KILN_VERSION}}}}}};
  if (!origin.invocation.empty()) run["metadata"] = {{"invocationId", origin.invocation}};
  return {{"buildDefinition",
           {{"buildType", kBuildType},
            {"externalParameters",
             {{"package", version.index.name},
              {"version", version.index.version},
              {"source", origin.source},
              {"commit", origin.commit},
              {"variants", ids}}},
            {"internalParameters", {{"variants", details}}},
            {"resolvedDependencies", dependencies}}},
          {"runDetails", run}};
}

Json tests(const WholeVersion& version, const std::vector<fs::path>& records) {
  const std::vector<TestResult> results = read_records(records);
  std::set<std::string> libraries;
  for (const BuiltVariant& each : version.variants) {
    tested_places(results, each.library, label(version.index.name, version.index.version));
    libraries.insert(each.library.str());
  }
  Json kept = Json::array();
  for (const fs::path& file : records) {
    Json record = parse_json(read_document(file, kMaxDocumentBytes), file.string());
    Json of_these = Json::array();
    for (Json& result : record["results"]) {
      if (libraries.contains(result["library"])) of_these.push_back(std::move(result));
    }
    if (of_these.empty()) continue;
    record["results"] = std::move(of_these);
    kept.push_back(std::move(record));
  }
  if (kept.empty()) return nullptr;
  return {{"records", kept}};
}

}  // namespace kiln::registry
