// SPDX-License-Identifier: Apache-2.0
#include "install/source.hpp"

#include <utility>

#include "base/quote.hpp"
#include "documents/names.hpp"
#include "install/in_observer.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

std::string checked_name(std::string_view name) {
  if (is_package_name(name)) return std::string(name);
  throw Error(ErrorCode::kUsage, "get kernel " + quote(name) +
                                     ": not a package name; expected words of a-z and 0-9 joined "
                                     "by '-', at most 64 characters");
}

}  // namespace

Source::Source(std::string_view package, const Request& request)
    : name(checked_name(package)),
      version(request.version),
      settings(load_settings()),
      from(request.from.empty() ? "" : canonical_registry(request.from, settings)),
      patience{settings.limits, marked_observer(request.on_event), request.stop},
      cache(request.cache.empty() ? settings.cache : request.cache, request.stop,
            patience.on_event) {
  check_not_in_observer(name);
  if (request.offline) settings.offline = true;
}

void Source::choose_registry(const std::string& requested) {
  registry = canonical_registry(requested, settings);
  if (std::string built = build_output_in(from, name); !built.empty()) {
    is_built = true;
    registry = from = std::move(built);
  }
  is_signed = kiln::is_signed(registry, settings);
}

void Source::check_is_published(std::string_view operation) const {
  if (!is_built) return;
  throw Error(ErrorCode::kUsage, std::string(operation) + " " + name + ": " + registry +
                                     " is a build, which the next one changes. Publish it into a "
                                     "registry first: 'kiln registry publish'");
}

const Repository& Source::repository(std::string_view what, bool dev) {
  if (!may_ask()) {
    const std::string package =
        (dev ? "--dev " : "") + (version > 0 ? label(name, version) : name + "@VERSION");
    throw Error(ErrorCode::kOffline,
                "fetch " + std::string(what) + ": it is not in the cache, and offline nothing is " +
                    "fetched (from " + registry + "). Run 'kiln install " + package +
                    "' online once, with the same cache and registry, or bring a bundle: " +
                    "'kiln install --from FILE " + package + "'");
  }
  if (!repository_) {
    repository_ = is_built ? open_build_output(place(), name, traffic)
                           : open_repository(place(), name, settings, patience, traffic);
  }
  return *repository_;
}

Vouch Source::vouch() {
  return {registry, from, settings, cache, patience, traffic};
}

std::vector<int> Source::cached_versions() const {
  std::vector<int> versions;
  // One whose ref is damaged is there: whoever opens it is told so.
  const auto add_damaged = [&](const std::filesystem::path& path, const Error&) {
    const int each = parse_version_number(path.stem().string());
    if (path == cache.ref_path(registry, name, each)) versions.push_back(each);
  };
  for (const Ref& ref : cache.refs(add_damaged)) {
    if (ref.registry == registry && ref.name == name) versions.push_back(ref.version);
  }
  std::ranges::sort(versions);
  return versions;
}

std::vector<attest::Attestation> Source::attestations(const Descriptor& index) {
  std::vector<attest::Attestation> known = attest::recall_attestations(cache, index);
  if (!may_ask()) return known;
  const std::string what = "what was signed about " + label(name, version);
  return attest::join_attestations(
      std::move(known), attest::pull_attestations(repository(what), index, patience).list);
}

std::vector<Descriptor> Source::pull_metadata() {
  if (!is_signed) return {};
  if (!may_ask()) {
    throw Error(ErrorCode::kOffline,
                "fetch trust metadata of " + registry + ": a bundle of a signed registry carries " +
                    "what was signed last, and offline nothing is fetched. Make the bundle online, "
                    "or of what a lock file pins");
  }
  return vouch().pull_metadata();
}

}  // namespace kiln
