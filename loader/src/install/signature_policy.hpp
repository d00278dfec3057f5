// SPDX-License-Identifier: Apache-2.0
//
// SignaturePolicy: the signatures that a user requires (`kiln trust require`) of what is to run. A
// part of pull, before anything is unpacked. Where the user requires none, no registry is asked. A
// requirement that was met is remembered next to trust.json, as the signatures of metadata are: a
// warm load reads one line there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "attest/attestations.hpp"
#include "resolve/resolve.hpp"
#include "store/cache.hpp"

namespace kiln {

struct Package;   // install/install.hpp
struct Settings;  // settings/settings.hpp

/// What is to run.
struct Candidate {
  std::string label;  ///< "geglu-mlp@1"
  std::string name;
  Descriptor index;
  const Package* package;
  const Resolution* resolution;
};

class SignaturePolicy {
 public:
  /// `registry`: canonical. All of them outlive this.
  SignaturePolicy(const std::string& registry, const Settings& settings, const Cache& cache)
      : registry_(registry), settings_(settings), cache_(cache) {}

  /// Gives what was signed, out of the registry: "signatures of geglu-mlp@1".
  using Ask = std::function<attest::Attestations(const std::string& what)>;

  /// Out of the cache, or else by `ask`, into it. Throws kTrust where a requirement is not met,
  /// naming the keys that were found and those that were expected; what `ask` throws.
  void check(const Candidate& what, const Ask& ask) const;

 private:
  const std::string& registry_;
  const Settings& settings_;
  const Cache& cache_;
};

/// The keys that this user requires of the package and that signed a statement, by fingerprint.
std::vector<std::string> known_signers(const attest::Attestation& one, const Settings& settings,
                                       const std::string& registry, const std::string& package);

/// The key of a requirement. Throws kUsage, naming trust.json, for text that is not a key.
trust::Key required_key(const std::string& pem);

}  // namespace kiln
