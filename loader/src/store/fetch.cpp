// SPDX-License-Identifier: Apache-2.0
#include "store/fetch.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "store/source.hpp"

#ifndef KILN_DEFAULT_REGISTRY
#error "KILN_DEFAULT_REGISTRY is the registry that is asked where nothing else is named"
#endif

namespace kiln {
namespace {

bool is_url(std::string_view text) {
  return text.starts_with("http://") || text.starts_with("https://");
}

}  // namespace

std::string canonical_registry(const std::string& requested) {
  std::string registry = requested;
  if (registry.empty()) {
    const char* value = std::getenv("KILN_REGISTRY");
    registry = value != nullptr && *value != '\0' ? value : KILN_DEFAULT_REGISTRY;
  }
  if (is_url(registry)) return canonical_url(registry);
  constexpr std::string_view kFile = "file://";
  if (registry.starts_with(kFile)) {
    registry.erase(0, kFile.size());
  } else if (registry.find("://") != std::string::npos) {
    throw Error(ErrorCode::kUsage, "open registry " + registry +
                                       ": expected a folder, https://host[:port][/prefix], or "
                                       "http:// of this machine. Correct the registry's name");
  }
  std::filesystem::path folder = std::filesystem::absolute(registry).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "/a/b/" is "/a/b"
  return folder.string();
}

std::unique_ptr<Source> open_source(const std::string& registry, SourceOptions options) {
  if (!is_url(registry)) {
    std::error_code error;
    return std::filesystem::is_regular_file(registry, error) ? open_bundle_source(registry)
                                                             : open_folder_source(registry);
  }
  const Settings settings = load_settings();
  const std::vector<std::string> mirrors = mirrors_of(registry, settings);
  return mirrors.empty()
             ? open_http_source(registry, std::move(options), settings.limits)
             : open_mirrored_source(registry, mirrors, std::move(options), settings.limits);
}

std::vector<int> versions_among(const std::vector<std::string>& tags) {
  std::vector<int> versions;
  for (const std::string& tag : tags) {
    int version = 0;
    const auto parsed = std::from_chars(tag.data(), tag.data() + tag.size(), version);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == tag.data() + tag.size();
    if (whole && version >= 1 && std::to_string(version) == tag) versions.push_back(version);
  }
  std::sort(versions.begin(), versions.end());
  versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
  return versions;
}

void fail_no_version(std::string_view name, int version, const std::string& registry,
                     const std::vector<int>& published) {
  std::string list;
  for (const int each : published) list += (list.empty() ? "" : ", ") + std::to_string(each);
  throw Error(ErrorCode::kNotFound,
              "find " + label(name, version) + " in " + registry +
                  ": there is no such version; published: " + (list.empty() ? "none" : list) +
                  ". Ask for one of these, or check the registry's name");
}

}  // namespace kiln
