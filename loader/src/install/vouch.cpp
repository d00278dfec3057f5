// SPDX-License-Identifier: Apache-2.0
#include "install/vouch.hpp"

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

#include "base/quote.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "oci/tag.hpp"
#include "store/copy.hpp"
#include "trust/repository_source.hpp"
#include "trust/updater.hpp"

namespace kiln {
namespace {

using trust::Expiry;
using trust::RepositorySource;
using trust::SignatureMemo;
using trust::Target;
using trust::target_name;
using trust::Updater;
using trust::Word;

Descriptor descriptor_of(const Target& target, const std::string& package,
                         const std::string& registry) {
  if (target.yanked) {
    throw Error(ErrorCode::kTrust, "find " + package +
                                       ": its publisher took it back: " + quote(*target.yanked) +
                                       " (from " + registry + "). Ask for another version");
  }
  const std::optional<Digest> digest = target.promise.sha256();
  if (!digest) {
    throw Error(ErrorCode::kTrust, "find " + package + ": the signed metadata of " + registry +
                                       " has no SHA-256 of it. Tell the registry's publisher");
  }
  return {std::string(kMediaTypeIndex), *digest, target.length};
}

Updater updater_of(const std::string& registry, const Settings& settings, const Cache& cache,
                   Expiry expiry, SignatureMemo& memo) {
  return {*settings.trust.root_of(registry),
          trust::MetadataFolder(cache.root(), "tuf/" + Digest::of(registry).hex()),
          registry,
          {std::time(nullptr), expiry},
          &memo};
}

}  // namespace

std::filesystem::path verified_path() {
  const std::filesystem::path trusted = trust_path();
  return trusted.empty() ? trusted : trusted.parent_path() / "verified";
}

bool is_signed(const std::string& registry, const Settings& settings) {
  if (settings.trust.root_of(registry) != nullptr) return true;
  if (settings.trust.is_unsigned(registry)) return false;
  std::error_code unknown;
  if (registry.starts_with('/') && !std::filesystem::exists(registry, unknown) && !unknown) {
    throw Error(ErrorCode::kNotFound,
                "open registry " + registry +
                    ": there is no such folder, and no root of it is trusted here. Name a registry "
                    "in the request or in KILN_REGISTRY, a folder or https://…; where kernels of "
                    "this one come from elsewhere, run 'kiln trust add " +
                    registry + " --root root.json'");
  }
  throw Error(ErrorCode::kTrust,
              "trust " + registry +
                  ": no root of it is trusted here, so nobody vouches for what it has; nothing was "
                  "loaded. Get its root.json from its publisher, by another way than the registry, "
                  "then run 'kiln trust add " +
                  registry + " --root root.json'; or believe it as it is: 'kiln trust add " +
                  registry + " --unsigned'");
}

std::optional<Vouched> Vouch::recall(const std::string& name, int version) const {
  SignatureMemo memo(verified_path());
  Updater updater = updater_of(registry_, settings_, cache_, Expiry::kTold, memo);
  const std::optional<Word> word = updater.recall(target_name(name, version));
  memo.save();
  if (!word || (word->target.yanked && !settings_.offline)) return std::nullopt;
  return Vouched{descriptor_of(word->target, label(name, version), registry_), word->signers};
}

/// Asks a place after the other until one answers. A mirror may be old, or lie: the registry has
/// the last word.
void Vouch::ask_places(const std::function<void(const Repository&)>& question) const {
  std::vector<std::string> places = {from_};
  if (from_.empty()) {
    places = mirrors_of(registry_, settings_);
    places.push_back(registry_);
  }
  for (const std::string& place : places) {
    try {
      return question(*open_place(place, trust::kTrustRepository, settings_, patience_, traffic_));
    } catch (const Error& error) {
      if (place == places.back() || error.code() == ErrorCode::kCancelled) throw;
      if (!patience_.on_event) continue;
      patience_.on_event({Event::Stage::kRetry, "trust metadata of " + registry_, 0, 0,
                          "mirror " + place + " is left: " + error.what()});
    }
  }
}

/// Brings the metadata up to date, and asks it. `what` is asked for: "geglu-mlp@1".
void Vouch::ask_newest(const std::string& what, const Question& question) const {
  // A folder or a file that the request names may have come here by hand, long ago.
  const Expiry expiry = from_.starts_with('/') ? Expiry::kTold : Expiry::kRefused;
  const FileLock used = cache_.use_to_write();
  const FileLock held = cache_.lock(Digest::of("tuf/" + registry_));
  ask_places([&](const Repository& repository) {
    SignatureMemo memo(verified_path());
    Updater updater = updater_of(registry_, settings_, cache_, expiry, memo);
    const RepositorySource source(repository, patience_);
    updater.refresh(source);
    question(updater, source);
    memo.save();
    if (!patience_.on_event) return;
    for (const std::string& text : updater.expired()) {
      patience_.on_event({Event::Stage::kIndex, what, 0, 0, text});
    }
  });
}

Vouched Vouch::ask(const std::string& name, int version) const {
  const std::string package = label(name, version);
  std::optional<Word> word;
  ask_newest(package, [&](Updater& updater, const trust::MetadataSource& source) {
    word = updater.find(target_name(name, version), source);
  });
  if (word) return {descriptor_of(word->target, package, registry_), word->signers};
  throw Error(ErrorCode::kNotFound, "find " + package + " in " + registry_ +
                                        ": its signed metadata does not speak of it. Check the "
                                        "name and the version, or tell its publisher");
}

std::map<std::string, std::vector<VouchedVersion>> Vouch::list() const {
  std::map<std::string, Target> targets;
  ask_newest("packages", [&](Updater& updater, const trust::MetadataSource& source) {
    targets = updater.list(source);
  });
  std::map<std::string, std::vector<VouchedVersion>> packages;
  for (const auto& [name, target] : targets) {
    const std::size_t slash = std::min(name.find('/'), name.size() - 1);
    const std::string package = name.substr(0, slash);
    const int version = version_of_tag(name.substr(slash + 1));
    const std::optional<Digest> digest = target.promise.sha256();
    if (!is_package_name(package) || version == 0 || !digest) continue;  // of another client
    packages[package].push_back(
        {version, {std::string(kMediaTypeIndex), *digest, target.length}, target.yanked});
  }
  for (auto& [package, versions] : packages) {
    std::ranges::sort(versions, {}, &VouchedVersion::version);
  }
  return packages;
}

std::vector<Descriptor> Vouch::pull_metadata() const {
  std::vector<Descriptor> pulled;
  ask_places([&](const Repository& repository) {
    const std::optional<Document> manifest = repository.manifest(trust::kTrustTag);
    if (!manifest) {
      throw Error(ErrorCode::kNotFound, "fetch trust metadata of " + registry_ +
                                            ": there is none. Check the registry's name");
    }
    cache_.write_document(manifest->descriptor, manifest->bytes);
    pulled = {manifest->descriptor};
    for (const auto& [title, layer] :
         trust::parse_trust_manifest(manifest->bytes, repository.origin(manifest->descriptor))) {
      copy(repository, cache_, layer.descriptor, title + " of " + registry_, patience_);
      pulled.push_back(layer.descriptor);
    }
  });
  return pulled;
}

}  // namespace kiln
