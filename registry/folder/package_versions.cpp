// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/package_versions.hpp"

#include <algorithm>

#include "base/number.hpp"
#include "base/quote.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "oci/tag.hpp"
#include "registry/folder/layout.hpp"

namespace kiln::registry {

std::string PackageVersions::text() const {
  return version == 0 ? name : label(name, version);
}

std::vector<Tag> version_tags(const std::filesystem::path& registry,
                              const PackageVersions& versions, const char* operation,
                              const char* done) {
  std::vector<Tag> tags = Layout(registry / versions.name).read();
  std::erase_if(tags, [&](const Tag& tag) {
    const int version = version_of_tag(tag.name);
    return version == 0 || !versions.has(version);
  });
  std::ranges::sort(tags, {}, [](const Tag& tag) { return version_of_tag(tag.name); });
  if (!tags.empty()) return tags;
  throw Error(ErrorCode::kNotFound,
              std::string(operation) + " " + versions.text() + ": " + registry.string() +
                  " has no such version; " + done +
                  ". Publish into it first; 'kiln registry list' says what it has");
}

std::optional<PackageVersions> version_of_target(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const PackageVersions one{std::string(name.substr(0, slash)),
                            version_of_tag(name.substr(slash + 1))};
  return is_package_name(one.name) && one.version != 0 ? std::optional(one) : std::nullopt;
}

PackageVersions parse_package_versions(const std::string& text, std::string_view operation) {
  const std::size_t at = text.find('@');
  PackageVersions versions{text.substr(0, at), 0};
  if (at != std::string::npos) versions.version = parse_version_number(text.substr(at + 1));
  if (is_package_name(versions.name) && (at == std::string::npos || versions.version > 0)) {
    return versions;
  }
  throw Error(ErrorCode::kUsage, std::string(operation) + " " + quote(text) +
                                     ": expected a package, or one version of it, like "
                                     "geglu-mlp@1. Correct the name");
}

}  // namespace kiln::registry
