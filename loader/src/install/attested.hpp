// SPDX-License-Identifier: Apache-2.0
//
// Attested: whether those whose signatures a user requires (`kiln trust require`) signed what is
// to run. A part of pull, before anything is unpacked. Requires nothing, and asks nobody, where the
// user requires nothing. What was once found good is remembered beside trust.json, as the
// signatures of metadata are: a warm load reads one line there.
#pragma once

#include <functional>
#include <string>

#include "attest/attestations.hpp"
#include "resolve/resolve.hpp"
#include "settings/settings.hpp"
#include "store/cache.hpp"

namespace kiln {

struct Package;  // install/install.hpp

/// What is to run.
struct Attestee {
  std::string label;  ///< "geglu-mlp@1"
  std::string name;
  Descriptor index;
  const Package* package;
  const Resolution* resolution;
};

class Attested {
 public:
  /// `registry`: canonical. All are outlived.
  Attested(const std::string& registry, const Settings& settings, const Cache& cache)
      : registry_(registry), settings_(settings), cache_(cache) {}

  /// Gives what was signed, out of the registry: "signatures of geglu-mlp@1".
  using Ask = std::function<attest::Attestations(const std::string& what)>;

  /// Out of the cache, or else by `ask`, into it. Throws kTrust where a requirement is not met,
  /// naming the keys that were found and those that were expected; what `ask` throws.
  void check(const Attestee& what, const Ask& ask) const;

 private:
  const std::string& registry_;
  const Settings& settings_;
  const Cache& cache_;
};

/// The key of a requirement. kUsage, naming trust.json, for what is none.
trust::Key required_key(const std::string& pem);

}  // namespace kiln
