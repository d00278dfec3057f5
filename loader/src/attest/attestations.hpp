// SPDX-License-Identifier: Apache-2.0
//
// Attestations: what was signed about one index, found among its referrers, and kept in the cache.
// After statement and store; below install, bundle and info. Nothing here is trusted:
// signed_by() says who signed a statement. For one thread.
//
//   attested/<hex of the index>.json   in the cache: manifests and bundles as they were fetched
//
// A registry may list anything. At most 16 referrers are opened, first those that the list calls
// sigstore bundles; the manifests of the others are read to see what they are, since tools write
// wrong types into lists. A referrer with another subject or type, or one that is too large, is
// ignored.
#pragma once

#include <string>
#include <vector>

#include "attest/statement.hpp"
#include "http/retry.hpp"
#include "store/cache.hpp"
#include "store/content.hpp"

namespace kiln::attest {

inline constexpr std::size_t kMostOpened = 16;
inline constexpr std::uint64_t kMostManifestBytes = std::uint64_t{64} << 10;
inline constexpr std::uint64_t kMostBundleBytes = std::uint64_t{2} << 20;
/// Of all manifests and bundles together.
inline constexpr std::uint64_t kMostBytes = std::uint64_t{3} << 20;

struct Attestation {
  std::string manifest;  ///< the referrer's, byte for byte
  std::string bundle;    ///< likewise
  Envelope envelope;
  Statement statement;
};

struct Attestations {
  std::vector<Attestation> list;
  /// What was not read, for messages: "3 referrers that are not opened".
  std::vector<std::string> ignored;
};

/// Throws what the registry's answers throw; a referrer that is ignored throws nothing.
Attestations pull_attestations(const Repository& from, const Descriptor& index,
                               const Patience& patience);

/// `before`, and those of `added` that it lacks.
std::vector<Attestation> join_attestations(std::vector<Attestation> before,
                                           const std::vector<Attestation>& added);

/// What the cache has. Empty if its file is missing or damaged: it is then fetched again.
std::vector<Attestation> recall_attestations(const Cache& cache, const Descriptor& index);

/// Adds to what the cache has, within the limits above. Does nothing where it may not be written.
void keep_attestations(const Cache& cache, const Descriptor& index,
                       const std::vector<Attestation>& list);

}  // namespace kiln::attest
