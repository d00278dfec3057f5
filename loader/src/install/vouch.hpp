// SPDX-License-Identifier: Apache-2.0
//
// Vouch: who says which index a version is. A step of install, inside find_index: what it names is
// fetched by its digest from anywhere.
//
//   a registry with a trusted root    its signed metadata, out of the cache or brought up to date
//   an unsigned one                   the registry itself; then its ref in the cache
//   any other                         nobody: kTrust
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "documents/descriptor.hpp"
#include "store/cache.hpp"
#include "store/registry.hpp"
#include "trust/updater.hpp"

namespace kiln {

struct Settings;  // settings/settings.hpp

/// Whether signed metadata names the registry's versions. Throws kTrust for a registry that is
/// neither signed nor allowed to be unsigned.
bool is_signed(const std::string& registry, const Settings& settings);

/// Where trust::SignatureMemo keeps its file, next to trust.json; empty if that has no place.
std::filesystem::path verified_path();

/// The index of a version, and who signed that: other signers may name another index.
struct SignedIndex {
  Descriptor index;
  Digest signers;
  std::vector<Advisory> advisories = {};  ///< signed ones that may concern the version
};

/// One version of a package, as signed metadata speaks of it.
struct SignedVersion {
  int version = 0;
  Descriptor index;
  std::optional<std::string> yanked;      ///< why its publisher took it back
  std::optional<std::int64_t> published;  ///< when it was first signed, in seconds since 1970
};

/// The versions of a registry, ascending, by package, and the roles that could not be read.
struct SignedPackages {
  std::map<std::string, std::vector<SignedVersion>> versions;
  std::vector<trust::PassedRole> passed;

  /// Throws if a role that could not be read may have versions of this package.
  void check_is_known(const std::string& package) const;
};

/// Which versions a signed registry has. For one request and one thread.
///
/// Mirrors carry metadata as they carry bytes, and may be old. So every place is asked what is
/// newest, the mirrors and then the registry, and the newest state of all of them alone decides:
/// that a version is not there, that it was taken back. A place that does not answer, or whose
/// metadata does not hold, is reported and left; once another has answered, it gets little time.
class Vouch {
 public:
  /// `registry`: canonical, whose root is trusted; `from`: what is asked in its place, or empty.
  /// All of them outlive this.
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
  std::optional<SignedIndex> recall(const std::string& name, int version) const;

  /// Why the publisher took the version back, as far as the cached metadata says.
  std::optional<std::string> recall_yanked(const std::string& name, int version) const;

  /// The advisories that the cached metadata has for a version. Costs one look at a small file
  /// where none may speak of it.
  std::vector<Advisory> recall_advisories(const std::string& name, int version) const;

  /// Fills in what signed metadata says of each version, also of one that was yanked: with `ask`
  /// the registry's newest, else the cached. A version that it does not name stays empty.
  using Words = std::map<std::pair<std::string, int>, std::optional<trust::SignedTarget>>;
  void look_up(Words& words, bool ask) const;

  /// What the registry's newest metadata says. Throws kTrust for metadata that does not hold or has
  /// expired, and for a version that was yanked; kNotFound for one that it does not speak of.
  SignedIndex ask(const std::string& name, int version) const;

  /// All versions that the registry's newest metadata speaks of. Throws kTrust for metadata that
  /// does not hold or has expired; but of one publisher's, the others' versions are still listed.
  SignedPackages list() const;

  /// All versions that the cached metadata speaks of; none where it says nothing that holds.
  SignedPackages recall_list() const;

  /// Copies the artifact of the registry's metadata into the cache, to be carried elsewhere: its
  /// manifest, then what that names. Verifies nothing.
  std::vector<Descriptor> pull_metadata() const;

 private:
  /// Says whether the answer is whole: else another place of the same state is asked as well.
  using Question =
      std::function<bool(trust::Updater&, const trust::MetadataSource&, const Repository&)>;
  void ask_newest(const std::string& what, const Question& question) const;
  std::vector<std::string> places() const;
  void tell(const std::string& note) const;

  const std::string& registry_;
  const std::string& from_;
  const Settings& settings_;
  const Cache& cache_;
  const Patience& patience_;
  Traffic& traffic_;
};

}  // namespace kiln
