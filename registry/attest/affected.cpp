// SPDX-License-Identifier: Apache-2.0
#include "registry/attest/affected.hpp"

#include <algorithm>
#include <set>

#include "attest/statement.hpp"
#include "base/number.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "registry/attest/attest.hpp"
#include "registry/folder/check.hpp"
#include "registry/folder/client_view.hpp"
#include "registry/folder/layout.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

/// What the provenance of a version says of a download: the versions that it has there. Nothing
/// where no provenance is there.
std::optional<std::set<std::string>> versions_of(const Digest& download, const Layout& layout,
                                                 const Descriptor& index) {
  std::optional<std::set<std::string>> versions;
  const std::string what = "provenance of " + index.digest.str();
  for (const Said& each : said_about(layout, index)) {
    const attest::Kind* const kind = attest::kind_of_type(each.statement.predicate_type);
    if (kind == nullptr || kind->word != "provenance") continue;
    if (!versions) versions.emplace();
    const Json predicate = parse_json(each.statement.predicate, what);
    const JsonView build = JsonView(predicate, what).at("buildDefinition");
    for (const JsonView& one : build.at("resolvedDependencies").items()) {
      if (!one.has("digest")) continue;
      const std::string uri = one.at("uri").string();
      if (one.at("digest").string_or("sha256", "") == download.hex()) {
        versions->insert(uri.substr(uri.rfind('@') + 1));
      }
    }
  }
  return versions;
}

bool has_code(const Variant& variant, const std::string& code) {
  return std::ranges::any_of(variant.needs.device_code,
                             [&](const DeviceCode& each) { return to_string(each) == code; });
}

/// Whether one compiler is the one that is meant. `downloads`: the versions of it by its digest.
bool is_made_with(const Config& config, const MadeWith& made,
                  const std::optional<std::set<std::string>>& downloads) {
  return std::ranges::any_of(compilers_of(config), [&](const auto& each) {
    return (made.compiler.empty() || each.first == made.compiler) &&
           (made.version.empty() || each.second == made.version) &&
           (!made.digest || downloads->contains(each.second));
  });
}

}  // namespace

Affected find_affected(const fs::path& registry, const Advisory& advisory, const MadeWith& made) {
  Affected affected;
  std::set<std::string> manifests;
  const std::optional<ClientView> view = view_as_client(registry);
  for (const ListedVersion& each : list_registry(registry)) {
    const std::string version = label(each.name, each.index.version);
    if (!speaks_of(advisory, each.name, each.index.version)) continue;
    if (made.before && view) {
      const auto found =
          view->listed.targets.find(trust::target_name(each.name, each.index.version));
      const bool is_dated = found != view->listed.targets.end() && found->second.published;
      if (is_dated && *found->second.published >= *made.before) continue;
    }
    const Layout layout(registry / each.name);
    std::optional<std::set<std::string>> downloads;
    if (made.digest) {
      downloads = versions_of(*made.digest, layout, each.descriptor);
      if (!downloads) {
        affected.unknown.push_back(version);
        continue;
      }
    }
    const std::size_t before = manifests.size();
    for (const Variant& variant : each.index.variants) {
      if (!variant.unread.empty()) continue;
      if (!names_variant(advisory, variant.id, variant.manifest.digest)) continue;
      if (!made.code.empty() && !has_code(variant, made.code)) continue;
      const bool asks_compiler = !made.compiler.empty() || made.digest;
      if (asks_compiler) {
        const Config config = parse_config(read_documents(layout, each.index, variant).config_bytes,
                                           version + " " + variant.id + " config");
        if (!is_made_with(config, made, downloads)) continue;
      }
      manifests.insert(variant.manifest.digest.str());
    }
    if (manifests.size() > before) affected.versions.push_back(version);
  }
  affected.manifests = {manifests.begin(), manifests.end()};
  return affected;
}

std::string find_absent(const fs::path& registry, const Advisory& advisory) {
  if (advisory.package.empty() && advisory.variants.empty()) return {};
  bool is_known = true;
  bool is_there = false;
  std::set<std::string> variants(advisory.variants.begin(), advisory.variants.end());
  std::set<std::string> versions;
  const auto damaged = [&](const auto&...) { is_known = false; };
  for (const ListedVersion& each : list_registry(registry, damaged)) {
    versions.insert(trust::target_name(each.name, each.index.version));
    if (!speaks_of(advisory, each.name, each.index.version)) continue;
    is_there = true;
    for (const Variant& variant : each.index.variants) {
      variants.erase(variant.id);
      variants.erase(variant.manifest.digest.str());
    }
  }
  const std::optional<ClientView> view = view_as_client(registry);
  if (view) {
    for (const auto& [name, target] : view->listed.targets) {
      const std::size_t slash = name.rfind('/');
      const int version = parse_version_number(name.substr(slash + 1));  // 0: it is no version
      if (version == 0 || versions.contains(name)) continue;
      // Signed, and not in this folder: its variants are not known.
      if (speaks_of(advisory, name.substr(0, slash), version)) is_known = false;
    }
  }
  if (!is_known) return {};
  if (!is_there) return scope_of(advisory);
  return variants.empty() ? std::string() : "variant " + *variants.begin();
}

}  // namespace kiln::registry
