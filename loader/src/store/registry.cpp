// SPDX-License-Identifier: Apache-2.0
#include "store/registry.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>
#include <system_error>

#include "base/join.hpp"
#include "base/quote.hpp"
#include "documents/names.hpp"
#include "http/url.hpp"
#include "kiln/error.hpp"
#include "settings/settings.hpp"
#include "store/bundle.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

bool is_url(std::string_view text) {
  return text.starts_with("http://") || text.starts_with("https://");
}

/// "ghcr.io/acme": a host's name with a dot before its first slash, and no such folder here.
bool looks_like_host(const std::string& text, const fs::path& folder) {
  std::error_code error;
  const std::size_t slash = text.find('/');
  const std::size_t dot = text.find('.');
  return slash != std::string::npos && dot != 0 && dot < slash && !fs::exists(folder, error);
}

/// Refs and lock files, which are JSON, hold the name.
void check_utf8(const std::string& registry) {
  if (is_utf8(registry)) return;
  throw Error(ErrorCode::kUsage, "open registry " + quote(registry) +
                                     ": its name is not UTF-8, as the documents are that hold it. "
                                     "Give it another name");
}

std::string canonical_folder(const std::string& written) {
  std::error_code error;
  fs::path folder = fs::absolute(written, error).lexically_normal();
  if (error) {
    throw Error(ErrorCode::kUsage, "open registry " + quote(written) +
                                       ": the path is relative and the working folder is gone (" +
                                       error.message() + "). Give the full path");
  }
  if (looks_like_host(written, folder)) {
    throw Error(ErrorCode::kNotFound, "open registry " + written +
                                          ": there is no such folder. Did you mean https://" +
                                          written + "?");
  }
  if (!folder.has_filename()) folder = folder.parent_path();  // "/a/b/" is "/a/b"
  check_utf8(folder.string());
  return folder.string();
}

std::vector<std::string> list_place(const std::string& place, const Settings& settings,
                                    const Patience& patience, Traffic& traffic) {
  if (is_url(place)) return list_remote(place, settings, patience, traffic);
  std::error_code error;
  if (fs::is_regular_file(place, error)) {
    std::vector<std::string> names;
    for (const BundledKernel& kernel : bundle_contents(place)) names.push_back(kernel.name);
    return names;
  }
  open_folder(place, "packages", traffic);  // that it is there and may be read
  return list_folder(place);
}

}  // namespace

std::string canonical_registry(const std::string& requested, const Settings& settings) {
  std::string registry = requested;
  if (registry.empty()) registry = settings.registry;
  if (registry.empty()) registry = default_registry();
  check_utf8(registry);
  if (is_url(registry)) return canonical_url(registry, settings.insecure_http);
  constexpr std::string_view kFile = "file://";
  if (registry.starts_with(kFile)) {
    registry.erase(0, kFile.size());
  } else if (registry.find("://") != std::string::npos) {
    throw Error(ErrorCode::kUsage, "open registry " + registry +
                                       ": expected a folder, https://host[:port][/prefix], or "
                                       "http:// of this machine. Correct the registry's name");
  }
  return canonical_folder(registry);
}

std::unique_ptr<Repository> open_repository(const std::string& registry, std::string_view name,
                                            const Settings& settings, const Patience& patience,
                                            Traffic& traffic) {
  std::vector<std::string> mirrors = mirrors_of(registry, settings);
  return mirrors.empty()
             ? open_place(registry, name, settings, patience, traffic)
             : open_mirrored(registry, std::move(mirrors), name, settings, patience, traffic);
}

std::unique_ptr<Repository> open_place(const std::string& place, std::string_view name,
                                       const Settings& settings, const Patience& patience,
                                       Traffic& traffic) {
  if (is_url(place)) return open_remote(place, name, settings, patience, traffic);
  std::error_code error;
  return fs::is_regular_file(place, error) ? open_bundle(place, name, traffic)
                                           : open_folder(place, name, traffic);
}

Patience of_mirror(Patience patience) {
  constexpr int kTries = 2;
  patience.limits.tries = std::min(patience.limits.tries, kTries);
  patience.is_of_mirror = true;
  return patience;
}

std::vector<std::string> list_packages(const std::string& registry, const Settings& settings,
                                       const Patience& patience, Traffic& traffic) {
  std::vector<std::string> places = mirrors_of(registry, settings);
  places.push_back(registry);
  std::set<std::string> names;  // of all of them: a mirror may have a part
  bool answered = false;
  for (const std::string& place : places) {
    const bool is_last = &place == &places.back();
    if (!is_last && traffic.left.contains(place)) continue;
    try {
      const Patience own = is_last ? patience : of_mirror(patience);
      for (std::string& name : list_place(place, settings, own, traffic)) {
        names.insert(std::move(name));
      }
      answered = true;
    } catch (const Error& failure) {
      if (!is_last && failure.code() == ErrorCode::kNetwork) traffic.left.insert(place);
      if (failure.code() == ErrorCode::kCancelled || (is_last && !answered)) throw;
      if (!patience.on_event) continue;
      patience.on_event({Event::Stage::kRetry, "packages of " + registry, 0, 0,
                         place + " is left: " + failure.what()});
    }
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> mirrors_of(const std::string& registry, const Settings& settings) {
  std::string best;
  const std::vector<std::string>* found = nullptr;
  for (const auto& [written, mirrors] : settings.mirrors) {
    const std::string origin = canonical_registry(written, settings);
    const bool covers = registry == origin || registry.starts_with(origin + "/");
    if (!covers || (found != nullptr && origin.size() <= best.size())) continue;
    best = origin;
    found = &mirrors;
  }
  std::vector<std::string> result;
  if (found == nullptr) return result;
  for (const std::string& mirror : *found) {
    const std::string root = canonical_registry(mirror, settings);
    result.push_back(canonical_registry(root + registry.substr(best.size()), settings));
  }
  return result;
}

std::string listed(const std::vector<int>& versions) {
  constexpr std::size_t kShown = 20;
  if (versions.empty()) return "none";
  const std::size_t shown = std::min(versions.size(), kShown);
  std::string list = join(std::span(versions).last(shown), ", ",
                          [](int version) { return std::to_string(version); });
  if (shown == versions.size()) return list;
  return std::to_string(versions.size() - shown) + " older ones, " + list;
}

void fail_no_version(std::string_view name, int version, const std::string& registry,
                     const std::vector<int>& published) {
  if (std::ranges::find(published, version) != published.end()) {
    throw Error(ErrorCode::kNotFound, "find " + label(name, version) + " in " + registry +
                                          ": the registry lists this version and does not have "
                                          "its index. Try again later, or tell its publisher");
  }
  throw Error(ErrorCode::kNotFound,
              "find " + label(name, version) + " in " + registry +
                  ": there is no such version; published: " + listed(published) +
                  ". Ask for one of these, or check the registry's name");
}

}  // namespace kiln
