// SPDX-License-Identifier: Apache-2.0
#include "install/vouch.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "oci/tag.hpp"
#include "settings/settings.hpp"
#include "store/copy.hpp"
#include "trust/repository_source.hpp"
#include "trust/updater.hpp"

namespace kiln {
namespace {

using trust::Expiry;
using trust::RepositorySource;
using trust::SignatureMemo;
using trust::SignedTarget;
using trust::Target;
using trust::target_name;
using trust::Updater;

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

trust::MetadataFolder folder_of(const std::string& registry, const Cache& cache) {
  return {cache.root(), "tuf/" + Digest::of(registry).hex()};
}

Updater updater_of(const std::string& registry, const Settings& settings, const Cache& cache,
                   Expiry expiry, SignatureMemo& memo) {
  return {*settings.trust.root_of(registry),
          folder_of(registry, cache),
          registry,
          {std::time(nullptr), expiry},
          &memo};
}

SignedPackages packages_of(trust::Listed listed) {
  SignedPackages packages{{}, std::move(listed.passed)};
  for (const auto& [name, target] : listed.targets) {
    const std::size_t slash = std::min(name.find('/'), name.size() - 1);
    const std::string package = name.substr(0, slash);
    const int version = version_of_tag(name.substr(slash + 1));
    const std::optional<Digest> digest = target.promise.sha256();
    if (!is_package_name(package) || version == 0 || !digest) continue;  // of another client
    packages.versions[package].push_back({version,
                                          {std::string(kMediaTypeIndex), *digest, target.length},
                                          target.yanked,
                                          target.published});
  }
  for (auto& [package, versions] : packages.versions) {
    std::ranges::sort(versions, {}, &SignedVersion::version);
  }
  return packages;
}

/// For the places that are left once one has answered: each gets one try, and little time.
Patience briefly(Patience patience) {
  Limits& limits = patience.limits;
  limits.tries = 1;
  limits.connect = std::min(limits.connect, std::chrono::seconds(3));
  limits.stall = std::min(limits.stall, std::chrono::seconds(5));
  limits.deadline = std::min(limits.deadline, std::chrono::seconds(10));
  return patience;
}

/// A place whose metadata holds.
struct VouchingPlace {
  std::string name;
  std::unique_ptr<Repository> repository;
  std::unique_ptr<RepositorySource> source;
  Updater updater;
};

/// Why no place has answered: the registry's own reason, and those of its mirrors.
class Failures {
 public:
  void add(const std::string& place, const Error& error) {
    if (last_) mirrors_ += "\n  mirror " + place_ + ": " + last_->what();
    place_ = place;
    last_ = error;
  }
  [[noreturn]] void fail() const { throw Error(last_->code(), last_->what() + mirrors_); }

 private:
  std::string place_;
  std::optional<Error> last_;
  std::string mirrors_;
};

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
                    shell_word(registry) + " --root root.json'");
  }
  throw Error(ErrorCode::kTrust,
              "trust " + registry +
                  ": no root of it is trusted here, so nobody vouches for what it has; nothing was "
                  "loaded. Get its root.json from its publisher, by another way than the registry, "
                  "then run 'kiln trust add " +
                  shell_word(registry) +
                  " --root root.json'; or believe it as it is: 'kiln trust add " +
                  shell_word(registry) + " --unsigned'");
}

std::optional<SignedIndex> Vouch::recall(const std::string& name, int version) const {
  Words words = {{{name, version}, {}}};
  look_up(words, false);
  const std::optional<SignedTarget>& word = words.begin()->second;
  if (!word || (word->target.yanked && !settings_.offline)) return std::nullopt;
  return SignedIndex{descriptor_of(word->target, label(name, version), registry_), word->signers,
                     word->advisories};
}

std::optional<std::string> Vouch::recall_yanked(const std::string& name, int version) const {
  SignatureMemo memo(verified_path());
  const std::optional<SignedTarget> word =
      updater_of(registry_, settings_, cache_, Expiry::kTold, memo).recall(name, version);
  return word ? word->target.yanked : std::nullopt;
}

std::vector<Advisory> Vouch::recall_advisories(const std::string& name, int version) const {
  if (!trust::may_advise(folder_of(registry_, cache_), name, version)) return {};
  Words words = {{{name, version}, {}}};
  look_up(words, false);
  std::optional<SignedTarget>& word = words.begin()->second;
  return word ? std::move(word->advisories) : std::vector<Advisory>();
}

void Vouch::look_up(Words& words, bool ask) const {
  if (ask) {
    ask_newest("advisories",
               [&](Updater& updater, const trust::MetadataSource& source, const Repository&) {
                 for (auto& [of, word] : words) {
                   word = updater.find(target_name(of.first, of.second), source);
                 }
                 return true;
               });
    return;
  }
  SignatureMemo memo(verified_path());
  Updater updater = updater_of(registry_, settings_, cache_, Expiry::kTold, memo);
  for (auto& [of, word] : words) word = updater.recall(of.first, of.second);
  memo.save();
}

std::vector<std::string> Vouch::places() const {
  if (!from_.empty()) return {from_};
  std::vector<std::string> places = mirrors_of(registry_, settings_);
  places.push_back(registry_);
  return places;
}

void Vouch::tell(const std::string& note) const {
  if (!patience_.on_event) return;
  patience_.on_event({Event::Stage::kRetry, "trust metadata of " + registry_, 0, 0, note});
}

/// Brings the metadata up to date, and asks the newest. `what` is asked for: "geglu-mlp@1".
void Vouch::ask_newest(const std::string& what, const Question& question) const {
  // A folder or a file that the request names may have come here by hand, long ago.
  const Expiry expiry = from_.starts_with('/') ? Expiry::kTold : Expiry::kRefused;
  const FileLock used = cache_.use_to_write();
  const FileLock held = cache_.lock(Digest::of("tuf/" + registry_));
  SignatureMemo memo(verified_path());
  std::vector<VouchingPlace> answered;
  Failures failures;
  const std::vector<std::string> all = places();
  for (const std::string& name : all) {
    const bool is_mirror = name != all.back();
    if (is_mirror && traffic_.left.contains(name)) continue;
    try {
      Patience patience = answered.empty() ? patience_ : briefly(patience_);
      if (is_mirror) patience = of_mirror(patience);
      VouchingPlace place{name,
                          open_place(name, trust::kTrustRepository, settings_, patience, traffic_),
                          nullptr, updater_of(registry_, settings_, cache_, expiry, memo)};
      place.source = std::make_unique<RepositorySource>(*place.repository, patience);
      place.updater.refresh(*place.source);
      answered.push_back(std::move(place));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled) throw;
      if (is_mirror && error.code() == ErrorCode::kNetwork) traffic_.left.insert(name);
      if (all.size() > 1) tell(name + " is left: " + error.what());
      failures.add(name, error);
    }
  }
  memo.save();
  if (answered.empty()) failures.fail();
  const auto newest = std::ranges::max_element(
      answered, {}, [](const VouchingPlace& each) { return each.updater.state(); });
  const auto state = newest->updater.state();
  const std::string newest_name = newest->name;
  for (const VouchingPlace& each : answered) {
    if (each.updater.state() == state) continue;
    tell(each.name + " is behind: its timestamp is " + std::to_string(each.updater.state().second) +
         ", " + newest_name + " has " + std::to_string(state.second));
  }
  std::erase_if(answered, [&](const VouchingPlace& each) { return each.updater.state() != state; });
  for (VouchingPlace& each : answered) {
    const bool is_last = &each == &answered.back();
    try {
      const bool is_whole = question(each.updater, *each.source, *each.repository);
      memo.save();
      if (!is_whole && !is_last) continue;
      if (!patience_.on_event) return;
      for (const std::string& text : each.updater.told()) {
        patience_.on_event({Event::Stage::kIndex, what, 0, 0, text});
      }
      return;
    } catch (const Error& error) {
      if (is_last || error.code() == ErrorCode::kCancelled) throw;
      tell(each.name + " is left: " + error.what());
    }
  }
}

SignedIndex Vouch::ask(const std::string& name, int version) const {
  const std::string package = label(name, version);
  std::optional<SignedTarget> word;
  ask_newest(package,
             [&](Updater& updater, const trust::MetadataSource& source, const Repository&) {
               word = updater.find(target_name(name, version), source);
               return true;
             });
  if (word) {
    return {descriptor_of(word->target, package, registry_), word->signers, word->advisories};
  }
  throw Error(ErrorCode::kNotFound, "find " + package + " in " + registry_ +
                                        ": its signed metadata does not speak of it. Check the "
                                        "name and the version, or tell its publisher");
}

void SignedPackages::check_is_known(const std::string& package) const {
  for (const trust::PassedRole& each : passed) {
    if (trust::may_speak_of(each.by, package)) throw Error(each.why);
  }
}

SignedPackages Vouch::list() const {
  trust::Listed listed;
  ask_newest("packages",
             [&](Updater& updater, const trust::MetadataSource& source, const Repository&) {
               listed = updater.list(source);
               return listed.passed.empty();
             });
  return packages_of(std::move(listed));
}

SignedPackages Vouch::recall_list() const {
  SignatureMemo memo(verified_path());
  Updater updater = updater_of(registry_, settings_, cache_, Expiry::kTold, memo);
  return packages_of(updater.recall_list());
}

/// Of the place that has the newest, which a client there then refreshes from.
std::vector<Descriptor> Vouch::pull_metadata() const {
  std::vector<Descriptor> pulled;
  ask_newest(
      "trust metadata", [&](Updater&, const trust::MetadataSource&, const Repository& repository) {
        const std::optional<Document> manifest = repository.manifest(trust::kTrustTag);
        if (!manifest) {
          throw Error(ErrorCode::kNotFound, "fetch trust metadata of " + registry_ +
                                                ": there is none. Check the registry's name");
        }
        cache_.write_document(manifest->descriptor, manifest->bytes);
        pulled = {manifest->descriptor};
        for (const auto& [title, layer] : trust::parse_trust_manifest(
                 manifest->bytes, repository.origin(manifest->descriptor))) {
          copy(repository, cache_, layer.descriptor, title + " of " + registry_, patience_);
          pulled.push_back(layer.descriptor);
        }
        return true;
      });
  return pulled;
}

}  // namespace kiln
