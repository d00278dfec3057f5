// SPDX-License-Identifier: Apache-2.0
//
// Vouch: who says which index a version is. A step of install, inside find_index: what it names is
// fetched by its digest from anywhere.
//
//   a registry with a trusted root    its signed metadata, out of the cache or brought up to date
//   an unsigned one                   the registry itself; then its ref in the cache
//   any other                         nobody: kTrust
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "documents/descriptor.hpp"
#include "settings/settings.hpp"
#include "store/cache.hpp"
#include "store/registry.hpp"

namespace kiln {

namespace trust {
class Updater;
class MetadataSource;
}  // namespace trust

/// Whether its versions are vouched for by signatures. Throws kTrust where nobody does.
bool is_signed(const std::string& registry, const Settings& settings);

/// What trust::SignatureMemo keeps, beside trust.json; empty where that has no place.
std::filesystem::path verified_path();

/// The index of a version, and whose word that is: other signers may say otherwise of it.
struct Vouched {
  Descriptor index;
  Digest signers;
};

/// One version of a package, as signed metadata speaks of it.
struct VouchedVersion {
  int version = 0;
  Descriptor index;
  std::optional<std::string> yanked;  ///< why its publisher took it back
};

/// Which versions a signed registry has. For one request and one thread.
class Vouch {
 public:
  /// `registry`: canonical, whose root is trusted; `from`: what is asked in its place, or empty.
  /// All are outlived.
  Vouch(const std::string& registry, const std::string& from, const Settings& settings,
        const Cache& cache, const Patience& patience, Traffic& traffic)
      : registry_(registry),
        from_(from),
        settings_(settings),
        cache_(cache),
        patience_(patience),
        traffic_(traffic) {}

  /// What the cached metadata says; nothing if it says nothing that holds. Throws kTrust for a
  /// version that was yanked.
  std::optional<Vouched> recall(const std::string& name, int version) const;

  /// What the registry's newest metadata says. Throws kTrust for metadata that does not hold or has
  /// expired, and for a version that was yanked; kNotFound for one that it does not speak of.
  Vouched ask(const std::string& name, int version) const;

  /// All versions that the registry's newest metadata speaks of, ascending, by package. Throws
  /// kTrust for metadata that does not hold or has expired.
  std::map<std::string, std::vector<VouchedVersion>> list() const;

  /// Puts the registry's metadata into the cache as the artifact that it is there, to be carried
  /// elsewhere: its manifest, then what that names. Nothing of it is verified.
  std::vector<Descriptor> pull_metadata() const;

 private:
  using Question = std::function<void(trust::Updater&, const trust::MetadataSource&)>;
  void ask_newest(const std::string& what, const Question& question) const;
  void ask_places(const std::function<void(const Repository&)>& question) const;

  const std::string& registry_;
  const std::string& from_;
  const Settings& settings_;
  const Cache& cache_;
  const Patience& patience_;
  Traffic& traffic_;
};

}  // namespace kiln
