// SPDX-License-Identifier: Apache-2.0
#include "install/select.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "documents/host.hpp"
#include "documents/names.hpp"
#include "install/fallback.hpp"
#include "install/find_index.hpp"
#include "install/no_variant.hpp"
#include "kiln/error.hpp"
#include "probe/probe.hpp"
#include "resolve/rules.hpp"
#include "settings/settings.hpp"

namespace kiln {
namespace {

std::string listed(const std::vector<int>& versions) {
  std::string list;
  for (const int version : versions) list += (list.empty() ? "" : ", ") + std::to_string(version);
  return list.empty() ? "none" : list;
}

void check_name(std::string_view name) {
  if (is_package_name(name)) return;
  throw Error(ErrorCode::kUsage, "get kernel '" + std::string(name) +
                                     "': that is no package name; expected words of a-z and 0-9 "
                                     "joined by '-', at most 64 characters");
}

std::vector<int> cached_versions(const Cache& cache, const std::string& registry,
                                 std::string_view name) {
  std::vector<int> versions;
  for (const Ref& ref : cache.refs()) {
    if (ref.registry == registry && ref.name == name) versions.push_back(ref.version);
  }
  return versions;
}

void check_request(std::string_view name, const Request& request, const Cache& cache,
                   LazySource& source) {
  check_name(name);
  if (request.version > 0) return;
  const std::string asked = "get kernel " + std::string(name) + ": version is " +
                            std::to_string(request.version) +
                            ", expected a published one, which pins the exact build; ";
  if (source.offline()) {
    throw Error(ErrorCode::kUsage, asked + "offline, the cache has: " +
                                       listed(cached_versions(cache, source.registry(), name)));
  }
  const std::vector<int> versions = source.open(name, "versions").versions(name);
  throw Error(ErrorCode::kUsage, asked + source.registry() + " has: " + listed(versions));
}

void resolve_index(Selecting& self, Host& host) {
  look_up_libraries(self.request, host, self.selected.index);
  self.selected.resolution = resolve(host, self.selected.index, selection_of(self.request));
}

}  // namespace

Selection selection_of(const Request& request) {
  Selection selection{request.device, request.variant, request.allow_jit, request.all_gpus,
                      request.deny};
  const Settings settings = load_settings();
  selection.deny.insert(selection.deny.end(), settings.deny.begin(), settings.deny.end());
  return selection;
}

void look_up_libraries(const Request& request, Host& host, const Index& index) {
  if (!request.host) {
    return probe_libraries(host, deciding_libraries(host, index, selection_of(request)));
  }
  std::string unknown;
  for (const std::string& soname : unknown_libraries(host, index)) {
    unknown += (unknown.empty() ? "" : ", ") + soname;
  }
  if (unknown.empty()) return;
  const std::string package = label(index.name, index.version);
  throw Error(ErrorCode::kUsage, "resolve " + package + ": the facts" +
                                     (host.origin.empty() ? "" : " in " + host.origin) +
                                     " do not say whether that machine has " + unknown +
                                     ". Write them there again with 'kiln host " + package +
                                     " --json'");
}

void check_loadable(std::string_view name, const Request& request) {
  if (!request.host) return;
  throw Error(ErrorCode::kUsage, "get kernel " + std::string(name) +
                                     ": the request has the facts of another machine, and a kernel "
                                     "is loaded on this one. Leave Request::host to install");
}

bool is_offline(const Request& request) {
  if (request.offline) return true;
  const char* value = std::getenv("KILN_OFFLINE");
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

LazySource::LazySource(const Request& request)
    : registry_(canonical_registry(request.registry)),
      from_(request.from.empty() ? "" : canonical_registry(request.from)),
      offline_(is_offline(request)),
      options_{request.on_event, request.stop} {}

Source& LazySource::open(std::string_view package, std::string_view what) {
  // A folder or a bundle that the request names is no network.
  if (offline_ && !from_.starts_with('/')) {
    throw Error(ErrorCode::kOffline,
                "fetch " + std::string(what) + ": it is not in the cache, and offline nothing is " +
                    "fetched (from " + registry_ + "). Run 'kiln install " + std::string(package) +
                    "' online once, with the same cache and registry, or bring a bundle: " +
                    "'kiln install --from FILE'");
  }
  if (!source_) source_ = open_source(from_.empty() ? registry_ : from_, options_);
  return *source_;
}

Selecting begin_selecting(std::string_view name, const Request& request, std::optional<Held> held) {
  Selecting self{.name = std::string(name),
                 .request = request,
                 .cache = Cache(request.cache, request.stop),
                 .source = LazySource(request),
                 .held = std::move(held)};
  check_request(name, request, self.cache, self.source);
  self.selected.registry = self.source.registry();
  return self;
}

Selecting start_selecting(std::string_view name, const Request& request) {
  check_name(name);
  Request effective = request;
  std::optional<Held> held = hold_to_lock(name, effective);
  Selecting self = begin_selecting(name, effective, std::move(held));
  const bool for_gpu = request.device.kind != Device::Kind::kCpu || request.all_gpus;
  Host host = request.host ? *request.host : probe_host(for_gpu);

  std::string not_asked;
  if (self.held) {
    take_locked_index(self);
    not_asked = self.held->file.string() + " pins this index; 'kiln lock' takes newer ones";
    resolve_index(self, host);
  } else if (recall_index(self) && !request.refresh) {
    resolve_index(self, host);
    if (!self.selected.resolution.chosen) {
      try {
        ask_index(self);  // variants may have been added
        resolve_index(self, host);
      } catch (const Error& error) {
        switch (error.code()) {
          case ErrorCode::kNetwork:
          case ErrorCode::kNotFound:
            not_asked = error.what();
            break;
          case ErrorCode::kOffline:
            not_asked = "offline nothing is fetched";
            break;
          default:
            throw;
        }
      }
    }
  } else {
    ask_index(self);
    resolve_index(self, host);
  }
  if (!self.selected.resolution.chosen) {
    self.selected.no_variant = no_variant_text(self, host, not_asked);
  }
  self.selected.requests = self.source.requests();
  self.selected.bytes_fetched = self.source.bytes_fetched();
  return self;
}

std::vector<int> known_versions(std::string_view name, const Request& request) {
  check_name(name);
  LazySource source(request);
  std::vector<int> versions;
  if (source.offline()) versions = cached_versions(Cache(request.cache), source.registry(), name);
  if (!versions.empty()) return versions;
  versions = source.open(name, "versions of " + std::string(name)).versions(name);
  if (!versions.empty()) return versions;
  throw Error(ErrorCode::kNotFound, "find " + std::string(name) + " in " + source.registry() +
                                        ": no version of it is published. Check the registry");
}

Selected select(std::string_view name, const Request& request) {
  return select_or_fall_back(name, request).selected;
}

}  // namespace kiln
