// SPDX-License-Identifier: Apache-2.0
#include "select.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "fallback.hpp"
#include "host.hpp"
#include "kiln/error.hpp"
#include "probe.hpp"
#include "pull.hpp"
#include "settings.hpp"
#include "verify.hpp"

namespace kiln {
namespace {

constexpr std::size_t kMaxOtherVersions = 8;  // that are tried for a hint

std::string label(std::string_view name, int version) {
  return std::string(name) + "@" + std::to_string(version);
}

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

/// Parses verified bytes; the registry chose them, so they must speak of what was asked for.
Index read_index(const std::string& bytes, std::string_view name, int version,
                 const std::string& registry) {
  Index index = parse_index(bytes, "index " + label(name, version));
  if (index.name != name || index.version != version) {
    throw Error(ErrorCode::kIntegrity, "read index of " + label(name, version) +
                                           ": it is the one of " +
                                           label(index.name, index.version) + " (from " + registry +
                                           "); nothing was loaded. Tell the registry's publisher");
  }
  return index;
}

/// A published version only grows. A variant that changed or went means that the registry, or
/// someone in front of it, answers with other bytes for the same version.
void check_only_grown(const Index& before, const Index& after, const std::string& registry,
                      const std::filesystem::path& ref) {
  for (const Variant& old : before.variants) {
    const auto same = std::find_if(after.variants.begin(), after.variants.end(),
                                   [&](const Variant& each) { return each.id == old.id; });
    const bool gone = same == after.variants.end();
    if (!gone && same->manifest.digest == old.manifest.digest) continue;
    throw Error(
        ErrorCode::kIntegrity,
        "verify index of " + label(before.name, before.version) + ": variant " + old.id +
            (gone ? " is gone, it was " : " is now " + same->manifest.digest.str() + ", it was ") +
            old.manifest.digest.str() + " (from " + registry +
            "); a published version never changes, nothing was loaded. Tell the registry's "
            "publisher; if you rebuilt it yourself, remove " +
            ref.string());
  }
}

/// The cached ref and its index. Nothing if either is missing, or damaged while the registry is
/// asked anyway.
struct Remembered {
  Descriptor descriptor;
  Index index;
};
std::optional<Remembered> recall(const Selecting& self) {
  const int version = self.request.version;
  try {
    const std::optional<Ref> ref = self.cache.read_ref(self.source.registry(), self.name, version);
    if (!ref) return std::nullopt;
    const std::optional<std::string> bytes =
        self.cache.read_document(ref->index, "index of " + label(self.name, version));
    if (!bytes) return std::nullopt;
    return Remembered{ref->index, read_index(*bytes, self.name, version, self.source.registry())};
  } catch (const Error& error) {
    if (self.request.refresh && error.code() == ErrorCode::kIntegrity) return std::nullopt;
    throw;
  }
}

/// The sonames that the index looks up: on this machine, or in the facts of the one asked for,
/// which must speak of them all. Otherwise this machine's answer could differ from that one's.
void look_up_libraries(const Selecting& self, Host& host, const Index& index) {
  if (!self.request.host) return probe_libraries(host, index);
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

void resolve_index(Selecting& self, Host& host) {
  Selected& selected = self.selected;
  look_up_libraries(self, host, selected.index);
  selected.resolution = resolve(host, selected.index, selection_of(self.request));
}

/// Takes the registry's index in place of what is known so far.
void ask_registry(Selecting& self, const std::optional<Remembered>& known) {
  const int version = self.request.version;
  self.report(Event::Stage::kIndex, label(self.name, version), 0, 0);
  const std::string package = label(self.name, version);
  Document document = self.source.open(package, "index of " + package).index(self.name, version);
  Index index = read_index(document.bytes, self.name, version, self.source.registry());
  if (known) {
    check_only_grown(known->index, index, self.source.registry(),
                     self.cache.ref_path(self.source.registry(), self.name, version));
  }
  self.report(Event::Stage::kIndex, label(self.name, version), document.bytes.size(),
              document.bytes.size());
  self.selected.descriptor = document.descriptor;
  self.selected.index = std::move(index);
  self.fetched_index = std::move(document.bytes);
}

/// By digest: no tag is asked, and nobody can answer with another state of the version.
void take_locked_index(Selecting& self) {
  const LockedKernel& locked = self.held->kernel;
  const std::string package = label(self.name, locked.version);
  const std::string what = "index of " + package;
  std::optional<std::string> bytes = read_cached(self, locked.index, what);
  if (!bytes) {
    Source& source = self.source.open(package, what);
    self.report(Event::Stage::kIndex, package, 0, locked.index.size);
    try {
      bytes = source.manifest(self.name, locked.index);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNotFound) throw;
      throw Error(ErrorCode::kLock, "lock " + package + ": " + self.held->file.string() +
                                        " names index " + locked.index.digest.str() + ", which " +
                                        source.registry() + " does not have (" + error.what() +
                                        "). Run 'kiln lock' to take the one that it has");
    }
    verify_bytes(*bytes, locked.index, {what, source.registry(), ""});
    self.report(Event::Stage::kIndex, package, bytes->size(), locked.index.size);
    self.fetched_index = bytes;
  }
  self.selected.descriptor = locked.index;
  self.selected.index = read_index(*bytes, self.name, locked.version, self.source.registry());
}

/// "geglu-mlp@3 has a build for this machine", or nothing.
std::string other_version(Selecting& self, Host& host) {
  Source& source = self.source.open(self.name, "versions of " + self.name);
  std::vector<int> versions = source.versions(self.name);
  std::reverse(versions.begin(), versions.end());
  std::size_t tried = 0;
  for (const int version : versions) {
    if (version == self.request.version) continue;
    if (++tried > kMaxOtherVersions) break;
    try {
      const Document document = source.index(self.name, version);
      const Index index = read_index(document.bytes, self.name, version, self.source.registry());
      look_up_libraries(self, host, index);
      Selection selection = selection_of(self.request);
      selection.variant.clear();
      const Resolution resolution = resolve(host, index, selection);
      if (resolution.chosen) {
        return label(self.name, version) +
               " has a build for this machine: " + index.variants[*resolution.chosen].id +
               ". Ask for version " + std::to_string(version);
      }
    } catch (const Error& error) {
      // An index that this Kiln cannot read is no help; a registry that is gone has no answer.
      if (error.code() == ErrorCode::kNetwork) throw;
    }
  }
  return {};
}

std::string no_variant_text(Selecting& self, Host& host, const std::string& not_asked) {
  const Resolution& resolution = self.selected.resolution;
  std::string text = "resolve " + label(self.name, self.request.version) +
                     ": no variant fits this machine (index " +
                     self.selected.descriptor.digest.brief() + " of " + self.source.registry() +
                     ")\n" + resolution.explain();
  const auto add_line = [&](const std::string& line) {
    if (line.empty() || text.find(line) != std::string::npos) return;
    if (!text.empty() && text.back() != '\n') text += '\n';
    text += line;
  };
  add_line(resolution.hint);
  if (!self.request.fallback.empty()) return text;  // the caller knows what to try instead
  if (!not_asked.empty()) {
    add_line("the registry was not asked for newer builds: " + not_asked);
    return text;
  }
  try {
    add_line(other_version(self, host));
  } catch (const Error& error) {
    add_line("the registry was not asked for other versions: " + std::string(error.what()));
  }
  return text;
}

}  // namespace

Selection selection_of(const Request& request) {
  Selection selection{request.device, request.variant, request.allow_jit, request.all_gpus,
                      request.deny};
  const Settings settings = load_settings();
  selection.deny.insert(selection.deny.end(), settings.deny.begin(), settings.deny.end());
  return selection;
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
  Selecting self{std::string(name),   request, Cache(request.cache, request.stop),
                 LazySource(request), {},      {},
                 std::move(held)};
  check_request(name, request, self.cache, self.source);
  self.selected.registry = self.source.registry();
  return self;
}

void find_newest_index(Selecting& self) {
  if (self.held) return take_locked_index(self);
  const std::optional<Remembered> known = recall(self);
  if (known && self.source.offline()) {
    self.selected.descriptor = known->descriptor;
    self.selected.index = known->index;
  } else {
    ask_registry(self, known);
  }
}

Selecting start_selecting(std::string_view name, const Request& request) {
  check_name(name);
  Request effective = request;
  std::optional<Held> held = hold_to_lock(name, effective);
  Selecting self = begin_selecting(name, effective, std::move(held));
  Host host = request.host ? *request.host : probe_host();

  std::string not_asked;
  if (self.held) {
    take_locked_index(self);
    not_asked = self.held->file.string() + " pins this index; 'kiln lock' takes newer ones";
    resolve_index(self, host);
  } else if (const std::optional<Remembered> known = recall(self); known && !request.refresh) {
    self.selected.descriptor = known->descriptor;
    self.selected.index = known->index;
    resolve_index(self, host);
    if (!self.selected.resolution.chosen) {
      try {
        ask_registry(self, known);  // variants may have been added
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
    ask_registry(self, known);
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
