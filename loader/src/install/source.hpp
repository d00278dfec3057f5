// SPDX-License-Identifier: Apache-2.0
//
// Source: where the bytes of one request come from: the package's registry or what stands in for
// it, what vouches for it there, and the cache that they go to. Before install and catalog, which
// share it. For one request and one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attest/attestations.hpp"
#include "install/vouch.hpp"
#include "kiln/request.hpp"
#include "settings/settings.hpp"
#include "store/cache.hpp"
#include "store/registry.hpp"

namespace kiln {

struct Source {
  /// Reads the settings. No registry is chosen yet. Throws kUsage, kCache.
  Source(std::string_view name, const Request& request);

  std::string name;
  int version;  ///< of the request; 0: it names none
  Settings settings;
  std::string from;  ///< asked in the registry's place; empty: the registry itself
  Patience patience;
  Cache cache;
  std::string registry;    ///< canonical: what the bytes are known by, wherever they come from
  bool is_built = false;   ///< both are what `kiln build` left in a folder
  bool is_signed = false;  ///< signed metadata says which index a version is; else tags and refs
  Traffic traffic;

  /// Takes this registry, or the one that the settings name; a build that `from` names is one of
  /// its own. Throws kTrust where nobody vouches.
  void choose_registry(const std::string& requested);

  const std::string& place() const { return from.empty() ? registry : from; }  ///< that is asked

  /// Throws kUsage for a build, which is another one tomorrow: of whatever others rely on.
  void check_is_published(std::string_view operation) const;

  /// Whether a request may be made: a folder or a bundle that the request names needs no network.
  bool may_ask() const { return !settings.offline || from.starts_with('/'); }

  /// The registry, opened when it is first needed: a warm cache never asks. `what`: which the cache
  /// lacks, "index of geglu-mlp@1". Throws kOffline.
  const Repository& repository(std::string_view what, bool dev = false);

  Vouch vouch();

  std::vector<int> cached_versions() const;

  /// What was signed about an index: in the cache, and in the registry where it may be asked.
  std::vector<attest::Attestation> attestations(const Descriptor& index);

  /// A signed registry's trust metadata, put into the cache (Vouch::pull_metadata). Else nothing.
  std::vector<Descriptor> pull_metadata();

 private:
  std::unique_ptr<const Repository> repository_;
};

}  // namespace kiln
