// SPDX-License-Identifier: Apache-2.0
#include "install/catalog.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/ascii.hpp"
#include "base/quote.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "install/parallel.hpp"
#include "install/vouch.hpp"
#include "kiln/error.hpp"
#include "store/copy.hpp"

namespace kiln {
namespace {

constexpr std::size_t kMaxSearched = 1000;  // a request or two each

bool has_all(const FoundPackage& package, const std::vector<std::string>& words) {
  const std::string text = lower_case(package.name + "\n" + package.summary);
  return std::ranges::all_of(words, [&](const std::string& word) {
    return text.find(lower_case(word)) != std::string::npos;
  });
}

/// A package to look into. `index`: what signed metadata says its newest version is.
struct Named {
  std::string name;
  int version = 0;
  std::optional<Descriptor> index;
};

std::vector<Named> vouched_packages(const Vouch& vouch, std::vector<UnreadPublisher>& unread) {
  std::vector<Named> named;
  const SignedPackages packages = vouch.list();
  for (const trust::PassedRole& each : packages.passed) unread.push_back({each.by.role, each.why});
  for (const auto& [name, versions] : packages.versions) {
    const auto newest = std::find_if(versions.rbegin(), versions.rend(),
                                     [](const SignedVersion& each) { return !each.yanked; });
    if (newest != versions.rend()) named.push_back({name, newest->version, newest->index});
  }
  return named;
}

FoundPackage look_into(const Repository& from, const Named& named, const Patience& patience) {
  FoundPackage found{.name = named.name, .version = named.version};
  std::string bytes;
  if (named.index) {
    bytes =
        read_document(from, *named.index, "index of " + label(named.name, named.version), patience);
  } else {
    const std::vector<int> versions = from.versions();
    if (versions.empty()) return found;
    found.version = versions.back();
    bytes = from.index(found.version).bytes;
  }
  const Index index = parse_index(bytes, "index " + label(named.name, found.version));
  found.variants = index.variants.size();
  found.summary = index.summary;
  return found;
}

}  // namespace

Catalog::Catalog(std::string_view name, const Request& request) : source_(name, request) {
  source_.choose_registry(request.registry);
}

std::vector<int> Catalog::known_versions() {
  std::vector<int> versions;
  if (source_.settings.offline) versions = source_.cached_versions();
  if (!versions.empty()) return versions;
  versions = source_.repository("versions of " + source_.name).versions();
  if (!versions.empty()) return versions;
  throw Error(ErrorCode::kNotFound, "find " + source_.name + " in " + source_.registry +
                                        ": no version of it is published. Check the registry");
}

std::vector<PublishedVersion> Catalog::published() {
  std::vector<PublishedVersion> versions;
  if (source_.is_signed) {
    const bool offline = source_.settings.offline;
    const SignedPackages packages =
        offline ? source_.vouch().recall_list() : source_.vouch().list();
    if (!offline) packages.check_is_known(source_.name);
    const auto found = packages.versions.find(source_.name);
    if (found != packages.versions.end()) {
      for (const SignedVersion& each : found->second) {
        versions.push_back({each.version, each.yanked, each.published});
      }
      return versions;
    }
    if (!offline) {
      throw Error(ErrorCode::kNotFound, "find " + source_.name + " in " + source_.registry +
                                            ": its signed metadata does not speak of it. Check the "
                                            "name; 'kiln search' lists what it vouches for");
    }
  }
  for (const int version : known_versions()) versions.push_back({version, {}});
  return versions;
}

std::vector<PublishedVersion> Catalog::obtainable() {
  std::vector<PublishedVersion> versions = published();
  if (!source_.settings.offline) return versions;
  const std::vector<int> known = known_versions();
  std::erase_if(versions, [&](const PublishedVersion& each) {
    return std::ranges::find(known, each.version) == known.end();
  });
  return versions;
}

int Catalog::newest_version() {
  const std::vector<PublishedVersion> versions = obtainable();
  if (const int newest = newest_of(versions); newest != 0) return newest;
  if (versions.empty()) {
    throw Error(ErrorCode::kOffline, "find " + source_.name + " in " + source_.registry +
                                         ": the signed metadata in the cache speaks of no version "
                                         "that the cache has. Run it online once");
  }
  throw Error(ErrorCode::kTrust, "find " + source_.name + " in " + source_.registry +
                                     ": its publisher took back every version; the newest: " +
                                     quote(*versions.back().yanked) + ". Ask its publisher");
}

int newest_of(const std::vector<PublishedVersion>& versions) {
  int newest = 0;
  for (const PublishedVersion& each : versions) {
    if (!each.yanked) newest = std::max(newest, each.version);
  }
  return newest;
}

bool is_aged(const PublishedVersion& version, std::chrono::seconds age, std::int64_t now) {
  return age.count() == 0 || (version.published && *version.published <= now - age.count());
}

Aged newest_aged(const std::vector<PublishedVersion>& versions, std::chrono::seconds age,
                 std::int64_t now) {
  Aged aged;
  for (const PublishedVersion& each : versions) {
    if (each.yanked || !is_aged(each, age, now)) continue;
    aged.version = std::max(aged.version, each.version);
  }
  std::ranges::copy_if(versions, std::back_inserter(aged.passed), [&](const auto& each) {
    return !each.yanked && each.version > aged.version;
  });
  return aged;
}

SearchResult search(const Request& request, const std::vector<std::string>& words) {
  Settings settings = load_settings();
  settings.offline = settings.offline || request.offline;
  SearchResult result{.registry = canonical_registry(request.registry, settings)};
  result.is_signed = is_signed(result.registry, settings);
  const std::string from = request.from.empty() ? "" : canonical_registry(request.from, settings);
  const std::string& place = from.empty() ? result.registry : from;
  if (settings.offline && !place.starts_with('/')) {
    throw Error(ErrorCode::kOffline, "search " + place +
                                         ": offline nothing is asked. 'kiln list' says what is "
                                         "installed");
  }
  const Patience patience{settings.limits, one_at_a_time(request.on_event), request.stop};
  Traffic traffic;
  std::vector<Named> named;
  if (result.is_signed) {
    const Cache cache(request.cache.empty() ? settings.cache : request.cache, request.stop,
                      patience.on_event);
    named = vouched_packages(Vouch(result.registry, from, settings, cache, patience, traffic),
                             result.unread);
  } else {
    for (std::string& name : list_packages(place, settings, patience, traffic)) {
      named.push_back({std::move(name), 0, {}});
    }
  }
  if (named.size() > kMaxSearched) {
    result.left_out = named.size() - kMaxSearched;
    named.resize(kMaxSearched);
  }
  std::vector<FoundPackage> found(named.size());
  in_parallel(named.size(), kDownloadsAtOnce, request.stop,
              [&](std::size_t i, const std::stop_token& stop) {
                Patience own = patience;
                own.stop = stop;
                Traffic ignored;
                try {
                  found[i] =
                      look_into(*open_repository(place, named[i].name, settings, own, ignored),
                                named[i], own);
                } catch (const Error& error) {
                  if (error.code() == ErrorCode::kCancelled) throw;
                  found[i] = {.name = named[i].name, .version = named[i].version, .problem = error};
                }
              });
  std::ranges::copy_if(found, std::back_inserter(result.packages), [&](const auto& package) {
    return package.problem || (package.version != 0 && has_all(package, words));
  });
  return result;
}

}  // namespace kiln
