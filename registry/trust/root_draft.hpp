// SPDX-License-Identifier: Apache-2.0
//
// Root draft: root metadata that still lacks signatures, in one file that goes from signer to
// signer. After keys, before sign, which puts a finished one into a registry. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "registry/trust/keys.hpp"
#include "trust/key.hpp"

namespace kiln::registry {

/// Whose keys sign what, and how many of them must. A threshold of 0: as before, at first 1.
struct RootKeys {
  std::vector<trust::Key> root;  ///< offline: they name these keys, and their own successors
  std::uint64_t threshold = 0;
  std::vector<trust::Key> targets;  ///< they say what a version is
  std::uint64_t targets_threshold = 0;
  std::vector<trust::Key> online;  ///< they say what is newest: snapshot, timestamp
  std::uint64_t online_threshold = 0;
};

/// Version 1, unsigned. `expires`: seconds since 1970. Throws kUsage for a role without a key, for
/// more signatures than keys, and for an online key that is a root or targets key too.
std::string first_root(const RootKeys& keys, std::int64_t expires);

/// The version after `root`, unsigned; a role without keys keeps those that it has. Throws kUsage
/// as above, kTrust for another document.
std::string next_root(std::string_view root, const RootKeys& changed, std::int64_t expires);

/// The document signed by these keys too. Throws kTrust for another document.
std::string add_signatures(std::string_view root, const std::vector<PrivateKey>& keys);

/// A line for each role whose keys or threshold it changes, of every role where `before` is empty;
/// and until when it holds. Throws kUsage unless `before` is the version before it.
std::vector<std::string> changes_of_root(std::string_view before, std::string_view root);

/// The signatures under a draft so far, by its own root keys. The keys of the version before must
/// have signed it as well; whether they have is seen when it is put into a registry.
struct Signatures {
  std::uint64_t version = 0;
  std::size_t have = 0;
  std::uint64_t need = 0;
  std::vector<std::string> missing;  ///< ids of keys that have not
};
Signatures signatures_of(std::string_view root);

}  // namespace kiln::registry
